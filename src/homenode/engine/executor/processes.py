"""Computes in workers that are processes of this host: starts them, gives each step to all of them, and replaces those
that are lost.

One thread does everything but submit: it reads what workers say, looks at the clock, and starts processes (whom the
kernel ends with it).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from homenode.compute.kv_memory import KvLayout
from homenode.engine.binding import EngineBinding
from homenode.engine.channels.base import MakeChannels
from homenode.engine.channels.messages import (
    Alive,
    Fits,
    FromWorker,
    GrammarPrepared,
    Laid,
    PartLoading,
    WorkerFailed,
    WorkerStepDone,
    WorkerStepFailed,
)
from homenode.engine.devices import is_accelerator
from homenode.engine.errors import StepError, StepsLostError, named_error
from homenode.engine.executor.grammar_preparations import GrammarPreparations
from homenode.engine.executor.kv_file import KvFile
from homenode.engine.executor.traffic import StepTraffic
from homenode.engine.executor.worker_failures import Silence, WorkerFailures
from homenode.engine.executor.worker_handle import WorkerHandle
from homenode.engine.executor.worker_pool import JoinOf, Launch, MemoriesOf, WorkerPool
from homenode.engine.executor.worker_process import PROGRAM, WorkerProcess
from homenode.engine.kv.chunks import PageChange
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.step import Step, StepResult, WorkerLimits
from homenode.errors import CheckpointError, HomenodeError, InternalError, PeerError
from homenode.host.refusals import start_thread
from homenode.model.identity import CommonIdentity
from homenode.model.spec import ModelSpec
from homenode.net.message_frames import decode_body
from homenode.units import format_count

_log = logging.getLogger(__name__)
_START_TIMEOUT_S = 3600.0  # reading a large model from a slow disk takes its time; a dead worker is noticed at once
_MOMENT_S = 0.5

Progress = Callable[[int, int], None]


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
        exports_kv: bool = False,
        memories_of: MemoriesOf = lambda plan: (),
        model: str = "the model",
    ) -> None:
        """`plans`: stage after stage. `program`: the module that a worker runs. `worker_timeout`: seconds a worker may
        be silent. `launch`: starts a worker, at once and without waiting for it, in place of a child of this process;
        `on_end` is called when all have ended. `experts`: a model of whose experts the use is told in `statistics`.
        `exports_kv`: others read and write the KV memory, too, so that no step is over, however it ended, as long as a
        worker may write for it; of workers that are lost the loop hears at once, and waits with such writing until
        `serving`. `memories_of`: what a worker is given with its Join, each time it is started; it stays the caller's.
        `model`: where it lies, for people. All workers have to have read the same one, also who is started later in the
        place of another: the engine does not start with one that has not, and ends.
        """
        launch = launch or (lambda plan: WorkerProcess(plan.name, program, driven_device(plan.device)))
        self._on_end, self._experts, self._clock = on_end, experts, clock
        self.pool = WorkerPool(plans, join_of, make_channels, launch, experts, clock, memories_of)
        self._exports_kv = exports_kv
        self._held_failure: StepError | None = None  # a step's failure, until all workers have ended the step
        self._kv_layouts: dict[int, KvLayout] = {}
        self._traffic = StepTraffic(plans, all_done=exports_kv)
        self._silence = Silence(worker_timeout, clock())
        self._failures = WorkerFailures()
        self._grammars = GrammarPreparations()
        self._identity = CommonIdentity(model)
        self._plans = plans
        self._limits: WorkerLimits | None = None
        self._serving = False
        self._failure_known = True  # the loop knows of the last failure; until it does, what it submits is lost
        self._start_error: HomenodeError | None = None
        self._progress: Progress | None = None
        self._pending = 0
        self._results: SimpleQueue[StepResult | StepError] = SimpleQueue()
        self._notify: Callable[[], None] = lambda: None
        self._changed = threading.Condition()  # around everything that both threads use
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.pool.selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._closing = False
        self._thread = threading.Thread(target=self._watch, name="homenode-workers", daemon=True)

    @property
    def handles(self) -> Sequence[WorkerHandle]:
        """The workers as they are now."""
        return self.pool.handles

    # Starting

    def start(self, progress: Progress | None = None) -> list[Fits]:
        """Start all workers and have them load their parts; what each says fits, in their order. Raises what a worker
        could not start for, under its own name, and PeerError when one ends or is silent; the executor is then to be
        closed.
        """
        self._progress = progress
        start_thread(self._thread)
        self._wait(lambda: len(self.handles) == len(self._plans) and all(m.fits for m in self.handles), "loaded")
        return [m.fits for m in self.handles if m.fits]

    def lay(self, limits: WorkerLimits, kv_file: KvFile | None = None) -> None:
        """Have all workers take KV memory of `limits.num_blocks` blocks, in a file that is closed with this, if given,
        and prepare to compute. Raises as `start`.
        """
        with self._changed:
            self.pool.kv_file = kv_file
            self._limits = limits
            for handle in self.handles:
                self.pool.lay(handle, limits)
        self._wait(lambda: self._serving, "ready")

    def kv_layouts(self) -> list[KvLayout]:
        """Return how each worker's KV memory lies in its share of the file."""
        return [self._kv_layouts[number] for number in range(len(self._plans))]

    def attach(self, fd: int, layout: KvLayout) -> int:
        """Have the steps submitted from now on read another engine's KV memory in place: its block b is block (the
        result) + b. From any thread; ValueError where that cannot be. The descriptor stays the caller's.
        """
        with self._changed:
            first = self.pool.attach(fd, layout, self.limits().num_blocks)
        self._wake()
        return first

    def detach(self, first: int) -> None:
        """End that: no step submitted from now on names those blocks. From any thread."""
        with self._changed:
            self.pool.detach(first)
        self._wake()

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
        return self._serving and self._failure_known

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
            if not self._failure_known or not self._serving:
                return  # it is lost with those before it, of which the loop is about to hear
            behind = self._traffic.submit(step, self.handles, self._clock())
        if behind:
            self._wake()

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """See `Executor.change_pages`. Workers that are being replaced have no pages, and take them when
        they are used.
        """
        with self._changed:
            self.pool.change_pages(changes)
        self._wake()

    @property
    def processes(self) -> tuple[int, ...]:
        """See `MovableExecutor.processes`: none of workers elsewhere."""
        with self._changed:
            started = [handle.process for handle in self.handles]
        return tuple(each.pid for each in started if isinstance(each, WorkerProcess))

    def move(self, places: Sequence[EngineBinding]) -> None:
        """See `MovableExecutor.move`."""
        with self._changed:
            self.pool.move(places)
        self._wake()

    def prepare_grammar(self, grammar: str, ready: Callable[[], None]) -> bool:
        """See `Executor.prepare_grammar`."""
        with self._changed:
            workers = self.pool.that_draw()
            if not self._serving or not workers or self._grammars.is_known(grammar):
                return False
            self.pool.prepare_grammar(self._grammars.begin(grammar, workers, ready), grammar)
        self._wake()
        return True

    def result(self, timeout: float | None = None) -> StepResult | None:
        """See `Executor.result`."""
        try:
            outcome = (
                self._results.get(timeout=timeout) if timeout is None or timeout > 0 else self._results.get_nowait()
            )
        except Empty:
            return None
        if isinstance(outcome, StepError):
            with self._changed:
                self._pending, self._failure_known = 0, True
            raise outcome
        self._pending -= 1
        return outcome

    def statistics(self) -> dict[str, Any]:
        """Figures of all workers together, and of each stage: see `figures.together`."""
        from homenode.engine.executor.stats import combined_stats, uses_of

        with self._changed:
            stages = self._traffic.stages(self._clock())
            states = [(m.plan, m.word, m.compute) for m in self.handles]
            uses = [(m.plan.part, m.uses) for m in self.handles]
        return combined_stats(states, stages, self.pool.restarts) | uses_of(uses, self._experts)

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
                self.pool.begin()
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
        for key, events in self.pool.selector.select(self._time_left()):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                continue
            with self._changed:
                self._serve(key.data, events)
        with self._changed:
            self._look_at_the_clock()
            self.pool.watch_writable()

    def _serve(self, handle: WorkerHandle, events: int) -> None:
        process = handle.process
        if events & selectors.EVENT_WRITE:
            process.socket.flush()
        if not events & selectors.EVENT_READ:
            return
        try:
            frames = process.socket.receive()
            for frame in frames or ():
                if handle.process is process:  # what it said before may have been its end
                    self._take(handle, decode_body(frame, FromWorker))
        except PeerError as error:
            self._lose({handle.plan.number: f"sent what is no message: {error.message}"})
            return
        if frames is None and handle.process is process:
            self._lose({handle.plan.number: process.how_it_ended(_MOMENT_S)})

    def _take(self, handle: WorkerHandle, message: FromWorker) -> None:
        handle.heard_at, handle.spoke = self._clock(), True
        match message:
            case WorkerStepDone():
                if not handle.answers:
                    self._step_done(handle, message)
            case Alive(_, _, _, compute):
                handle.asked_at = None
                if handle.record_stats(compute, self._experts, self._clock()):
                    self._notify()  # so that the figures go on to whoever shows them, though nothing else happens
            case GrammarPrepared(number):
                self._grammars.answered(number, handle.plan.number)
            case WorkerStepFailed():
                if not handle.answers:
                    self._step_failed(handle, message)
            case PartLoading(done, total):
                handle.loading = (done, total)
                self._tell_progress()
            case Fits():
                self._fitted(handle, message)
            case Laid(compute, kv):
                if kv is not None and self._kv_layouts.setdefault(handle.plan.number, kv) != kv:
                    self._lose(
                        {handle.plan.number: "lays its KV memory out otherwise than the worker in whose place it is"}
                    )
                    return
                handle.answers -= 1
                handle.record_stats(compute, self._experts, self._clock())
                self._is_laid(handle)
            case WorkerFailed(kind, text):
                self._broke(handle, kind, text)

    # Steps

    def _step_done(self, handle: WorkerHandle, done: WorkerStepDone) -> None:
        result = self._traffic.done(handle, done, self.handles, self._clock())
        if result is not None:
            self._results.put(result)
            self._notify()

    def _step_failed(self, handle: WorkerHandle, failed: WorkerStepFailed) -> None:
        error = self._traffic.failed(handle, failed, self._clock())
        if error is not None:
            self._fail(error)

    def _fail(self, error: StepError) -> None:
        """Everything in flight is lost, and nobody with it."""
        if self._exports_kv and not error.fatal:
            self._serving, self._held_failure = False, error
        else:
            self._report(error)
        self._start_anew({})

    def _report(self, error: StepError) -> None:
        """Let the loop hear of a failure; of one that comes before it has heard of the last it need not, unless that is
        the end.
        """
        if self._failure_known or error.fatal:
            self._failure_known = False
            self._results.put(error)
            self._notify()

    # Losses

    def _lose(self, why: dict[int, str]) -> None:
        """Workers are gone: end what is left of them and start others in their places."""
        told = {number: f"{self.handles[number].process.name} {reason}" for number, reason in why.items()}
        if not self._limits:
            self._start_error = PeerError(f"the engine did not start: {'; '.join(told.values())}")
            self._changed.notify_all()
            for number in why:
                self.pool.drop(self.handles[number])
            return
        loss = self._failures.count(told, len(self._plans), self._clock())
        knows = not self._serving and self._held_failure is None
        self._serving, self._held_failure = False, None
        if not knows or loss.fatal:
            self._report(StepsLostError(loss.text, fatal=loss.fatal))
        else:  # the loop knows that not all are there
            _log.error("%s", loss.text)
        if loss.fatal:
            for number in why:
                self.pool.drop(self.handles[number])
            return
        self._start_anew(why)

    def _start_anew(self, dead: dict[int, str]) -> None:
        self._traffic.clear(self._clock())
        self._grammars.forget()
        self.pool.start_anew(dead)

    def _broke(self, handle: WorkerHandle, kind: str, text: str) -> None:
        if not self._limits:
            self._start_error = named_error(kind, f"{handle.process.name}: {text}")
            self._changed.notify_all()
            self.pool.drop(handle)
        else:
            self._lose({handle.plan.number: f"failed: {text}"})

    # Starting, and starting again

    def _fitted(self, handle: WorkerHandle, fits: Fits) -> None:
        if (objection := self._identity.objection(handle.process.name, fits.identity)) is not None:
            return self._refuse(handle, objection)
        handle.fits, handle.state = fits, "fitted"
        if self._limits is not None:
            self._lay_again(handle, fits, self._limits)
        self._changed.notify_all()
        return None

    def _refuse(self, handle: WorkerHandle, objection: str) -> None:
        """No step may be computed with this worker, nor with one that reads the same files."""
        self.pool.drop(handle)
        self._serving = False
        if self._limits:
            self._report(StepsLostError(objection, fatal=True))
        else:
            self._start_error = CheckpointError(objection)
            self._changed.notify_all()

    def _lay_again(self, handle: WorkerHandle, fits: Fits, limits: WorkerLimits) -> None:
        if fits.num_blocks < limits.num_blocks:
            fitting = format_count(fits.num_blocks, "KV block")
            text = f"has room for {fitting} now, and the engine has {limits.num_blocks}"
            self._lose({handle.plan.number: text})
        else:
            self.pool.lay(handle, limits)

    def _is_laid(self, handle: WorkerHandle) -> None:
        if handle.answers == 0 and handle.state == "laying":
            handle.state = "ready"
        if not self._serving and self._limits and all(m.is_ready for m in self.handles):
            self._serving = True
            self._failures.recovered()
            held, self._held_failure = self._held_failure, None
            if held is not None:
                self._report(held)
            elif self.pool.restarts:
                _log.info("all %d workers are there again", len(self.handles))
            self._changed.notify_all()
            self._notify()

    def _tell_progress(self) -> None:
        if self._progress is not None and not self._limits:
            told = [handle.loading for handle in self.handles]
            if all(total for _, total in told):
                self._progress(sum(done for done, _ in told), sum(total for _, total in told))

    # The clock

    def _time_left(self) -> float:
        blame = self._traffic.time_left(self._clock())
        return self._silence.every if blame is None else min(self._silence.every, blame)

    def _look_at_the_clock(self) -> None:
        now = self._clock()
        if (found := self._traffic.guilty(now)) is not None:
            guilty, error = found
            if guilty:
                self._lose(guilty)
            else:
                self._fail(error)
        if silent := self._silence.silent_workers(self.handles, now):
            self._lose(silent)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"x")

    # The end

    def _give_up(self, error: HomenodeError) -> None:
        with self._changed:
            self._serving = False
            self._start_error = self._start_error or error
            self._changed.notify_all()
            self._report(StepsLostError(error.message, fatal=True))

    def _end(self) -> None:
        with self._changed:
            self._serving = False
            self.pool.dismiss()
        self.pool.end()
        self._on_end()
        self.pool.selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def driven_device(device: str) -> str:
    """The accelerator among the devices, as `--stage-devices` names it; empty for a CPU."""
    return device.removeprefix("torch:") if is_accelerator(device) else ""
