"""How fast a model runs here: prefill, and decode at several batch sizes, through the same program the server runs.

Prompt processing is one step of `prompt_tokens` tokens in an empty context; decoding is one token for each of `batch` sequences whose context
holds `context` tokens, sampled greedily. Times are wall times of the whole step, Python included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from homenode.compute.ops import Backend, Program, SamplingArrays, StepArrays, StepLimits
from homenode.errors import UserError
from homenode.model.weights.load import LoadedModel

_BLOCK = 64


@dataclass(frozen=True)
class Plan:
    """What to measure. `repeat` runs of each; the median counts."""

    prompt_tokens: int = 512
    gen_tokens: int = 128
    batches: tuple[int, ...] = (1,)
    context: int = 0
    repeat: int = 3


@dataclass(frozen=True)
class Result:
    """`test` is prefill or decode; `seconds` are of one run, the median; `tok_s` tokens of all sequences in a second."""

    test: str
    batch: int
    tokens: int
    context: int
    seconds: float
    tok_s: float
    runs: tuple[float, ...]


def measure(model: LoadedModel, backend: Backend, plan: Plan, started: Callable[[str], None] = lambda _: None) -> list[Result]:
    """Run the plan; `started` is told what is measured next. Raises UserError when the model's context is too short for it."""
    longest = max(plan.prompt_tokens, plan.context + plan.gen_tokens)
    if longest > model.spec.max_position:
        raise UserError(f"the plan needs a context of {longest} tokens; the model has {model.spec.max_position}", param="--context")
    widest = max(plan.batches)
    blocks = -(-longest // _BLOCK)
    limits = StepLimits(max(plan.prompt_tokens, widest), widest, widest, blocks)
    cache = backend.kv_cache(model.kv_geometry(_BLOCK, "auto"), blocks * widest)
    program = backend.compile(model.forward(cache), limits)
    results = []
    if plan.prompt_tokens:
        started(f"prefill of {plan.prompt_tokens}")
        results.append(_prefill(program, model.spec.vocab_size, plan, blocks))
    for batch in plan.batches if plan.gen_tokens else ():
        started(f"decode, batch {batch}")
        results.append(_decode(program, backend, model.spec.vocab_size, plan, batch, blocks))
    return results


def _prefill(program: Program, vocab: int, plan: Plan, blocks: int) -> Result:
    n = plan.prompt_tokens
    ids = np.random.default_rng(0).integers(0, vocab, n).astype(np.int32)
    arrays = StepArrays(ids, _int32(range(n)), _int32([0, n]), _int32([n]), _tables(1, blocks), _int32([n - 1]))
    return _result("prefill", 1, n, 0, n, [_timed(lambda: program.run(arrays)) for _ in range(plan.repeat + 1)][1:])


def _decode(program: Program, backend: Backend, vocab: int, plan: Plan, batch: int, blocks: int) -> Result:
    """The first run warms up caches and is not counted."""
    tables = _tables(batch, blocks)
    how = _greedy(batch)

    def run() -> None:
        ids = np.random.default_rng(batch).integers(0, vocab, batch).astype(np.int32)
        for step in range(plan.gen_tokens):
            at = plan.context + step
            arrays = StepArrays(
                ids, np.full(batch, at, np.int32), _int32(range(batch + 1)), np.full(batch, at + 1, np.int32), tables, _int32(range(batch))
            )
            ids = backend.sample(program.run(arrays), how).tokens

    runs = [_timed(run) for _ in range(plan.repeat + 1)][1:]
    return _result("decode", batch, plan.gen_tokens, plan.context, batch * plan.gen_tokens, runs)


def _result(test: str, batch: int, tokens: int, context: int, made: int, runs: Sequence[float]) -> Result:
    seconds = statistics.median(runs)
    return Result(test, batch, tokens, context, seconds, made / seconds, tuple(runs))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _int32(values: Sequence[int] | range) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def _tables(sequences: int, blocks: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Each sequence owns a run of adjacent blocks."""
    return np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)


def _greedy(rows: int) -> SamplingArrays:
    zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    counts, starts = np.zeros(rows, np.uint64), np.zeros(rows + 1, np.int32)
    nothing, none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return SamplingArrays(
        temperature=zeros, top_k=np.zeros(rows, np.int32), top_p=ones, min_p=zeros, seed=counts, counter=counts,
        repetition_penalty=ones, frequency_penalty=zeros, presence_penalty=zeros,
        bias_start=starts, bias_token=nothing, bias_value=none, seen_start=starts, seen_token=nothing, seen_count=nothing,
    )  # fmt: skip
