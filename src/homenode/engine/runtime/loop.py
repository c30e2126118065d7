"""The engine's loop: messages in, steps out, outputs back. It never polls: it sleeps until a message, a result or a
deadline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from homenode.engine.binding import EngineBinding
from homenode.engine.errors import StepError, StepsLostError
from homenode.engine.executor.base import Executor
from homenode.engine.fronts.messages import AbortFront
from homenode.engine.fronts.numbers import front_of
from homenode.engine.kv.chunks import PageChange
from homenode.engine.kv_disk.messages import BlocksMoved
from homenode.engine.kv_transfer.agent import Agent, AgentLost, StatsChanged, without_agent
from homenode.engine.memory.headroom import Headroom
from homenode.engine.messages import (
    Abort,
    DiskStats,
    Drain,
    EngineStats,
    FreeCpusChanged,
    Heartbeat,
    ListRequests,
    MoveEngine,
    Output,
    Outputs,
    Ping,
    ReleaseKv,
    RequestList,
    ResetPrefixCache,
    ServingChanged,
    Submit,
    ToEngine,
    ToFront,
)
from homenode.engine.plan.cpu_contention import interrupted
from homenode.engine.request import Request
from homenode.engine.runtime.held_requests import HeldRequests
from homenode.engine.runtime.inbox import Inbox
from homenode.engine.scheduler.events import (
    Aborted,
    BlocksArrived,
    BlocksFailed,
    BlocksStored,
    CacheReset,
    DrainStarted,
    Emit,
    Event,
    Instruction,
    KvHeadroom,
    RequestArrived,
    StepDone,
    StepFailed,
    Ticked,
    ToTransfer,
    Warn,
    WorkersBack,
    WorkersLost,
)
from homenode.engine.step import Step
from homenode.errors import CapacityError, InternalError
from homenode.transfer.scheduler_events import Released, ToScheduler

_log = logging.getLogger(__name__)
_STATISTICS_EVERY_S = 0.1
_LOG_EVERY_S = 10.0
_LONGEST_WAIT_S = 3600.0
_MOST_FAILURES = 5  # failed steps in a row after which the engine gives up...
# ...apart from those a request can cause: no client shall be able to end the engine.
_OF_REQUESTS = ("MemoryError", "ValueError")
_OF_THE_MACHINE = ("MemoryError", "HostError")  # no bug of ours, and none is to be reported


class StepScheduler(Protocol):
    """The part that the loop needs of `scheduler.scheduler.Scheduler`."""

    def apply(self, event: Event) -> list[Instruction]: ...

    def next_step(self) -> Step | None: ...

    def instructions(self) -> list[Instruction]: ...

    def statistics(self) -> EngineStats: ...

    def list_requests(self, number: int, most: int, now: float) -> RequestList: ...

    def lends_next(self) -> tuple[str, ...]: ...

    def wants_headroom(self) -> bool: ...

    def page_changes(self) -> list[PageChange]: ...

    def has_work(self) -> bool: ...

    def has_requests(self) -> bool: ...

    def next_deadline(self) -> float | None: ...


class KvDisk(Protocol):
    """The part that the loop needs of `kv_disk.setup.KvDiskLink`."""

    def figures(self) -> DiskStats: ...

    def release_session(self, session: str) -> None: ...


class KvEvents(Protocol):
    """The part that the loop needs of `kv_events.link.KvEventsLink`."""

    def pass_on(self) -> None: ...

    def look_at_stores(self) -> None: ...


class _StepResult:
    """Left in the inbox when a step's result can be taken."""


_RESULT = _StepResult()


class _GrammarReady(msgspec.Struct):
    """Left in the inbox when the grammar of a request that is held was made."""

    request_id: int


class _Stop:
    """Left in the inbox to end the loop."""


