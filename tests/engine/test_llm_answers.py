"""Several answers to a prompt, stop strings and the model's own way of drawing tokens, with the built-in model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import homenode
from homenode import LLM, SamplingParams
from homenode.cli.main import cli
from homenode.errors import UserError

QUESTION = [{"role": "user", "content": "What is NUMA?"}]
BUILTIN = Path(homenode.__file__).parent / "builtin"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=512, kv_cache_memory="64MiB") as made:
        yield made


def test_each_prompt_gets_its_answers_one_after_another(llm: LLM) -> None:
    prompts = ["One, two,", "The capital of"]
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=5, n=3, ignore_eos=True)
    found = llm.generate(prompts, params)
    assert [answer.prompt_token_ids for answer in found[::3]] == [llm.tokenizer.encode(prompt) for prompt in prompts]
    assert all(found[i].prompt_token_ids == found[i - i % 3].prompt_token_ids for i in range(6))
    assert len({tuple(answer.token_ids) for answer in found[:3]}) > 1, "each has a seed of its own"
    alone = [
        llm.generate(prompts[0], SamplingParams(max_tokens=6, temperature=1.0, seed=5 + i, ignore_eos=True))[0]
        for i in range(3)
    ]
    assert [answer.token_ids for answer in found[:3]] == [answer.token_ids for answer in alone]


def test_params_of_each_prompt_may_want_different_numbers(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=2, n=2, ignore_eos=True), SamplingParams(max_tokens=3, ignore_eos=True)]
    assert [len(answer.token_ids) for answer in llm.generate(["a", "b"], params)] == [2, 2, 3]


@pytest.mark.parametrize("stop", ["memory", ["memory"], ["never there", "memory"]])
def test_stop_strings_of_the_params_end_a_text_before_them(llm: LLM, stop: str | list[str]) -> None:
    whole = llm.chat(QUESTION, SamplingParams(temperature=0))
    assert "memory" in whole.text
    cut = llm.chat(QUESTION, SamplingParams(temperature=0, stop=stop))
    assert (cut.text, cut.finish_reason) == (whole.text.partition("memory")[0], "stop")
    assert "".join(llm.stream_chat(QUESTION, SamplingParams(temperature=0, stop=stop))) == cut.text
    both = llm.chat(QUESTION, SamplingParams(temperature=0, stop=stop), stop=["access"])
    assert both.text == min(whole.text.partition("memory")[0], whole.text.partition("access")[0], key=len)


@pytest.mark.parametrize(
    ("params", "words"),
    [(SamplingParams(stop=[""]), "stop is"), (SamplingParams(n=0), "n is 0"), (SamplingParams(temperature=-1), "temp")],
)
def test_what_cannot_be_is_refused_before_anything_runs(llm: LLM, params: SamplingParams, words: str) -> None:
    with pytest.raises(UserError, match=words):
        llm.generate("a", params)
    assert llm.generate("a", SamplingParams(max_tokens=1, ignore_eos=True))[0].token_ids


def test_a_conversation_and_a_stream_have_one_answer(llm: LLM) -> None:
    several = SamplingParams(n=2)
    with pytest.raises(UserError, match="n is 2"):
        llm.chat(QUESTION, several)
    with pytest.raises(UserError, match="n is 2"):
        list(llm.stream("a", several))


def test_the_models_own_way_of_drawing_is_taken_where_nothing_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUILTIN, folder)
    file = folder / "generation_config.json"
    file.write_bytes(msgspec.json.encode({**msgspec.json.decode(file.read_bytes()), "temperature": 0.0}))
    with LLM(str(folder), max_model_len=256, kv_cache_memory="64MiB") as greedy:
        prompt, how = "Once upon a time", {"max_tokens": 12, "ignore_eos": True}
        likeliest = greedy.generate(prompt, SamplingParams(temperature=0, **how))[0].token_ids  # type: ignore[arg-type]
        open_ = [greedy.generate(prompt, SamplingParams(seed=i, **how))[0].token_ids for i in range(3)]  # type: ignore[arg-type]
        drawn = [greedy.generate(prompt, SamplingParams(temperature=1.5, seed=i, **how))[0].token_ids for i in range(3)]  # type: ignore[arg-type]
    assert open_ == [likeliest] * 3
    assert any(ids != likeliest for ids in drawn)


GENERATE = ("generate", "--prompt", "What is NUMA?")


@pytest.mark.parametrize(
    ("more", "note"),
    [((), "ask it with --chat"), (("--json",), "ask it with --chat"), (("--chat",), ""), (("--stop", "x"), "")],
)
def test_generate_says_why_a_model_for_conversations_says_nothing(more: tuple[str, ...], note: str) -> None:
    result = CliRunner().invoke(cli, [*GENERATE, *more])
    assert result.exit_code == 0, result.output
    assert (note in result.stderr) if note else "ended at once" not in result.stderr


def test_a_seed_of_minus_one_is_a_new_one_each_time(llm: LLM) -> None:
    def texts(seed: int) -> set[str]:
        params = SamplingParams(seed=seed, temperature=1, max_tokens=14)
        return {llm.generate("Once upon a time", params)[0].text for _ in range(4)}

    assert len(texts(7)) == 1
    assert len(texts(-1)) > 1
