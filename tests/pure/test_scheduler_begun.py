"""A request that another engine had begun goes on exactly where that one stopped."""

from __future__ import annotations

import msgspec
import pytest

from homenode.engine.request import Request
from homenode.engine.scheduler.events import Emit, RequestArrived
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.sampling import SamplingParams
from tests.pure.schedule_bench import Bench, expected, limits_of

PROMPT = [5, 6, 7, 8, 9]


def request(**params: object) -> Request:
    return Request(id=0, prompt_ids=PROMPT, params=SamplingParams(seed=1, **params))  # type: ignore[arg-type]


def outputs_of(bench: Bench, asked: Request) -> list[int]:
    """The tokens it gives, whatever the bench expects of a request from its beginning."""
    found: list[int] = []
    bench.requests.clear()
    instructions = bench.scheduler.apply(RequestArrived(0.0, asked))
    for _ in range(200):
        outputs = [output for told in instructions if isinstance(told, Emit) for output in told.outputs]
        found += [token for output in outputs for token in output.tokens]
        ended = [output for output in outputs if output.finish_reason]
        if ended:
            return found if ended[0].error is None else [-1]
        bench.step()
        seen = len(bench.instructions)
        bench.finish_step()
        instructions = bench.instructions[seen:]
    raise AssertionError("it did not end")


@pytest.mark.parametrize("count", [1, 3, 7, 11])
@pytest.mark.parametrize("chunk", [3, 32])
def test_the_rest_is_the_same_tokens(count: int, chunk: int) -> None:
    whole = request(max_tokens=12, ignore_eos=True, logprobs=0)
    tokens, _, _ = expected(whole, limits_of())
    bench = Bench(SchedulerConfig(max_num_batched_tokens=max(chunk, 3), max_num_seqs=3))
    bench.outputs[0] = []
    bench.told_counts[0] = count
    bench.answers[0] = (tokens, "length", None)
    assert outputs_of(bench, msgspec.structs.replace(whole, begun=tokens[:count])) == tokens[count:]


def test_tokens_of_before_count_for_the_least_and_the_most() -> None:
    whole = request(max_tokens=6, min_tokens=6, stop_token_ids=tuple(range(40)))
    tokens, reason, _ = expected(whole, limits_of())
    assert (len(tokens), reason) == (6, "length")
    bench = Bench()
    bench.told_counts[0] = 4
    bench.answers[0] = (tokens, "length", None)
    assert outputs_of(bench, msgspec.structs.replace(whole, begun=tokens[:4])) == tokens[4:]


def test_one_that_has_grown_too_long_for_this_engine_is_refused() -> None:
    bench = Bench(limits=limits_of(num_blocks=3, block_size=4, max_model_len=64))
    whole = request(max_tokens=50, ignore_eos=True)
    bench.scheduler.apply(RequestArrived(0.0, msgspec.structs.replace(whole, id=7, begun=[1] * 2)))
    told = bench.scheduler.apply(RequestArrived(0.0, msgspec.structs.replace(whole, begun=[1] * 9)))
    (refused,) = (output for instruction in told if isinstance(instruction, Emit) for output in instruction.outputs)
    assert refused.error_kind == "ContextLengthError" and bench.scheduler.next_step() is not None