class EngineCore:
    """Connects a scheduler, an executor and the front. `run` is for one thread; `post` and `stop` may be called from
    any.
    """

    def __init__(
        self,
        scheduler: StepScheduler,
        executor: Executor,
        send: Callable[[ToFront], None],
        *,
        inbox: SimpleQueue[object] | Inbox | None = None,
        agent: Agent | None = None,
        disk: KvDisk | None = None,
        events: KvEvents | None = None,
        headroom: Callable[[], Headroom] | None = None,
        log_stats: bool = True,
        move: Callable[[EngineBinding], None] = lambda place: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` gives a message to the front; `inbox` may already hold messages that came while the model was loaded.
        `agent` hands KV over, to or from other engines, and leaves its events in the inbox; whoever made it closes it.
        `disk` keeps KV, and leaves its events in the inbox, too. `events` tells routers which blocks are held.
        `headroom` says what the machine can give to KV memory that grows; None: it does not. `move` has one of several
        engines compute elsewhere, after the steps submitted so far.
        """
        self._scheduler, self._executor, self._send, self._clock = scheduler, executor, send, clock
        self._agent, self._disk, self._events = agent, disk, events
        self._headroom, self._move = headroom, move
        self._inbox: SimpleQueue[object] | Inbox = SimpleQueue() if inbox is None else inbox
        self._log_stats = log_stats
        self._lent_next: tuple[str, ...] = ()  # tickets of which the next result brings the last pages
        self._outputs: list[Output] = []
        self._live: set[int] = set()
        self._held = HeldRequests(clock)
        self._failures = 0
        self._workers_lost = False
        self._crowded = False  # and told so
        self._drain_ends: float | None = None
        self._stopped = False
        self._changed = True  # since statistics were last sent
        self._sent_at = self._logged_at = clock()
        self._logged = EngineStats()

    def post(self, message: ToEngine | FreeCpusChanged) -> None:
        """Give the loop a message, or one that it is to tell the front."""
        self._inbox.put(message)

    def give(self, message: object) -> None:
        """Leave it something of a part that works beside it, such as KV on disk. From any thread."""
        self._inbox.put(message)

    def stop(self) -> None:
        """End the loop after the messages posted so far; requests that are not finished get no further output."""
        self._inbox.put(_Stop())

    def run(self) -> None:
        """Work until drained or stopped. Raises InternalError when steps keep failing, workers are lost for good, or
        the scheduler finds a contradiction.
        """
        self._executor.on_result(self._result_came)
        while True:
            self._submit_steps()
            self._flush()
            if self._stopped or self._drained():
                return
            for item in self._arrivals():
                self._take(item)
            self._look_at_the_clock()

    def _result_came(self) -> None:
        """On the executor's thread: whoever waits for pages that the step has made can wake up while the loop does."""
        lent, self._lent_next = self._lent_next, ()
        if lent and self._agent is not None:
            self._agent.promise(lent)
        self._inbox.put(_RESULT)

    # Waiting

    def _arrivals(self) -> list[object]:
        """Return what came in; waits for something, or for the next deadline."""
        try:
            items = [self._inbox.get(timeout=self._time_left())]
        except Empty:
            return []
        while not self._inbox.empty():  # nobody else takes from it
            items.append(self._inbox.get())
        return items

    def _time_left(self) -> float | None:
        """Seconds until something is due, an hour at most; None: nothing is."""
        due = [t for t in (self._scheduler.next_deadline(), self._drain_ends, self._held.next_due()) if t is not None]
        if self._changed:
            due.append(self._sent_at + _STATISTICS_EVERY_S)
        return min(max(0.0, min(due) - self._clock()), _LONGEST_WAIT_S) if due else None

    # Taking in

    def _take(self, item: object) -> None:
        match item:
            case _StepResult():
                self._take_result()
            case Submit(requests):
                for request in requests:
                    self._submit(request)
            case _GrammarReady(request_id):
                self._admit(self._held.release(request_id))
            case Abort(ids, reason):
                self._abort(ids, reason)
            case ReleaseKv(ticket, _) if "/" in ticket:
                if self._disk is not None:
                    self._disk.release_session(ticket)
            case ReleaseKv(ticket, reason):
                if self._agent is not None:
                    self._agent.tell(Released(ticket, reason))
            case ResetPrefixCache():
                self._apply(CacheReset(self._clock()))
            case StatsChanged():
                self._changed = True
                if self._events is not None:
                    self._events.look_at_stores()
            case AgentLost(reason):
                raise InternalError(f"the agent that hands KV over has ended: {reason}")
            case AbortFront(front):
                self._abort([each for each in self._live if front_of(each) == front])
            case Ping(number):
                self._send(Heartbeat(number, self._clock()))
            case ListRequests(number, most):
                self._send(self._scheduler.list_requests(number, most, self._clock()))
            case FreeCpusChanged():
                self._send(item)
            case MoveEngine(place):
                self._move(place)
            case Drain(timeout_s):
                self._drain_ends = self._clock() + timeout_s
                self._admit(self._held.release_all())
                self._apply(DrainStarted(self._clock()))
            case _Stop():
                self._stopped = True
            case BlocksMoved("arrived", key, tokens):
                self._apply(BlocksArrived(self._clock(), key, tokens))
            case BlocksMoved("failed", key):
                self._apply(BlocksFailed(self._clock(), key))
            case BlocksMoved("stored", key):
                self._apply(BlocksStored(self._clock(), key))
            case _ if isinstance(item, ToScheduler):
                self._apply(item)
            case _:
                raise InternalError(
                    f"the engine's inbox held a {type(item).__name__}, which is no message to the engine"
                )

    def _abort(self, ids: Sequence[int], reason: str = "abort") -> None:
        for request_id in ids:
            self._admit(self._held.release(request_id))
            self._apply(Aborted(self._clock(), request_id, reason))

    def _submit(self, request: Request) -> None:
        refusal = without_agent(request) if self._agent is None else None
        if refusal is not None:
            self._outputs.append(refusal)
            return
        self._live.add(request.id)
        grammar = request.params.grammar
        if grammar is not None and self._drain_ends is None:
            ready = partial(self._inbox.put, _GrammarReady(request.id))
            if self._executor.prepare_grammar(grammar, ready):
                self._held.hold(request)
                return
        self._admit([request])

    def _admit(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._apply(RequestArrived(self._clock(), request))

    def _take_result(self) -> None:
        """A result, a failure, a loss, or the end of one."""
        if self._workers_lost and self._executor.serving:
            self._take_workers_back()
        try:
            result = self._executor.result(0)
        except StepsLostError as error:
            self._lose_workers(error)
            return
        except StepError as error:
            self._step_failed(error)
            return
        if result is None:  # of a step that was lost with a failed one; or figures are new
            self._changed = True
        else:
            self._failures = 0
            self._apply(StepDone(self._clock(), result))

    def _step_failed(self, error: StepError) -> None:
        _log.error("%s", error.message)
        self._failures += error.kind not in _OF_REQUESTS
        kind = "HostError" if error.kind in _OF_THE_MACHINE else "InternalError"
        self._apply(StepFailed(self._clock(), error.message, kind))
        if error.fatal or self._failures >= _MOST_FAILURES:
            self._flush()
            raise InternalError(
                f"steps keep failing, the engine gives up after {self._failures} in a row; the last: {error.message}"
            )

    def _lose_workers(self, error: StepsLostError) -> None:
        """Whoever was being computed waits until they are back, as do newcomers."""
        _log.error("%s", error.message)
        if error.fatal:
            self._flush()
            raise InternalError(f"the engine gives up: {error.message}")
        self._workers_lost = True
        self._apply(WorkersLost(self._clock(), error.message))
        self._send(ServingChanged(False, error.message))
        if self._executor.serving:  # back already, and perhaps that was told before this was taken
            self._take_workers_back()

    def _take_workers_back(self) -> None:
        self._workers_lost = False
        _log.info("the workers are back")
        self._apply(WorkersBack(self._clock()))
        self._send(ServingChanged(True))

    def _look_at_the_clock(self) -> None:
        self._admit(self._held.release_due())
        now = self._clock()
        deadline = self._scheduler.next_deadline()
        if deadline is not None and deadline <= now:
            self._apply(Ticked(now))
        if self._drain_ends is not None and self._drain_ends <= now and self._live:
            _log.warning("the drain's time is over: %d requests are aborted", len(self._live))
            for request_id in sorted(self._live):
                self._apply(Aborted(now, request_id))

    def _apply(self, event: Event) -> None:
        self._changed = True
        self._obey(self._scheduler.apply(event))

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Emit(outputs):
                    self._outputs += outputs
                    self._live.difference_update([output.id for output in outputs if output.finish_reason is not None])
                case ToTransfer(told):
                    # Requests with a ticket were refused, and nobody else tells of tickets.
                    assert self._agent is not None
                    self._agent.tell(told)
                case Warn(message, request):
                    _log.warning("%s", message, extra={"request_id": request})

    # Giving out

    def _submit_steps(self) -> None:
        """Keep the executor busy before anything else; the outputs can wait those microseconds."""
        while self._executor.serving and (step := self._next_step()) is not None:
            self._change_pages()
            self._executor.submit(step)
        self._change_pages()
        if self._agent is not None:
            self._lent_next = self._scheduler.lends_next()
        self._obey(self._scheduler.instructions())

    def _next_step(self) -> Step | None:
        """The next step. The machine is looked at before KV memory grows for it."""
        if self._headroom is not None and self._scheduler.wants_headroom():
            there = self._headroom()
            self._apply(KvHeadroom(self._clock(), there.nbytes, there.reason))
        return self._scheduler.next_step()

    def _change_pages(self) -> None:
        """Have pages of KV memory taken and given back, after the steps sent so far and before those that follow."""
        if self._headroom is not None and self._executor.serving and (changes := self._scheduler.page_changes()):
            self._executor.change_pages(changes)

    def _flush(self) -> None:
        """Figures go before the outputs: whoever has the end of the last answer finds that nothing runs any more."""
        now, rests = self._clock(), not self._scheduler.has_requests()
        if self._events is not None:
            self._events.pass_on()
        if self._changed and (rests or now - self._sent_at >= _STATISTICS_EVERY_S):
            self._sent_at = now
            self._send_figures(now)
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._send_outputs(outputs)

    def _send_figures(self, now: float) -> None:
        """Those that the machine has no memory or descriptor for are sent a little later: no request shall end for the
        sake of figures.
        """
        try:
            transfer = self._agent.figures() if self._agent is not None else None
            stats = msgspec.structs.replace(
                self._scheduler.statistics(),
                compute=self._executor.statistics(),
                transfer=transfer,
                disk=self._disk.figures() if self._disk is not None else None,
            )
        except (MemoryError, OSError) as error:
            _log.warning("the figures could not be had this time: %s: %s", type(error).__name__, error)
            return
        self._changed = False
        self._send(stats)
        self._look_for_interruptions(stats)
        self._log_figures(stats, now)

    def _send_outputs(self, outputs: list[Output]) -> None:
        """Send the outputs in one message; if that is too large for a frame one by one, and an output too large by
        itself ends its request.
        """
        try:
            self._send(Outputs(outputs))
            return
        except CapacityError:
            ended: set[int] = set()
        for output in outputs:
            if output.id in ended:
                continue
            try:
                self._send(Outputs([output]))
            except CapacityError as error:
                ended.add(output.id)
                self._give_up(output.id, error)

    def _give_up(self, request_id: int, error: CapacityError) -> None:
        text = f"an output of this request is too large to be sent: {error.message} Ask for fewer log-probabilities."
        self._send(Outputs([Output(request_id, finish_reason="error", error=text, error_kind="CapacityError")]))
        self._live.discard(request_id)
        self._apply(Aborted(self._clock(), request_id))
        self._outputs = [output for output in self._outputs if output.id != request_id]  # its end has just been told

    def _look_for_interruptions(self, stats: EngineStats) -> None:
        """Say once that the threads that compute do not get their CPUs."""
        if not self._crowded and (finding := interrupted(stats.compute)):
            self._crowded = True
            _log.warning("%s", finding.text)

    def _log_figures(self, stats: EngineStats, now: float) -> None:
        """One line every ten seconds, if something was computed meanwhile."""
        seconds = now - self._logged_at
        if not self._log_stats or seconds < _LOG_EVERY_S:
            return
        before, self._logged, self._logged_at = self._logged, stats, now
        if stats.steps == before.steps:
            return
        _log.info(
            "prompt %.1f tok/s, generation %.1f tok/s, running %d, waiting %d, KV usage %.1f %%, prefix hits %.1f "
            "%%, preemptions %d",
            (stats.prompt_tokens - before.prompt_tokens) / seconds,
            (stats.generation_tokens - before.generation_tokens) / seconds,
            stats.num_running,
            stats.num_waiting,
            100 * stats.kv_usage,
            100 * stats.prefix_hits / max(1, stats.prefix_queries),
            stats.preemptions,
        )

    def _drained(self) -> bool:
        """A drain was asked for and nothing is left to do, or its time is over and all was aborted."""
        if self._drain_ends is None:
            return False
        return not self._scheduler.has_work() or (self._drain_ends <= self._clock() and not self._live)
