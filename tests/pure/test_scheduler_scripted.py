"""The scripted worker must be strict, or the tests that lean on it prove nothing: every breach of the step protocol,
planted.
"""

from __future__ import annotations

import pytest

from homenode.engine.errors import StepError
from homenode.engine.executor.base import Executor
from homenode.engine.step import StartSequence, Step, StepItem
from homenode.errors import InternalError
from homenode.sampling import SamplingParams
from homenode.testing.scripted_executor import ScriptedExecutor, scripted_token
from tests.pure.schedule_bench import limits_of

_PARAMS = SamplingParams(seed=1)


def _start(seq: int, tokens: list[int], params: SamplingParams = _PARAMS) -> StartSequence:
    return StartSequence(seq, tokens, len(tokens), params)


def _worker() -> ScriptedExecutor:
    """Sequence 0 with six tokens computed in blocks 0 and 1, and one token drawn."""
    worker = ScriptedExecutor(limits_of(max_sampled_rows=8), max_tokens=12, max_sequences=2)
    worker.submit(Step(0, [], [_start(0, [1, 2, 3, 4, 5, 6])], [StepItem(0, 0, 6, [0, 1], 1)]))
    return worker


def _draws(worker: Executor) -> list[int]:
    result = worker.result()
    assert result is not None
    return [token for advance in result.advances for token in advance.tokens]


def test_tokens_follow_from_all_that_came_before() -> None:
    worker = _worker()
    (first,) = _draws(worker)
    assert first == scripted_token([1, 2, 3, 4, 5, 6], 40)
    worker.submit(Step(1, [], [], [StepItem(0, 6, 1, [], 1)]))
    assert _draws(worker) == [scripted_token([1, 2, 3, 4, 5, 6, first], 40)]
    assert worker.result() is None


def test_a_block_shared_with_equal_content_may_be_read() -> None:
    worker = _worker()
    worker.submit(Step(1, [], [_start(1, [1, 2, 3, 4, 9])], [StepItem(1, 4, 1, [0, 5], 1)]))
    worker.submit(Step(2, [0], [], [StepItem(1, 5, 1, [], 1)]))
    assert worker.live == {1} and worker.pending == 3


_BREACHES = {
    "came after step 0": Step(0, [], [], [StepItem(0, 6, 1, [], 1)]),
    "computes nothing": Step(1, [0], [], []),
    "holds a sequence twice": Step(1, [], [], [StepItem(0, 6, 1, [], 1), StepItem(0, 7, 1, [], 1)]),
    "step 1 has 13 tokens": Step(1, [], [_start(1, [1] * 13)], [StepItem(1, 0, 13, [2, 3, 4, 5], 1)]),
    "step 1 has 3 sequences": Step(1, [], [], [StepItem(seq, 6, 1, [], 1) for seq in range(3)]),
    "sequence 7 is ended, but it is not there": Step(1, [7], [], [StepItem(0, 6, 1, [], 1)]),
    "sequence 0 is computed, but it is not there": Step(1, [0], [], [StepItem(0, 6, 1, [], 1)]),
    "handle 0 is used again": Step(1, [0], [_start(0, [1])], [StepItem(0, 0, 1, [2], 1)]),
    "has no prompt": Step(1, [], [StartSequence(1, [1], 0, _PARAMS)], [StepItem(1, 0, 1, [2], 1)]),
    "has no seed": Step(1, [], [_start(1, [1], SamplingParams())], [StepItem(1, 0, 1, [2], 1)]),
    "sequence 0 is at 6, not 5": Step(1, [], [], [StepItem(0, 5, 1, [], 1)]),
    "sequence 1 is at 0, not 3": Step(1, [], [_start(1, [1, 2, 3, 4])], [StepItem(1, 3, 1, [0], 1)]),
    "has no position 7": Step(1, [], [], [StepItem(0, 6, 2, [], 1)]),
    "is given block 64": Step(1, [], [_start(1, [1])], [StepItem(1, 0, 1, [64], 1)]),
    "is given block 2 twice": Step(1, [], [_start(1, [1] * 5)], [StepItem(1, 0, 5, [2, 2], 1)]),
    "has 1 block and needs 2": Step(1, [], [_start(1, [1] * 5)], [StepItem(1, 0, 5, [2], 1)]),
    "has 3 blocks and needs 2": Step(1, [], [], [StepItem(0, 6, 1, [2], 1)]),
    "writes to block 1, which another one uses": Step(1, [], [_start(1, [9] * 4)], [StepItem(1, 0, 4, [1], 1)]),
    "finds another one's content in block 0": Step(1, [], [_start(1, [9, 2, 3, 4, 5])], [StepItem(1, 4, 1, [0, 2], 1)]),
    "finds another one's content in block 3": Step(1, [], [_start(1, [1, 2, 3, 4, 5])], [StepItem(1, 4, 1, [3, 2], 1)]),
    "sampled before all its tokens": Step(1, [], [_start(1, [1] * 5)], [StepItem(1, 0, 4, [2], 1)]),
    "did not ask for log-probabilities": Step(1, [], [_start(1, [1] * 5)], [StepItem(1, 0, 4, [2], 0, 0)]),
    "samples and scores 11 rows": Step(
        1,
        [],
        [_start(1, [1] * 11, SamplingParams(seed=1, prompt_logprobs=0))],
        [StepItem(1, 0, 11, [2, 3, 4], 1, 0)],
    ),
}


@pytest.mark.parametrize("complaint", _BREACHES)
def test_a_breach_is_named(complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        worker = _worker()
        worker.submit(_BREACHES[complaint])


def test_a_score_of_a_position_outside_the_step_is_named() -> None:
    start = _start(1, [1, 2, 3, 4, 5, 6, 7], SamplingParams(seed=1, prompt_logprobs=0))
    with pytest.raises(InternalError, match="scored from a position that is not computed in this step"):
        _worker().submit(Step(1, [], [start], [StepItem(1, 4, 2, [0, 2], 0, 3)]))


def test_a_token_beyond_the_longest_sequence_is_named() -> None:
    worker = ScriptedExecutor(limits_of(max_model_len=4))
    with pytest.raises(InternalError, match="sampled beyond the longest sequence"):
        worker.submit(Step(0, [], [_start(0, [1, 2, 3, 4])], [StepItem(0, 0, 4, [0], 1)]))


def test_a_lost_step_takes_the_later_ones_and_all_state_with_it() -> None:
    def fault(step: Step) -> Exception | None:
        return MemoryError("no room") if step.number == 0 else None

    worker = ScriptedExecutor(limits_of(), fault=fault)
    worker.submit(Step(0, [], [_start(0, [1])], [StepItem(0, 0, 1, [0], 1)]))
    worker.submit(Step(1, [], [], [StepItem(0, 1, 1, [], 1)]))
    with pytest.raises(StepError, match="step 0 failed: no room") as caught:
        worker.result()
    assert caught.value.kind == "MemoryError"
    assert worker.pending == 0 and not worker.live
    worker.submit(Step(2, [0], [_start(1, [1])], [StepItem(1, 0, 1, [0], 1)]))
    assert _draws(worker) == [scripted_token([1], 40)]


def test_results_are_announced() -> None:
    heard: list[int] = []
    worker: Executor = ScriptedExecutor(limits_of())
    worker.on_result(lambda: heard.append(worker.pending))
    worker.submit(Step(0, [], [_start(0, [1])], [StepItem(0, 0, 1, [0], 1)]))
    assert heard == [1] and worker.statistics() == {"sequences": 1}
    worker.close()
    assert worker.result() is None
