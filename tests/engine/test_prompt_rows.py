"""Prompts with rows in place of embeddings, in whole engines: what their tokens would give, whatever happens around."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.compute.ops import FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.engine.api.local import LocalEngine
from homenode.engine.inputs import ROW_DIGEST_BYTES, PromptPart, PromptRows, flatten
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.errors import UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from homenode.sampling import SamplingParams
from tests.engine.engines import config_for, greedy, outputs_of, tokens_of
from tests.engine.live import BUILTIN
from tests.waiting import PATIENCE_S

FOLDER = BUILTIN.parent
PROMPTS = [[(7 + 13 * n + 5 * k) % 900 for k in range(length)] for n, length in enumerate((100, 33, 64, 7))]
PARAMS = greedy(6, logprobs=1)
Bits = tuple[list[int], list[float]]


@cache
def table() -> FloatArray:
    model = load_model(open_checkpoint(FOLDER), ReferenceBackend(), dtype="float32")
    embed: FloatArray = model.parameters.top["embed"]
    return embed


def rows_of(ids: Sequence[int]) -> PromptRows:
    rows = [table()[token].astype("<f4").tobytes() for token in ids]
    digests = b"".join(hashlib.blake2b(row, digest_size=ROW_DIGEST_BYTES).digest() for row in rows)
    return PromptRows(b"".join(rows), table().shape[1], digests)


def forms_of(ids: list[int]) -> list[list[PromptPart]]:
    """The same prompt as ids, as rows, and as both."""
    third = len(ids) // 3
    mixed = [
        PromptPart(ids[:third]),
        PromptPart.of_rows(rows_of(ids[third : 2 * third])),
        PromptPart(ids[2 * third : -1]),
        PromptPart.of_rows(rows_of(ids[-1:])),
    ]
    return [[PromptPart(ids)], [PromptPart.of_rows(rows_of(ids))], mixed]


def run(engine: LocalEngine, prompts: Sequence[Sequence[PromptPart]], params: SamplingParams) -> list[list[Output]]:
    requests = []
    for number, parts in enumerate(prompts, 1):
        flat = flatten(parts)
        requests.append(Request(id=number, prompt_ids=flat.ids, rows=flat.rows, params=params))
    return outputs_of(engine, requests)


def bits_of(outputs: Sequence[Output]) -> Bits:
    assert outputs[-1].error is None, outputs[-1].error
    return tokens_of(outputs), [logprob.logprob for output in outputs for logprob in output.logprobs]


def engine_of(backend: str, **settings: Any) -> LocalEngine:
    chosen = {"threads": 1, "block_size": 32, "kv_cache_memory": "4MiB", "max_model_len": 160, "dtype": "float32"}
    return LocalEngine(config_for(FOLDER, backend=backend, **({"enable_prompt_embeds": True} | chosen | settings)))


BACKENDS = ("reference", "native")


@pytest.fixture(scope="module", params=BACKENDS)
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    engine = engine_of(request.param, max_num_batched_tokens=48, enable_prefix_caching=False)
    yield engine
    engine.close()


def test_rows_give_what_their_tokens_give(engine: LocalEngine) -> None:
    """Prompts are cut, and share steps with others."""
    forms = list(zip(*[forms_of(prompt) for prompt in PROMPTS], strict=True))
    wanted = [bits_of(run(engine, [prompt], PARAMS)[0]) for prompt in forms[0]]
    for prompts in forms:
        assert [bits_of(outputs) for outputs in run(engine, prompts, PARAMS)] == wanted
    together = run(engine, [forms[1][0], forms[0][1], forms[2][2], forms[1][3]], PARAMS)
    assert [bits_of(outputs) for outputs in together] == wanted


def test_penalties_know_no_token_where_a_row_stands(engine: LocalEngine) -> None:
    params = greedy(12, repetition_penalty=1.5, dry_multiplier=1.0, dry_allowed_length=1)
    outputs = run(engine, [forms_of(PROMPTS[1])[1], forms_of(PROMPTS[1])[2]], params)
    assert all(len(tokens_of(each)) == 12 for each in outputs)


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        (lambda: Request(id=1, prompt_ids=[-1, 5], params=PARAMS), "token id -1"),
        (
            lambda: Request(
                id=1,
                prompt_ids=[-1],
                rows=flatten([PromptPart.of_rows(PromptRows(b"x" * 8, 2, b"x" * 32))]).rows,
                params=PARAMS,
            ),
            "rows of 2 columns",
        ),
        (
            lambda: Request(
                id=1,
                prompt_ids=[-1] * 2,
                rows=flatten([PromptPart.of_rows(rows_of([3, 4]))]).rows,
                params=greedy(1, prompt_logprobs=0),
            ),
            "no tokens to score",
        ),
        (
            lambda: Request(
                id=1, prompt_ids=[-1] * 3, rows=flatten([PromptPart.of_rows(rows_of([3, 4]))]).rows, params=PARAMS
            ),
            "neither",
        ),
    ],
)
def test_damaged_prompts_are_refused(engine: LocalEngine, request_of: Any, what: str) -> None:
    sink: SimpleQueue[Output] = SimpleQueue()
    engine.submit([request_of()], sink)
    assert what in str(sink.get(timeout=PATIENCE_S).error)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_rows_share_blocks_and_other_rows_never(backend: str) -> None:
    engine = engine_of(backend)
    try:
        prompt = PROMPTS[0]
        other = [*prompt[:40], prompt[40] + 1, *prompt[41:]]
        first = run(engine, [forms_of(prompt)[1]], PARAMS)[0]
        again = run(engine, [forms_of(prompt)[1]], PARAMS)[0]
        changed = run(engine, [forms_of(other)[1]], PARAMS)[0]
        ids = run(engine, [forms_of(other)[0]], PARAMS)[0]
        assert [each[0].cached_tokens for each in (first, again, changed, ids)] == [0, 96, 32, 0]
        assert bits_of(again) == bits_of(first) and bits_of(changed) == bits_of(ids)
    finally:
        engine.close()


def test_rows_come_again_after_a_preemption() -> None:
    engine = engine_of("native", kv_cache_memory="768KiB", max_num_seqs=4, max_num_batched_tokens=48)
    alone = engine_of("native", enable_prefix_caching=False)
    params = greedy(50, logprobs=1)
    try:
        prompts = [forms_of(prompt)[form] for prompt in PROMPTS for form in (1, 2)]
        wanted = [bits_of(run(alone, [prompt], params)[0]) for prompt in prompts]
        found = run(engine, prompts, params)
        assert [bits_of(outputs) for outputs in found] == wanted
        assert engine.statistics.preemptions > 0
    finally:
        engine.close()
        alone.close()


def test_an_engine_that_takes_none_says_so() -> None:
    engine = engine_of("reference", enable_prompt_embeds=None)
    try:
        assert engine.ready.row_columns == 0
        assert "--enable-prompt-embeds" in str(run(engine, [forms_of(PROMPTS[3])[1]], PARAMS)[0][-1].error)
    finally:
        engine.close()


def test_a_step_of_more_rows_than_a_frame_holds_is_refused_at_the_start() -> None:
    with pytest.raises(UserError, match="--max-num-batched-tokens"):
        engine_of("reference", max_num_batched_tokens=2**20)


@pytest.mark.long
def test_workers_of_several_stages_and_ranks_take_rows() -> None:
    """Rows are those of the first stage; each of its ranks has all of them."""
    split = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2, "stage_devices": "cpu,cpu"}
    engine, alone = engine_of("native", max_num_batched_tokens=48, **split), engine_of("native")
    try:
        prompts = [forms_of(prompt)[form] for prompt in PROMPTS[1:] for form in (1, 2)]
        wanted = [tokens_of(run(alone, [prompt], PARAMS)[0]) for prompt in prompts]
        assert [tokens_of(outputs) for outputs in run(engine, prompts, PARAMS)] == wanted
    finally:
        engine.close()
        alone.close()
