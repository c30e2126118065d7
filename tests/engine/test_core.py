"""The loop with a scripted worker: outputs, order, rest, drains, failures, deadlines, wake latency."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.binding import EngineBinding
from homenode.engine.errors import StepError
from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.messages import (
    Abort,
    Drain,
    EngineStats,
    FreeCpusChanged,
    Heartbeat,
    MoveEngine,
    Output,
    Outputs,
    Ping,
    Submit,
    ToFront,
)
from homenode.engine.request import Request
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Step, StepResult, WorkerLimits
from homenode.errors import CapacityError, HostError, InternalError
from homenode.sampling import SamplingParams
from homenode.testing.scripted_executor import ScriptedExecutor, scripted_token
from tests.waiting import PATIENCE_S

LIMITS = WorkerLimits(num_blocks=64, block_size=32, max_model_len=512, vocab_size=1000, max_sampled_rows=256)
EOS = 999


class ScriptedRunner:
    """The scripted worker as a step runner. `gate`, if given, must be released once for each step."""

    def __init__(
        self, fault: Callable[[Step], Exception | None] | None = None, gate: threading.Semaphore | None = None
    ) -> None:
        self._fault, self._gate = fault, gate
        self._worker = ScriptedExecutor(LIMITS)
        self.begun: list[float] = []

    def execute(self, step: Step) -> StepResult:
        self.begun.append(time.monotonic())
        if self._gate is not None:
            self._gate.acquire()
        error = self._fault(step) if self._fault else None
        if error is not None:
            self._worker = ScriptedExecutor(LIMITS)  # a failed step takes the state of its sequences with it
            raise error
        live = self._worker.live
        self._worker.submit(Step(step.number, [seq for seq in step.ends if seq in live], step.starts, step.items))
        result = self._worker.result()
        assert result is not None
        return result


class Front:
    """The other end of the loop: collects what it sends."""

    def __init__(self, core: EngineCore, sent: SimpleQueue[ToFront], runner: ScriptedRunner) -> None:
        self.core, self.runner, self.sent = core, runner, sent
        self.statistics: list[EngineStats] = []
        self.outputs: dict[int, list[Output]] = {}
        self.failure: Exception | None = None
        self.ended = threading.Event()

    def next(self, kind: type[Any]) -> Any:
        """The next message of a kind; everything before it is noted."""
        while True:
            message = self.sent.get(timeout=PATIENCE_S)
            if isinstance(message, EngineStats):
                self.statistics.append(message)
            if isinstance(message, Outputs):
                for output in message.outputs:
                    self.outputs.setdefault(output.id, []).append(output)
            if isinstance(message, kind):
                return message

    def finish(self, *ids: int) -> None:
        """Wait until these requests have had their last output."""
        while not all(self.outputs.get(i) and self.outputs[i][-1].finish_reason for i in ids):
            self.next(Outputs)

    def tokens(self, request_id: int) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.tokens]


@contextmanager
def running(
    config: SchedulerConfig | None = None,
    fault: Callable[[Step], Exception | None] | None = None,
    gate: threading.Semaphore | None = None,
    lookahead: int = 1,
    refuses: Callable[[ToFront], bool] = lambda message: False,
    figures: Callable[[], dict[str, Any]] = dict,
    grammars: Callable[[str], Future[None] | None] = lambda grammar: None,
    move: Callable[[EngineBinding], None] = lambda place: None,
) -> Iterator[Front]:
    runner = ScriptedRunner(fault, gate)
    executor = InlineExecutor(runner, LIMITS, figures, prepare_grammar=grammars)
    scheduler = Scheduler(
        config or SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        KvConfig(block_size=32),
        LIMITS,
        {EOS},
        b"k" * 32,
        lookahead,
    )
    sent: SimpleQueue[ToFront] = SimpleQueue()

    def send(message: ToFront) -> None:
        if refuses(message):
            raise CapacityError("the frame is too large")
        sent.put(message)

    core = EngineCore(scheduler, executor, send, move=move)
    front = Front(core, sent, runner)

    def run() -> None:
        try:
            core.run()
        except Exception as error:
            front.failure = error
        front.ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield front
    finally:
        if gate is not None:
            gate.release(10_000)
        core.stop()
        thread.join(PATIENCE_S)
        executor.close()
    assert not thread.is_alive()


def request(number: int, prompt: list[int], max_tokens: int = 5, deadline: float | None = None) -> Request:
    return Request(
        id=number,
        prompt_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
        deadline=deadline,
    )


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(scripted_token(tokens, LIMITS.vocab_size))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_many_requests_each_get_their_own_tokens_and_one_end(lookahead: int) -> None:
    with running(lookahead=lookahead) as front:
        prompts = {i: [i, *range(i)] for i in range(1, 30)}
        front.core.post(Submit([request(i, p, 20) for i, p in prompts.items()]))
        front.finish(*prompts)
        for i, prompt in prompts.items():
            assert front.tokens(i) == expected(prompt, 20)
            assert [o.finish_reason for o in front.outputs[i] if o.finish_reason] == ["length"]


def test_at_rest_the_figures_are_sent_and_nothing_more() -> None:
    with running() as front:
        front.core.post(Submit([request(1, [5, 6], 3)]))
        front.finish(1)
        while not (front.statistics and front.statistics[-1].generation_tokens == 3):
            front.next(EngineStats)
        last = front.statistics[-1]
        assert (last.num_running, last.num_waiting, last.kv_usage, last.prompt_tokens) == (0, 0, 0, 2)
        sent = len(front.statistics)
        for number in range(3):
            front.core.post(Ping(number))
            assert front.next(Heartbeat).number == number
        assert len(front.statistics) == sent
        assert front.sent.empty()


def test_the_loop_plans_a_step_while_one_computes() -> None:
    gate = threading.Semaphore(0)
    with running(gate=gate) as front:
        front.core.post(Submit([request(1, [5], 3)]))
        gate.release()
        front.next(Outputs)  # step 0 came back; 1 is computed, 2 was planned with a token nobody knows yet
        front.core.post(Ping(1))
        front.next(Heartbeat)  # the loop answers while the worker is stuck
        gate.release(2)
        front.finish(1)
        assert front.tokens(1) == expected([5], 3)
        # Whoever has the end of the last answer finds in the figures that nothing runs any more.
        assert (front.statistics[-1].steps, front.statistics[-1].num_running) == (3, 0)


def test_an_aborted_request_ends_with_its_reason_and_others_go_on() -> None:
    gate = threading.Semaphore(0)
    with running(gate=gate) as front:
        front.core.post(Submit([request(1, [5], 400), request(2, [6], 4)]))
        gate.release()
        front.next(Outputs)
        front.core.post(Abort([1, 77], "stop"))
        gate.release(1000)
        front.finish(1, 2)
        assert front.outputs[1][-1].finish_reason == "stop"
        assert front.tokens(2) == expected([6], 4)


def test_a_deadline_ends_a_request_without_any_other_event() -> None:
    gate = threading.Semaphore(0)
    with running(gate=gate) as front:
        front.core.post(Submit([request(1, [5], 400, deadline=time.monotonic() + 0.3)]))
        front.finish(1)
        assert front.outputs[1][-1].error is not None
        assert "deadline" in front.outputs[1][-1].error


def test_a_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    gate = threading.Semaphore(0)
    with running(gate=gate) as front:
        front.core.post(Submit([request(1, [5], 30)]))
        gate.release()
        front.next(Outputs)
        front.core.post(Drain(3600))
        front.core.post(Submit([request(2, [6])]))
        front.finish(2)
        assert front.outputs[2][-1].error_kind == "OverloadedError"
        gate.release(1000)
        front.finish(1)
        assert front.tokens(1) == expected([5], 30)
        assert front.ended.wait(PATIENCE_S)
    assert front.failure is None


def test_a_drain_whose_time_is_over_aborts() -> None:
    gate = threading.Semaphore(0)
    with running(gate=gate) as front:
        front.core.post(Submit([request(1, [5], 400)]))
        gate.release()
        front.next(Outputs)
        front.core.post(Drain(0.05))
        front.finish(1)
        assert front.outputs[1][-1].finish_reason == "abort"
        assert front.ended.wait(PATIENCE_S)


def failing(times: int, error: Exception) -> Callable[[Step], Exception | None]:
    """Fails the first `times` steps."""
    left = [times]

    def fault(step: Step) -> Exception | None:
        left[0] -= 1
        return error if left[0] >= 0 else None

    return fault


@pytest.mark.parametrize("error", [MemoryError(), ValueError("row 3 of the logits holds a NaN"), RuntimeError("oops")])
def test_a_failed_step_ends_its_requests_and_the_engine_lives_on(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL), running(fault=failing(1, error)) as front:
        front.core.post(Submit([request(1, [5], 30)]))
        front.finish(1)
        last = front.outputs[1][-1]
        assert last.finish_reason == "error"
        assert type(error).__name__ in str(last.error)
        assert str(error) in str(last.error)
        front.core.post(Submit([request(2, [6], 9), request(3, [7], 9)]))
        front.finish(2, 3)
        assert front.tokens(2) == expected([6], 9)
        assert front.tokens(3) == expected([7], 9)


def test_a_step_sent_before_the_failure_was_known_is_lost_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """With lookahead a second step is on its way when the first fails; the worker must not compute it."""
    gate = threading.Semaphore(0)
    with (
        caplog.at_level(logging.CRITICAL),
        running(fault=lambda s: ValueError("no") if s.number == 1 else None, gate=gate) as front,
    ):
        front.core.post(Submit([request(1, [5], 30), request(2, list(range(100)), 5)]))
        gate.release(1000)
        front.finish(1, 2)
        assert front.outputs[1][-1].error is not None
        front.core.post(Submit([request(3, [7], 9)]))
        front.finish(3)
        assert front.tokens(3) == expected([7], 9)


def test_steps_that_keep_failing_end_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), running(fault=failing(100, RuntimeError("broken"))) as front:
        for number in range(1, 6):
            front.core.post(Submit([request(number, [5])]))
            front.finish(number)
    assert isinstance(front.failure, InternalError)
    assert "broken" in str(front.failure)


def test_failures_between_successes_do_not_add_up(caplog: pytest.LogCaptureFixture) -> None:
    fault = lambda step: RuntimeError("now and then") if step.number % 3 else None  # noqa: E731
    with caplog.at_level(logging.CRITICAL), running(fault=fault) as front:
        for number in range(1, 40):
            front.core.post(Submit([request(number, [5], 1)]))
            front.finish(number)
    assert front.failure is None


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a NaN")])
def test_what_requests_can_cause_never_ends_the_engine(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), running(fault=failing(20, error)) as front:
        for number in range(1, 21):
            front.core.post(Submit([request(number, [5])]))
            front.finish(number)
        front.core.post(Submit([request(50, [5], 4)]))
        front.finish(50)
        assert front.tokens(50) == expected([5], 4)


def test_an_output_too_large_for_a_frame_ends_its_request_only() -> None:
    """Here: whatever holds a token of request 1, or outputs of more than two requests at once."""

    def refuses(message: ToFront) -> bool:
        return isinstance(message, Outputs) and (
            len(message.outputs) > 2 or any(o.id == 1 and o.tokens for o in message.outputs)
        )

    with running(refuses=refuses) as front:
        front.core.post(Submit([request(i, [5, i], 20) for i in (1, 2, 3)]))
        front.finish(1, 2, 3)
        assert [o.error_kind for o in front.outputs[1]] == ["CapacityError"]
        assert "too large" in str(front.outputs[1][0].error)
        assert [front.tokens(i) for i in (2, 3)] == [expected([5, i], 20) for i in (2, 3)]


def test_the_executor_gives_results_in_order_and_ends() -> None:
    class Runner:
        def execute(self, step: Step) -> StepResult:
            if step.number == 2:
                raise ValueError("two")
            return StepResult(step.number, [])

    called = threading.Semaphore(0)
    executor = InlineExecutor(Runner(), LIMITS)
    executor.on_result(called.release)
    for number in range(5):
        executor.submit(Step(number, [], [], []))
    assert executor.pending == 5
    for number in range(2):
        assert executor.result(PATIENCE_S) == StepResult(number, [])
    with pytest.raises(StepError, match="ValueError: two"):
        executor.result(PATIENCE_S)
    assert executor.pending == 0
    assert executor.result(0) is None
    executor.submit(Step(9, [], [], []))
    assert executor.result(PATIENCE_S) == StepResult(9, [])
    assert all(called.acquire(timeout=PATIENCE_S) for _ in range(4))  # 0, 1, the failure and 9; 3 and 4 never came back
    executor.close()
    executor.close()


def test_threads_move_between_two_steps_and_one_that_cannot_ends_nothing() -> None:
    told: list[object] = []

    class Runner:
        def execute(self, step: Step) -> StepResult:
            told.append(step.number)
            return StepResult(step.number, [])

    def move(place: EngineBinding) -> None:
        told.append(place)
        if place.team == (2,):
            raise HostError("CPU 2 is offline")

    executor = InlineExecutor(Runner(), LIMITS, move=move)
    called = threading.Semaphore(0)
    executor.on_result(called.release)
    places = [EngineBinding((cpu,)) for cpu in (-1, 2)]
    for number, place in enumerate(places):
        executor.submit(Step(number, [], [], []))
        executor.move([place])
    executor.submit(Step(2, [], [], []))
    for number in range(3):
        assert executor.result(PATIENCE_S) == StepResult(number, [])
    assert told == [0, places[0], 1, places[1], 2]
    assert all(called.acquire(timeout=PATIENCE_S) for _ in range(5)), "figures change with places"
    assert executor.processes == (os.getpid(),)
    executor.close()


def test_one_of_several_engines_goes_where_its_front_says() -> None:
    moved: list[EngineBinding] = []
    with running(move=moved.append) as front:
        front.core.post(MoveEngine(EngineBinding((3,))))
        front.core.post(FreeCpusChanged([1]))
        assert front.next(FreeCpusChanged) == FreeCpusChanged([1])
    assert moved == [EngineBinding((3,))]


def test_wake_latency_of_an_idle_loop() -> None:
    """From handing in a request to its first step beginning to compute. The bound is generous for busy machines; the
    figure is printed.
    """
    with running() as front:
        waits = []
        for number in range(1, 101):
            steps = len(front.runner.begun)
            begin = time.monotonic()
            front.core.post(Submit([request(number, [5, number], 1)]))
            front.finish(number)
            waits.append(front.runner.begun[steps] - begin)
        waits.sort()
        print(f"\nwake latency, submit to step: median {1e6 * waits[50]:.0f} us, 95 % {1e6 * waits[95]:.0f} us")
        assert waits[50] < 0.05


def test_threads_without_their_cpus_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "homenode.engine.runtime.loop"),
        running(figures=lambda: {"lost_cpu_shares": [0.0, 0.4]}) as front,
    ):
        for number in range(3):
            front.core.post(Submit([request(number, [1, 2, 3])]))
            front.finish(number)
        while len(front.statistics) < 2:  # as often they could have been said
            front.next(EngineStats)
    assert [
        r.levelname for r in caplog.records if "1 of 2 compute threads were interrupted: up to 40%" in r.getMessage()
    ] == ["WARNING"]


@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), OSError(24, "Too many open files")])
def test_figures_that_cannot_be_had_end_no_request(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    refusals = [error] * 3

    def figures() -> dict[str, Any]:
        if refusals:
            raise refusals.pop()
        return {"threads": 2}

    with caplog.at_level(logging.CRITICAL), running(figures=figures) as front:
        front.core.post(Submit([request(1, [5, 6], 3)]))
        front.finish(1)
        assert front.tokens(1) == expected([5, 6], 3)
        while not (front.statistics and front.statistics[-1].generation_tokens == 3):
            front.next(EngineStats)
        assert front.statistics[-1].compute == {"threads": 2}
        assert not refusals and front.failure is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [(MemoryError("no room"), "HostError"), (ValueError("no"), "InternalError"), (RuntimeError("no"), "InternalError")],
)
def test_a_step_without_memory_is_no_bug(error: Exception, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), running(fault=failing(1, error)) as front:
        front.core.post(Submit([request(1, [5, 6], 3)]))
        front.finish(1)
        assert front.outputs[1][-1].error_kind == kind
