"""`LLM` as a program uses it: texts, chats, streams, stop strings, log-probabilities, errors."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode import LLM, SamplingParams
from homenode.engine.api.completion import Answer
from homenode.engine.messages import Output
from homenode.errors import CapacityError, InternalError, UserError
from homenode.model.hub.locate import builtin_model
from homenode.model.tokenizer.stream import WindowStream
from tests.engine.engines import greedy
from tests.paths import STORIES, needs_data

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
GREEDY = greedy(30)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(STORIES), chat_template=TEMPLATE, kv_cache_memory="2MiB", max_num_seqs=8) as llm:
        yield llm


def story(count: int) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((STORIES / "golden.json").read_text())[0]
    return {**entry, "greedy_ids": entry["greedy_ids"][:count]}


@needs_data
class TestOnStories:
    def test_one_prompt_as_text_and_as_ids(self, llm: LLM) -> None:
        golden = story(30)
        for prompt in ("", golden["prompt_ids"]):
            (completion,) = llm.generate(prompt, GREEDY)
            assert completion.token_ids == golden["greedy_ids"]
            assert golden["text"].startswith(completion.text)
            assert len(completion.text) > 50
            assert completion.prompt_token_ids == [1]
            assert completion.finish_reason == "length"
            assert completion.timings.time_to_first_token_s is not None
            assert 0 < completion.timings.time_to_first_token_s <= completion.timings.total_s

    def test_several_prompts_with_params_of_their_own(self, llm: LLM) -> None:
        params = [
            greedy(5, logprobs=2),
            greedy(7, prompt_logprobs=0),
            SamplingParams(max_tokens=9, seed=4, ignore_eos=True),
        ]
        prompts: list[str | list[int]] = ["Once upon a time", [1, 403, 407], "Lily"]
        first = llm.generate(prompts, params)
        assert [len(c.token_ids) for c in first] == [5, 7, 9]
        assert first[0].logprobs is not None
        assert [len(score.top) for score in first[0].logprobs] == [2] * 5
        assert first[1].logprobs is None
        assert first[1].prompt_logprobs is not None
        assert [score is None for score in first[1].prompt_logprobs] == [True, False, False]
        assert [c.token_ids for c in llm.generate(prompts, params)] == [c.token_ids for c in first]
        assert llm.generate([], []) == []

    def test_logprobs_of_named_tokens_are_those_of_the_same_tokens_in_a_prompt(self, llm: LLM) -> None:
        named = (403, 5, 407)
        params = [greedy(3, logprobs=1), greedy(3, logprobs=0, logprob_token_ids=named)]
        likeliest, chosen = llm.generate([[1, 403], [1, 403]], params)
        assert likeliest.token_ids == chosen.token_ids and likeliest.logprobs is not None
        assert chosen.logprobs is not None and [score.top[0] for score in likeliest.logprobs] == [
            (token, score.logprob) for token, score in zip(chosen.token_ids, chosen.logprobs, strict=True)
        ]
        scored = llm.generate([[1, 403, token] for token in named], greedy(1, prompt_logprobs=0))
        wanted = [each.prompt_logprobs[-1] for each in scored if each.prompt_logprobs]
        assert chosen.logprobs[0].top == [(t, w.logprob) for t, w in zip(named, wanted, strict=True) if w is not None]

    def test_a_stream_is_the_text_in_pieces(self, llm: LLM) -> None:
        whole = llm.generate("Once upon a time", GREEDY)[0].text
        assert "".join(llm.stream("Once upon a time", GREEDY)) == whole
        stream = llm.stream("Once upon a time", GREEDY, speculative=False)  # a token a piece
        assert stream.completion.finish_reason == "abort"
        pieces = list(stream)
        assert "".join(pieces) == stream.completion.text == whole
        assert stream.completion.finish_reason in ("stop", "length")
        assert len(pieces) > 10

    def test_stop_strings_end_the_text_before_them(self, llm: LLM) -> None:
        whole = llm.generate("", GREEDY)[0].text
        (completion,) = llm.generate("", GREEDY, stop=["little girl", "never there"])
        assert completion.text == whole[: whole.index("little girl")]
        assert completion.finish_reason == "stop"
        assert "".join(llm.stream("", GREEDY, stop=["little girl"])) == completion.text

    def test_a_left_stream_frees_its_request(self, llm: LLM) -> None:
        stream = llm.stream("Once", greedy(400))
        next(stream)
        stream.close()
        llm.generate("x", greedy(1))
        assert llm.generate("x", greedy(1))[0].finish_reason == "length"
        assert llm.statistics.num_running == 0

    def test_a_chat_goes_through_the_template(self, llm: LLM) -> None:
        messages = [{"role": "user", "content": "Once upon"}, {"role": "user", "content": "a time"}]
        prompt = llm.tokenizer.encode("Once upon a time ", add_special_tokens=False)
        answer = llm.chat(messages, GREEDY)
        assert answer.prompt_token_ids == prompt
        again = llm.generate([prompt], GREEDY)[0]
        assert (answer.text, answer.token_ids, answer.finish_reason) == (
            again.text,
            again.token_ids,
            again.finish_reason,
        )
        assert "".join(llm.stream_chat(messages, GREEDY)) == answer.text
        rest = llm.chat(messages)
        assert rest.finish_reason == "stop" or len(rest.token_ids) + len(prompt) == llm.ready.max_model_len

    def test_threads_share_one_engine(self, llm: LLM) -> None:
        golden, found = story(30), {}

        def work(number: int) -> None:
            found[number] = llm.generate("", GREEDY)[0].token_ids

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(found.values()) == [golden["greedy_ids"]] * 6

    def test_mistakes_are_named(self, llm: LLM) -> None:
        with pytest.raises(CapacityError, match="600 tokens"):
            llm.generate([[1] * 600, [1]], GREEDY)
        begin = time.process_time()
        with pytest.raises(CapacityError, match=r"maximum context length is 511 tokens .* at least [0-9]+ tokens"):
            llm.generate("Once upon a time. " * 10**6, GREEDY)
        assert time.process_time() - begin < 1  # it was not tokenised
        with pytest.raises(UserError, match="token id 512"):
            llm.generate([[512]], GREEDY)
        with pytest.raises(UserError, match="temperature is -1"):
            llm.generate("x", SamplingParams(temperature=-1))
        with pytest.raises(UserError, match="2 params for 1 prompt"):
            llm.generate("x", [GREEDY, GREEDY])
        with pytest.raises(UserError, match="mixed"):
            llm.generate([1, "x"], GREEDY)  # type: ignore[list-item]
        assert llm.generate("", GREEDY)[0].token_ids == story(30)["greedy_ids"]

    def test_a_closed_one_says_so(self) -> None:
        llm = LLM(str(STORIES), kv_cache_memory="2MiB", threads=1)
        stream = llm.stream("Once", greedy(400))
        next(stream)
        llm.close()
        llm.close()
        with pytest.raises(InternalError, match="it was closed"):
            list(stream)
        with pytest.raises(InternalError, match="it was closed"):
            llm.generate("x")

    def test_the_engines_seed_makes_sampling_repeatable(self) -> None:
        def sampled() -> list[int]:
            with LLM(str(STORIES), seed=7, kv_cache_memory="2MiB") as llm:
                return llm.generate("", SamplingParams(max_tokens=20, ignore_eos=True))[0].token_ids

        assert sampled() == sampled()


def test_settings_and_models_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no setting treads"):
        LLM(str(tmp_path), treads=4)
    with pytest.raises(UserError, match="no such file"):
        LLM(str(tmp_path / "nothing"))


class Letters:
    """A tokenizer whose ids are code points."""

    def stream(self, context: Any = ()) -> WindowStream:
        return WindowStream(lambda ids: "".join(chr(i) for i in ids if i != ord("@")), context)

    def special_tokens_in(self, texts: Any) -> dict[int, str]:
        return {ord("@"): "<end>"}


def answer(*outputs: Output, stop: tuple[str, ...] = ()) -> tuple[list[str], Any]:
    made = Answer([1], Letters(), stop)  # type: ignore[arg-type]
    pieces = [made.feed(output) for output in outputs]
    return pieces, made.completion(logprobs=False)


def text(value: str, **ends: Any) -> Output:
    return Output(1, [ord(c) for c in value], **ends)


def test_an_answer_holds_back_what_may_become_a_stop_string() -> None:
    pieces, whole = answer(text("ab"), text("cX"), text("Y"), text("zX", finish_reason="length"), stop=("XYZ",))
    assert pieces == ["ab", "c", "", "XYzX"]
    assert (whole.text, whole.finish_reason) == ("abcXYzX", "length")


def test_a_stop_string_that_is_a_special_token_ends_the_answer() -> None:
    pieces, whole = answer(text("ab"), text("c@d"), text("e", finish_reason="length"), stop=("<end>",))
    assert pieces[:2] == ["ab", "c"] and (whole.text, whole.finish_reason) == ("abc", "stop")


def test_the_token_that_stopped_it_has_no_text() -> None:
    _, whole = answer(text("ab"), text("c!", finish_reason="stop", stop_token=33))
    assert (whole.text, whole.token_ids[-1]) == ("abc", 33)


def test_an_answer_ends_where_tokenizer_config_says_although_other_files_name_another_token(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_model(), folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {"eos_token_id": 0}))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}\n"
    )
    with LLM(str(folder), threads=1, kv_cache_memory="20MiB") as llm:
        end = llm.tokenizer.token_id("<|end|>")
        prompt = "<|user|>\nWhat is NUMA?<|end|>\n<|assistant|>\n"
        (answer,) = llm.generate([prompt], SamplingParams(max_tokens=120, temperature=0))
    assert (answer.finish_reason, answer.token_ids[-1]) == ("stop", end)
    assert "<|" not in answer.text
