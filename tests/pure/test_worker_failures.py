"""When workers count as lost, and who is to blame for what others waited for: told by the clock alone, without a
process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from homenode.engine.binding import EngineBinding
from homenode.engine.channels.messages import LivenessProbe, WorkerStepDone, WorkerStepFailed
from homenode.engine.executor.traffic import StepTraffic
from homenode.engine.executor.worker_failures import Silence, WorkerFailures
from homenode.engine.executor.worker_handle import WorkerHandle
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.step import Advance, Step, StepItem, StepResult
from homenode.model.part import IndexRange, ModelPart

NOTHING = IndexRange(0, 0)


@dataclass
class Wire:
    """What would be a connection."""

    sent: list[Any] = field(default_factory=list)
    full: bool = False

    def send(self, message: Any, descriptors: Any = ()) -> bool:
        self.sent.append(message)
        return not self.full

    def send_frame(self, frame: bytes, descriptors: Any = ()) -> bool:
        return self.send(frame)


@dataclass
class Process:
    """What would be a worker's."""

    name: str
    socket: Any = field(default_factory=Wire)

    def end(self, patience_s: float) -> None:
        raise AssertionError("nobody is to be ended here")

    def how_it_ended(self, patience_s: float) -> str:
        raise AssertionError("nobody has ended here")


def members(stages: int, **state: Any) -> list[WorkerHandle]:
    found = []
    for stage in range(stages):
        part = ModelPart(
            IndexRange(stage, 1), stage, stages, 0, 1, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, ()
        )
        plan = WorkerPlan(stage, f"w{stage}", "cpu", part, EngineBinding((0,)))
        found.append(WorkerHandle(plan, Process(f"w{stage}"), **{"state": "ready", "spoke": True, **state}))
    return found


def wire(member: WorkerHandle) -> Wire:
    socket: Any = member.process.socket
    assert isinstance(socket, Wire)
    return socket


def traffic(crew: list[WorkerHandle], all_done: bool = False) -> StepTraffic:
    return StepTraffic([member.plan for member in crew], all_done)


STEP = Step(1, [], [], [StepItem(7, 0, 1, [0], 1)])


def test_the_sixth_loss_within_a_minute_is_the_last() -> None:
    record = WorkerFailures()
    for second in range(0, 50, 10):
        assert not record.count({1: "w1 ended"}, 2, float(second)).fatal
    loss = record.count({1: "w1 ended", 0: "w0 too"}, 2, 55.0)
    assert (
        loss.fatal
        and loss.text == "6 losses of workers in 60 s, the last: worker 0, 1 of 2 is being replaced: w1 ended; w0 too"
    )
    apart = WorkerFailures()
    for n in range(100):
        assert not apart.count({0: "w0 ended"}, 2, 13.0 * n).fatal
        apart.recovered()


def test_the_sixth_loss_in_a_row_is_the_last_however_long_each_took() -> None:
    record = WorkerFailures()
    for n in range(5):
        assert not record.count({0: "w0 ended"}, 2, 600.0 * n).fatal
    loss = record.count({0: "w0 ended"}, 2, 3000.0)
    assert loss.fatal and loss.text.startswith("6 losses of workers in a row, the last: worker 0 of 2")


def test_whoever_does_not_answer_is_lost_and_busy_ones_are_asked_as_well() -> None:
    crew, silence = members(2), Silence(8.0, 0.0)
    assert silence.every == 2.0
    for second in (1.0, 2.0, 3.0):
        crew[0].heard_at = second  # of steps that it has done
        assert silence.silent_workers(crew, second) == {}
    assert [len(wire(member).sent) for member in crew] == [1, 1] and isinstance(wire(crew[0]).sent[0], LivenessProbe)
    crew[0].asked_at, crew[0].told_at = None, 3.0
    for second in (5.0, 7.0, 9.0, 10.0):
        assert silence.silent_workers(crew, second) == {}
    assert silence.silent_workers(crew, 10.5) == {1: "did not answer for 8 s"}


