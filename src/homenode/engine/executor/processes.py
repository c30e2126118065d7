"""Computes in workers that are processes of this host: starts them, gives each step to all of them, and replaces those that are lost.

One thread does everything but submit: it reads what workers say, looks at the clock, and starts processes (whom the kernel ends with it).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from homenode.engine.executor.flights import Flights
from homenode.engine.executor.member import Member
from homenode.engine.executor.protocol import StepError, WorkerLostError
from homenode.engine.executor.worker_process import PROGRAM, StartedWorker, WorkerProcess
from homenode.engine.expert_table import Table
from homenode.engine.failures import named_error
from homenode.engine.schedule.step import Step, StepResult, WorkerLimits
from homenode.engine.wire import decode_body, encode_frame
from homenode.engine.workers.channels import Channels, MakeChannels
from homenode.engine.workers.layout import WorkerPlan
from homenode.engine.workers.messages import (
    Alive,
    Broken,
    Done,
    Failed,
    Fits,
    Forget,
    FromWorker,
    Join,
    Laid,
    Lay,
    Leave,
    Loading,
    Probe,
    Work,
)
from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.model.checkpoint.spec import ModelSpec

_log = logging.getLogger(__name__)
_START_TIMEOUT_S = 3600.0  # reading a large model from a slow disk takes its time; a dead worker is noticed at once
_LONGEST_PROBE_S = 5.0  # between two questions to a worker
_FIRST_WORD_S = 60.0  # a process that starts answers nothing before its interpreter has read the modules it needs
_BLAME_AFTER_S = 1.0  # those who waited for the same worker give up within this of each other
_MOST_LOSSES, _WITHIN_S = 5, 60.0
_END_S = 3.0  # for a worker to finish its step and end
_MOMENT_S = 0.5
_LAST_FIGURES_S = 1.0

Progress = Callable[[int, int], None]
JoinOf = Callable[[WorkerPlan], Join]  # as for generation 0 without channels
Launch = Callable[[WorkerPlan], StartedWorker]


class ProcessExecutor:
    """`Executor` over worker processes. `start`, then `lay`, before the first step."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        join_of: JoinOf,
        make_channels: MakeChannels,
        worker_timeout: float,
        program: str = PROGRAM,
        clock: Callable[[], float] = time.monotonic,
        launch: Launch | None = None,
        on_end: Callable[[], None] = lambda: None,
        experts: ModelSpec | None = None,
    ) -> None:
        """`plans`: stage after stage. `program`: the module that a worker runs. `worker_timeout`: seconds a worker may be silent. `launch`: starts a
        worker, at once and without waiting for it, in place of a child of this process; `on_end` is called when all have ended. `experts`: a model of whose experts the
        use is told in `statistics`."""
        self._launch: Launch = launch or (lambda plan: WorkerProcess(plan.name, program))
        self._on_end, self._experts = on_end, experts
        self._plans, self._join_of, self._make_channels = plans, join_of, make_channels
        self._timeout, self._clock = worker_timeout, clock
        self._probe_every = min(_LONGEST_PROBE_S, worker_timeout / 4)
        self._limits: WorkerLimits | None = None
        self._num_blocks = 0
        self._flights = Flights([plan.stage for plan in plans])
        self._members: list[Member] = []
        self._channels: Channels | None = None
        self._generation = 0
        self._serving = False
        self._told = True  # the loop knows of the last failure; until it does, what it submits is lost
        self._fatal: WorkerLostError | None = None
        self._blame: tuple[float, Failed] | None = None  # when to look who kept the others waiting, and what was said of it
        self._losses: deque[float] = deque()
        self._restarts = 0
        self._start_error: HomenodeError | None = None
        self._progress: Progress | None = None
        self._pending = 0
        self._results: SimpleQueue[StepResult | StepError] = SimpleQueue()
        self._notify: Callable[[], None] = lambda: None
        self._changed = threading.Condition()  # around everything that both threads use
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._closing = False
        self._probes = 0
        self._looked_at = clock()
        self._thread = threading.Thread(target=self._watch, name="homenode-workers", daemon=True)

    # Starting

    def start(self, progress: Progress | None = None) -> list[Fits]:
        """Start all workers and have them load their parts; what each says fits, in their order. Raises what a worker could not start for, under its
        own name, and PeerError when one ends or is silent; the executor is then to be closed."""
        self._progress = progress
        self._thread.start()
        self._wait(lambda: len(self._members) == len(self._plans) and all(m.fits for m in self._members), "loaded")
        return [m.fits for m in self._members if m.fits]

    def lay(self, limits: WorkerLimits) -> None:
        """Have all workers take KV memory of `limits.num_blocks` blocks and prepare to compute. Raises as `start`."""
        with self._changed:
            self._limits, self._num_blocks = limits, limits.num_blocks
            for member in self._members:
                self._lay(member)
        self._wait(lambda: self._serving, "ready")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._start_error is not None, _START_TIMEOUT_S):
                raise PeerError(f"not all workers were {what} within {_START_TIMEOUT_S:g} s")
            if self._start_error is not None:
                raise self._start_error

    # Use

    @property
    def serving(self) -> bool:
        """See `Executor.serving`."""
        return self._serving and self._told

    @property
    def pending(self) -> int:
        """See `Executor.pending`."""
        return self._pending

    def limits(self) -> WorkerLimits:
        """See `Executor.limits`."""
        if self._limits is None:
            raise InternalError("the workers were not laid out yet")
        return self._limits

    def on_result(self, callback: Callable[[], None]) -> None:
        """See `Executor.on_result`."""
        self._notify = callback

    def submit(self, step: Step) -> None:
        """See `Executor.submit`."""
        self._pending += 1
        with self._changed:
            if not self._told or not self._serving:
                return  # it is lost with those before it, of which the loop is about to hear
            self._flights.submit(step.number, self._clock())
            behind, frames = False, {}  # whoever draws is told nothing, and all others the same
            for member in self._members:
                drawn, member.drawn = member.drawn, []
                if bool(drawn) not in frames:
                    frames[bool(drawn)] = encode_frame(Work(step, drawn))
                behind |= not member.process.socket.send_frame(frames[bool(drawn)])
        if behind:
            self._wake()

    def result(self, timeout: float | None = None) -> StepResult | None:
        """See `Executor.result`."""
        try:
            outcome = self._results.get(timeout=timeout) if timeout is None or timeout > 0 else self._results.get_nowait()
        except Empty:
            return None
        if isinstance(outcome, StepError):
            with self._changed:
                self._pending, self._told = 0, True
            raise outcome
        self._pending -= 1
        return outcome

    def statistics(self) -> dict[str, Any]:
        """Figures of all workers together, and of each stage: see `figures.together`."""
        from homenode.engine.executor.figures import together, uses_of

        with self._changed:
            active = self._flights.active(self._clock())
            stages = [{"stage": s, "busy_s": busy, "wait_s": max(0.0, active - busy)} for s, busy in enumerate(self._flights.busy)]
            states = [(m.plan, m.word, m.compute) for m in self._members]
            uses = [(m.plan.part, m.uses) for m in self._members]
        return together(states, stages, self._restarts) | uses_of(uses, self._experts)

    def close(self) -> None:
        """See `Executor.close`."""
        with self._changed:
            self._closing = True
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # The thread

    def _watch(self) -> None:
        try:
            with self._changed:
                self._begin()
            while not self._closing:
                self._look_once()
        except HomenodeError as error:
            self._give_up(error)
        except Exception as error:  # whatever it is, nobody may wait for this thread in vain
            _log.exception("watching the workers failed")
            self._give_up(InternalError(f"watching the workers failed: {type(error).__name__}: {error}"))
        finally:
            self._end()

    def _look_once(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                continue
            with self._changed:
                self._serve(key.data, events)
        with self._changed:
            self._look_at_the_clock()
            self._watch_for_room()

    def _serve(self, member: Member, events: int) -> None:
        process = member.process
        if events & selectors.EVENT_WRITE:
            process.socket.flush()
        if not events & selectors.EVENT_READ:
            return
        try:
            frames = process.socket.receive()
            for frame in frames or ():
                if member.process is process:  # what it said before may have been its end
                    self._take(member, decode_body(frame, FromWorker))
        except PeerError as error:
            self._lose({member.plan.number: f"sent what is no message: {error.message}"})
            return
        if frames is None and member.process is process:
            self._lose({member.plan.number: process.how_it_ended(_MOMENT_S)})

    def _take(self, member: Member, message: FromWorker) -> None:
        member.heard_at, member.spoke = self._clock(), True
        match message:
            case Done():
                if not member.answers:
                    self._step_done(member, message)
            case Alive(_, _, _, compute):
                member.asked_at = None
                member.tells(compute, self._experts, self._clock())
            case Failed():
                if not member.answers:
                    self._step_failed(member, message)
            case Loading(done, total):
                member.loading = (done, total)
                self._tell_progress()
            case Fits():
                member.fits, member.state = message, "fitted"
                if self._num_blocks:
                    self._lay_again(member, message)
                self._changed.notify_all()
            case Laid(compute):
                member.answers -= 1
                member.tells(compute, self._experts, self._clock())
                self._is_laid(member)
            case Broken(kind, text):
                self._broke(member, kind, text)

    # Steps

    def _step_done(self, member: Member, done: Done) -> None:
        result = self._flights.done(member.plan.number, done, self._clock())
        if result is None:
            return
        last = self._plans[-1].stage
        drawn = [(one.seq, one.token) for one in result.sampled]
        for other in self._members:
            if other.plan.stage != last:
                other.drawn += drawn
        self._results.put(result)
        self._notify()

    def _step_failed(self, member: Member, failed: Failed) -> None:
        self._flights.said(member.plan.number, failed.number)
        if failed.kind == PeerError.__name__:  # it waited in vain for another: which one, the others will have said in a moment
            if self._blame is None:
                self._blame = (self._clock() + _BLAME_AFTER_S, failed)
            return
        self._fail(StepError(failed.message, kind=failed.kind, fatal=failed.fatal))

    def _find_the_guilty(self, failed: Failed) -> None:
        self._blame = None
        guilty = self._flights.silent(failed.number)
        if guilty:
            self._lose(dict.fromkeys(guilty, f"kept others waiting in step {failed.number}"))
        else:
            self._fail(StepError(failed.message, kind=failed.kind))

    def _fail(self, error: StepError) -> None:
        """Everything in flight is lost, and nobody with it."""
        self._tell(error)
        self._start_anew({})

    def _tell(self, error: StepError) -> None:
        """Let the loop hear of a failure; of one that comes before it has heard of the last it need not, unless that is the end."""
        if self._told or error.fatal:
            self._told = False
            self._results.put(error)
            self._notify()

    # Losses

    def _lose(self, why: dict[int, str]) -> None:
        """Workers are gone: end what is left of them and start others in their places."""
        text = "; ".join(f"{self._members[number].process.name} {reason}" for number, reason in why.items())
        if not self._limits:
            self._start_error = PeerError(f"the engine did not start: {text}")
            self._changed.notify_all()
            for number in why:
                self._unregister(self._members[number])
            return
        now = self._clock()
        self._losses.append(now)
        while self._losses[0] < now - _WITHIN_S:
            self._losses.popleft()
        fatal = len(self._losses) > _MOST_LOSSES
        names = ", ".join(str(number) for number in sorted(why))
        was_serving, self._serving = self._serving, False
        text = f"worker {names} of {len(self._plans)} is being replaced: {text}"
        if fatal:
            text = f"{len(self._losses)} losses of workers in {_WITHIN_S:g} s, the last: {text}"
        if was_serving or fatal:
            self._tell(WorkerLostError(text, fatal=fatal))
        else:  # the loop knows that not all are there
            _log.error("%s", text)
        if fatal:
            for number in why:
                self._unregister(self._members[number])
            return
        self._start_anew(why)

    def _start_anew(self, dead: dict[int, str]) -> None:
        """A generation in which nobody knows of any sequence, with new processes in place of dead ones."""
        self._blame = None
        self._flights.clear(self._clock())
        old, self._channels = self._channels, None
        self._generation += 1
        if old is not None:
            old.leave()
            old.close()
        self._channels = self._make_channels(self._generation)
        for number, member in enumerate(self._members):
            if number in dead:
                self._unregister(member)
                member.process.end(0)
                self._restarts += 1
                self._members[number] = self._started(member.plan, member.uses)
            else:
                member.drawn, member.answers = [], member.answers + 1
                channels, descriptors = self._channels.of(number)
                member.process.socket.send(Forget(self._generation, channels), descriptors)

    def _broke(self, member: Member, kind: str, text: str) -> None:
        if not self._limits:
            self._start_error = named_error(kind, f"{member.process.name}: {text}")
            self._changed.notify_all()
            self._unregister(member)
        else:
            self._lose({member.plan.number: f"failed: {text}"})

    # Life of workers

    def _begin(self) -> None:
        self._channels = self._make_channels(0)
        for plan in self._plans:
            self._members.append(self._started(plan))

    def _started(self, plan: WorkerPlan, uses: Table | None = None) -> Member:
        assert self._channels is not None
        process = self._launch(plan)
        member = Member(plan, process, heard_at=self._clock(), uses=uses, uses_before=uses)
        self._selector.register(process.socket, selectors.EVENT_READ, member)
        channels, descriptors = self._channels.of(plan.number)
        process.socket.send(replace_join(self._join_of(plan), self._generation, channels), descriptors)
        return member

    def _lay(self, member: Member) -> None:
        member.state, member.answers = "laying", member.answers + 1
        member.process.socket.send(Lay(self._num_blocks))

    def _lay_again(self, member: Member, fits: Fits) -> None:
        if fits.num_blocks < self._num_blocks:
            text = f"has room for {fits.num_blocks} KV blocks now, and the engine has {self._num_blocks}"
            self._lose({member.plan.number: text})
        else:
            self._lay(member)

    def _is_laid(self, member: Member) -> None:
        if member.answers == 0 and member.state == "laying":
            member.state = "ready"
        if not self._serving and self._limits and all(m.there for m in self._members):
            self._serving = True
            if self._restarts:
                _log.info("all %d workers are there again", len(self._members))
            self._changed.notify_all()
            self._notify()

    def _tell_progress(self) -> None:
        if self._progress is not None and not self._limits:
            told = [member.loading for member in self._members]
            if all(total for _, total in told):
                self._progress(sum(done for done, _ in told), sum(total for _, total in told))

    # The clock

    def _patience(self) -> float:
        due = [self._probe_every]
        if self._blame is not None:
            due.append(max(0.0, self._blame[0] - self._clock()))
        return min(due)

    def _look_at_the_clock(self) -> None:
        now = self._clock()
        slept, self._looked_at = now - self._looked_at, now
        if slept > 2 * self._probe_every + _MOMENT_S:  # this process itself stood still: nobody's silence counts
            for member in self._members:
                member.asked_at = None
        if self._blame is not None and self._blame[0] <= now:
            self._find_the_guilty(self._blame[1])
        silent = {}
        for number, member in enumerate(self._members):
            if not member.watched:
                continue
            patience = self._timeout if member.spoke else max(self._timeout, _FIRST_WORD_S)
            if member.asked_at is not None and now - member.asked_at > patience:
                silent[number] = f"did not answer for {patience:g} s"
            elif member.asked_at is None and now - member.known_at >= self._probe_every:
                self._probes += 1
                member.asked_at = now
                member.process.socket.send(Probe(self._probes))
        if silent:
            self._lose(silent)

    def _watch_for_room(self) -> None:
        for member in self._members:
            sock = member.process.socket
            if member.watched:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sock.behind else 0)
                if self._selector.get_key(sock).events != wanted:
                    self._selector.modify(sock, wanted, member)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"x")

    # The end

    def _unregister(self, member: Member) -> None:
        if member.watched:
            member.watched = False
            self._selector.unregister(member.process.socket)

    def _give_up(self, error: HomenodeError) -> None:
        with self._changed:
            self._serving = False
            self._start_error = self._start_error or error
            self._changed.notify_all()
            self._tell(WorkerLostError(error.message, fatal=True))

    def _end(self) -> None:
        with self._changed:
            self._serving = False
            if self._channels is not None:
                self._channels.leave()
            for member in self._members:
                member.process.socket.send(Leave())
            if self._experts is not None:
                self._hear_last_figures()
            for member in self._members:
                self._unregister(member)
        deadline = self._clock() + _END_S
        for member in self._members:
            member.process.end(max(0.0, deadline - self._clock()))
        if self._channels is not None:
            self._channels.close()
        self._on_end()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _hear_last_figures(self) -> None:
        """What workers have counted since they last told, if they can say it at once."""
        deadline = self._clock() + _LAST_FIGURES_S
        while any(m.watched and m.there for m in self._members) and (left := deadline - self._clock()) > 0:
            for key, _ in self._selector.select(left):
                member = key.data
                if member is None or not self._hear_out(member):
                    self._selector.unregister(key.fileobj)

    def _hear_out(self, member: Member) -> bool:
        """Whether more may come of it."""
        with contextlib.suppress(PeerError):
            for frame in (frames := member.process.socket.receive()) or ():
                match decode_body(frame, FromWorker):
                    case Alive(_, _, _, compute):
                        member.tells(compute, self._experts, self._clock())
            if frames is not None:
                return True
        member.watched = False
        return False


def replace_join(join: Join, generation: int, channels: list[Any]) -> Join:
    """A Join for another generation, with its channels."""
    import msgspec

    return msgspec.structs.replace(join, generation=generation, channels=channels)
