"""Structured output on a real model: every answer fits, and is the same whatever else runs, wherever it is computed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from homenode import LLM, SamplingParams
from homenode.engine.api.local import LocalEngine
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.worker.grammar_masks import GrammarMasks
from homenode.errors import UserError
from homenode.grammars.compile import compile_grammar
from homenode.grammars.spec import Choice, GrammarSpec, JsonSchema, Regex
from homenode.grammars.vocabulary import Vocabulary
from homenode.model.tokenizer import Tokenizer, load_tokenizer
from tests.engine.answer_drafts import draft_answers
from tests.engine.engines import config_for, run_all, tokens_of
from tests.engine.test_workers import engine_of, executor_of, worker_pids
from tests.paths import STORIES, needs_data
from tests.waiting import PATIENCE_S

pytestmark = needs_data

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["dog", "cat"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 30},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,6}$"}, "maxItems": 2},
    },
    "required": ["name", "kind", "age", "tags"],
    "additionalProperties": False,
}
PATTERN = "([a-z]{1,3} ){1,30}"
SPECS: list[GrammarSpec] = [
    JsonSchema(FORM),
    Regex("[A-Z][a-z]{2,8} [0-9]{3}"),
    Choice(["crimson", "burnt umber", "猫"]),
]
HOT = SamplingParams(max_tokens=200, temperature=1.3, seed=3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(STORIES), kv_cache_memory="8MiB", max_num_seqs=16) as llm:
        yield llm


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    made = load_tokenizer(STORIES)
    yield made
    made.close()


def fits(spec: GrammarSpec, text: str) -> bool:
    if isinstance(spec, Choice):
        return text in spec.texts
    if isinstance(spec, Regex):
        return re.fullmatch(spec.pattern, text) is not None
    value = json.loads(text)
    good = list(value) == list(FORM["properties"]) and len(value["name"]) <= 12 and value["kind"] in ("dog", "cat")  # type: ignore[call-overload]
    return good and 1 <= value["age"] <= 30 and all(re.fullmatch("[a-z]{2,6}", tag) for tag in value["tags"])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
@pytest.mark.parametrize("params", [HOT, msgspec.structs.replace(HOT, temperature=0.0),
    msgspec.structs.replace(HOT, top_k=3, top_p=0.5, frequency_penalty=1.5, logprobs=2)],
    ids=["hot", "greedy", "narrow"])  # fmt: skip
def test_answers_fit(llm: LLM, spec: GrammarSpec, params: SamplingParams) -> None:
    for answer in llm.generate(["Once upon a time", "Lily"], msgspec.structs.replace(params, n=3), output=spec):
        assert answer.finish_reason == "stop" and fits(spec, answer.text), answer.text
        assert params.logprobs is None or len(answer.logprobs or []) == len(answer.token_ids)


def test_a_stream_and_a_cut_answer(llm: LLM) -> None:
    text = "".join(llm.stream("A dog", HOT, output=JsonSchema(FORM)))
    assert fits(JsonSchema(FORM), text)
    (cut,) = llm.generate("A dog", msgspec.structs.replace(HOT, max_tokens=5), output=JsonSchema(FORM))
    assert cut.finish_reason == "length" and text.startswith(cut.text)


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize(("spec", "most"), [(JsonSchema(FORM), 48), (Regex("[0-9]+x{1,3}!"), 6), (Regex(PATTERN), 7)])
def test_answers_end_within_their_tokens(llm: LLM, spec: GrammarSpec, most: int, logprobs: int | None) -> None:
    params = msgspec.structs.replace(HOT, max_tokens=most, n=6, logprobs=logprobs)
    for answer in llm.generate(["Once upon a time", "Lily"], params, output=spec):
        assert fits(spec, answer.text) and len(answer.token_ids) <= most, answer.text
        assert logprobs is None or len(answer.logprobs or []) == len(answer.token_ids)


def test_min_tokens_ignore_eos_and_stop(llm: LLM) -> None:
    (answer,) = llm.generate("x", msgspec.structs.replace(HOT, min_tokens=25), output=Regex(PATTERN))
    assert re.fullmatch(PATTERN, answer.text) and len(answer.token_ids) >= 25
    (short,) = llm.generate("x", msgspec.structs.replace(HOT, min_tokens=50, ignore_eos=True), output=Choice(["no"]))
    assert (short.text, short.finish_reason) == ("no", "stop")
    (stopped,) = llm.generate("x", HOT, stop=["STOP"], output=Regex("[a-m]{4,6}STOP[n-z]{20}"))
    assert re.fullmatch("[a-m]{4,6}", stopped.text) and stopped.finish_reason == "stop"


def test_what_cannot_be_kept_is_refused(llm: LLM) -> None:
    with pytest.raises(UserError, match=r"output\.properties\.a"):
        llm.generate("x", HOT, output=JsonSchema({"type": "object", "properties": {"a": {"type": "colour"}}}))
    with pytest.raises(UserError, match="within its grammar"):
        llm.generate("x", msgspec.structs.replace(HOT, grammar="start: nothing"))
    (fine,) = llm.generate("x", HOT, output=Choice(["yes"]))
    assert fine.text == "yes"


def bound_requests(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Bound answers of several kinds and free ones, mixed."""
    vocabulary = Vocabulary(tokenizer, vocab_size, [2])
    prompts, params = [], []
    for i in range(12):
        spec = [*SPECS, Regex(PATTERN), None, None][i % 6]
        grammar = None if spec is None else compile_grammar(spec, vocabulary, "field").text
        more: dict[str, Any] = {"presence_penalty": 0.5} if i % 5 == 0 else {"logprobs": 1} if i % 5 == 1 else {}
        prompts.append(tokenizer.encode(f"Story {i}: once upon"))
        params.append(SamplingParams(max_tokens=90, temperature=1.1 * (i % 2), seed=i, grammar=grammar, **more))
    return prompts, params