def test_nobody_is_silent_while_this_process_stood_still() -> None:
    crew, silence = members(1, asked_at=0.5), Silence(8.0, 0.0)
    assert silence.silent_workers(crew, 100.0) == {} and crew[0].asked_at == 100.0, "asked anew"


def test_a_process_that_starts_has_a_minute_for_its_first_word() -> None:
    crew, silence = members(1, state="starting", spoke=False), Silence(2.0, 0.0)
    lost = [second / 2 for second in range(1, 200) if silence.silent_workers(crew, second / 2)]
    assert lost[0] == 61.0  # asked after half a second


def test_those_who_kept_others_waiting_are_guilty_a_moment_later() -> None:
    crew = members(3)
    ways = traffic(crew)
    assert not ways.submit(STEP, crew, 0.0)
    assert ways.done(crew[0], WorkerStepDone(StepResult(1, [], [], 0.5)), crew, 1.0) is None
    assert ways.time_left(9.0) is None and ways.guilty(9.0) is None
    assert ways.failed(crew[2], WorkerStepFailed(1, "PeerError", "nobody came"), 9.0) is None
    assert ways.time_left(9.25) == 0.75 and ways.guilty(9.25) is None
    found = ways.guilty(10.0)
    assert found is not None and found[0] == {1: "kept others waiting in step 1"}
    assert ways.guilty(11.0) is None, "once"


def test_a_failure_of_its_own_is_nobody_elses() -> None:
    crew = members(2)
    ways = traffic(crew)
    ways.submit(STEP, crew, 0.0)
    error = ways.failed(crew[1], WorkerStepFailed(1, "ValueError", "a NaN", fatal=False), 1.0)
    assert error is not None and (error.kind, error.message) == ("ValueError", "a NaN") and ways.time_left(1.0) is None


def test_tokens_are_told_to_those_who_do_not_draw() -> None:
    crew = members(2)
    wire(crew[0]).full = True
    ways = traffic(crew)
    assert ways.submit(STEP, crew, 0.0), "some of it waits"
    result = ways.done(crew[1], WorkerStepDone(StepResult(1, [Advance(7, [42])], [], 0.5)), crew, 1.0)
    assert result is not None and crew[0].drawn == [(7, 42)] and crew[1].drawn == []
    assert ways.stages(1.0) == [{"stage": 0, "busy_s": 0.0, "wait_s": 1.0}, {"stage": 1, "busy_s": 0.5, "wait_s": 0.5}]


def test_where_others_use_kv_memory_a_step_is_over_when_nobody_writes_for_it() -> None:
    """Rank 0 has the result; the others may not have written all keys and values of the step yet."""
    crew = members(3)
    ways, last = traffic(crew, all_done=True), crew[2]
    second = Step(2, [], [], [StepItem(7, 1, 1, [], 1)])
    ways.submit(STEP, crew, 0.0)
    ways.submit(second, crew, 0.0)
    for step in (1, 2):
        assert ways.done(last, WorkerStepDone(StepResult(step, [Advance(7, [40 + step])], [], 0.5)), crew, 1.0) is None
        assert ways.done(crew[0], WorkerStepDone(StepResult(step, [], [], 0.5)), crew, 1.0) is None
    assert crew[0].drawn == []
    for step in (1, 2):
        result = ways.done(crew[1], WorkerStepDone(StepResult(step, [], [], 0.5)), crew, 2.0)
        assert result is not None and (result.number, result.advances[0].tokens) == (step, [40 + step])
    assert crew[0].drawn == [(7, 41), (7, 42)]
    ways.submit(Step(3, [], [], [StepItem(7, 2, 1, [], 1)]), crew, 3.0)
    assert ways.done(last, WorkerStepDone(StepResult(3, [], [], 0.5)), crew, 3.0) is None
    ways.clear(3.0)
    assert ways.done(crew[1], WorkerStepDone(StepResult(3, [], [], 0.5)), crew, 3.0) is None, "it is lost"