@pytest.fixture(scope="module")
def alone(tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of each request when nothing else runs, and nothing is drafted."""
    engine = LocalEngine(config_for(STORIES, kv_cache_memory="8MiB", speculative="off"))
    try:
        prompts, params = bound_requests(tokenizer, engine.ready.vocab_size)
        found = [run_all(engine, [p], [s], i + 1)[0] for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
        assert all(outputs[-1].finish_reason in ("stop", "length") for outputs in found)
        assert sum(output.forced_tokens for outputs in found for output in outputs) > 0
        return [tokens_of(outputs) for outputs in found]
    finally:
        engine.close()


@pytest.mark.parametrize("backend", ["native", "reference", "torch"])
def test_the_same_tokens_together_and_under_memory_pressure(
    tokenizer: Tokenizer, alone: list[list[int]], backend: str
) -> None:
    memory = "256KiB" if backend == "native" else "8MiB"
    config = config_for(STORIES, backend=backend, kv_cache_memory=memory, max_model_len=192, max_num_batched_tokens=48)
    engine = LocalEngine(config)
    try:
        prompts, params = bound_requests(tokenizer, engine.ready.vocab_size)
        found = run_all(engine, prompts, params)
    finally:
        engine.close()
    if backend == "native":
        assert sum(output.num_preemptions for outputs in found for output in outputs) > 0
        assert [tokens_of(outputs) for outputs in found] == alone
    for spec, outputs in zip([*SPECS, Regex(PATTERN), None, None] * 2, found, strict=True):
        text = tokenizer.decode(tokens_of(outputs))
        assert spec is None or fits(spec, text), text


def test_bound_answers_are_the_same_with_drafts(
    tokenizer: Tokenizer, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [tokenizer.encode(f"Story {i}: once upon") for i in range(12)]
    drafts = draft_answers(monkeypatch, prompts, alone, 500)
    engine = LocalEngine(config_for(STORIES, kv_cache_memory="8MiB"))
    try:
        prompts, params = bound_requests(tokenizer, engine.ready.vocab_size)
        found = run_all(engine, prompts, params)
    finally:
        engine.close()
    assert [tokens_of(outputs) for outputs in found] == alone
    assert drafts.accepted > 40 and drafts.rejected > 40


def test_what_grammars_force_is_drafted_and_drawn(
    tokenizer: Tokenizer, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []

    def forced_after(masks: GrammarMasks, *asked: Any) -> list[int]:
        found = told(masks, *asked)
        forced.extend(found)
        return found

    told = GrammarMasks.forced_after
    monkeypatch.setattr(GrammarMasks, "forced_after", forced_after)
    engine = LocalEngine(config_for(STORIES, kv_cache_memory="8MiB", speculative="ngram"))
    try:
        prompts, params = bound_requests(tokenizer, engine.ready.vocab_size)
        found = run_all(engine, prompts, params)
    finally:
        engine.close()
    assert [tokens_of(outputs) for outputs in found] == alone
    assert len(forced) > 20
    assert sum(output.accepted_tokens for outputs in found for output in outputs) > 20


@pytest.mark.parametrize("shape", [{"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}], ids=["stages", "ranks"])
def test_the_same_tokens_by_several_workers(
    tokenizer: Tokenizer, alone: list[list[int]], shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drafts as well, of which all workers know what was accepted."""
    drafts = draft_answers(monkeypatch, [tokenizer.encode(f"Story {i}: once upon") for i in range(12)], alone, 500)
    with engine_of(STORIES, kv_cache_memory="8MiB", **shape) as engine:
        prompts, params = bound_requests(tokenizer, engine.ready.vocab_size)
        for turn, share in enumerate((0.0, 0.7)):
            drafts.share = share
            found = run_all(engine, prompts, params, first_id=1 + 100 * turn)
            assert [tokens_of(outputs) for outputs in found] == alone
    assert drafts.accepted > 40 and drafts.rejected > 40


@pytest.mark.parametrize("shape", [{"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}], ids=["stages", "ranks"])
def test_a_worker_killed_while_answers_are_bound(
    tokenizer: Tokenizer, alone: list[list[int]], shape: dict[str, Any]
) -> None:
    with engine_of(STORIES, kv_cache_memory="8MiB", **shape) as engine:
        prompts, params = bound_requests(tokenizer, engine.ready.vocab_size)
        sink: SimpleQueue[Output] = SimpleQueue()
        requests = [
            Request(id=i, prompt_ids=p, params=s) for i, (p, s) in enumerate(zip(prompts, params, strict=True), 1)
        ]
        engine.submit(requests, sink)
        found: dict[int, list[Output]] = {request.id: [] for request in requests}
        heard, left = 0, len(requests)
        while left:
            output = sink.get(timeout=PATIENCE_S)
            found[output.id].append(output)
            left, heard = left - (output.finish_reason is not None), heard + 1
            if heard in (60, 200):
                os.kill(worker_pids(engine)[-1], signal.SIGKILL)
        assert executor_of(engine).statistics()["restarts"] >= 1
    assert [tokens_of(outputs) for outputs in found.values()] == alone
