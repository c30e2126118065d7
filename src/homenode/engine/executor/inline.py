"""Computes in this process, on one thread of its own: while a step computes, the engine's loop plans the next one.

The native core gives the interpreter free while it computes, so the two really run side by side.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from homenode.engine.binding import EngineBinding
from homenode.engine.errors import StepError, step_error
from homenode.engine.kv.chunks import PageChange
from homenode.engine.step import Step, StepResult, WorkerLimits
from homenode.errors import HomenodeError
from homenode.host.refusals import start_thread

_log = logging.getLogger(__name__)
# A request's own fault, or the machine's for a moment; anything else is logged with its traceback.
_EXPECTED = (MemoryError, ValueError)


class StepRunner(Protocol):
    """The runner of a step: `worker.runner.Runner`."""

    def execute(self, step: Step) -> StepResult:
        """Run it and return its result, or raise."""


class _Resume:
    """Tells the thread that the steps lost with a failed one end here."""


@dataclass(frozen=True, slots=True)
class _PageChanges:
    """The changes that the thread is to do about pages before the next step."""

    changes: tuple[PageChange, ...]


@dataclass(frozen=True, slots=True)
class _Move:
    """Tells the thread to have its worker go on elsewhere."""

    place: EngineBinding


class InlineExecutor:
    """`Executor` with a thread in place of workers, on these `cpus` if there are any. `stats` gives the statistics of
    what computes.
    """

    def __init__(
        self,
        runner: StepRunner,
        limits: WorkerLimits,
        stats: Callable[[], dict[str, Any]] = dict,
        name: str = "homenode-steps",
        cpus: Sequence[int] = (),
        change_pages: Callable[[Sequence[PageChange]], None] | None = None,
        move: Callable[[EngineBinding], None] | None = None,
        prepare_grammar: Callable[[str], Future[None] | None] = lambda grammar: None,
    ) -> None:
        """`change_pages` carries out what becomes of the pages of KV memory; None: they stay as they are. `move` has
        all threads but this one go to a place; None: they stay where they are. `prepare_grammar`: see
        `GrammarMasks.prepare`.
        """
        self._runner = runner
        self._limits = limits
        self._stats = stats
        self._change_pages, self._move = change_pages, move
        self._tasks: SimpleQueue[Step | _PageChanges | _Move | _Resume | None] = SimpleQueue()
        self._prepare_grammar = prepare_grammar
        self._results: SimpleQueue[StepResult | StepError] = SimpleQueue()
        self._notify: Callable[[], None] = lambda: None
        self._cpus = tuple(cpus)
        self._pending = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        start_thread(self._thread)

    @property
    def serving(self) -> bool:
        """Always: there is no worker to be lost but this process."""
        return True

    @property
    def pending(self) -> int:
        """See `Executor.pending`."""
        return self._pending

    def limits(self) -> WorkerLimits:
        """See `Executor.limits`."""
        return self._limits

    def on_result(self, callback: Callable[[], None]) -> None:
        """See `Executor.on_result`."""
        self._notify = callback

    def submit(self, step: Step) -> None:
        """See `Executor.submit`."""
        self._pending += 1
        self._tasks.put(step)

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """See `Executor.change_pages`."""
        self._tasks.put(_PageChanges(tuple(changes)))

    @property
    def processes(self) -> tuple[int, ...]:
        """See `MovableExecutor.processes`: this one."""
        return (os.getpid(),)

    def move(self, places: Sequence[EngineBinding]) -> None:
        """See `MovableExecutor.move`."""
        if self._move is not None:
            self._tasks.put(_Move(places[0]))

    def prepare_grammar(self, grammar: str, ready: Callable[[], None]) -> bool:
        """See `Executor.prepare_grammar`."""
        made = self._prepare_grammar(grammar)
        if made is None:
            return False
        made.add_done_callback(lambda _: ready())
        return True

    def result(self, timeout: float | None = None) -> StepResult | None:
        """See `Executor.result`."""
        if not self._pending:
            return None
        try:
            outcome = (
                self._results.get(timeout=timeout) if timeout is None or timeout > 0 else self._results.get_nowait()
            )
        except Empty:
            return None
        if isinstance(outcome, StepError):
            self._pending = 0
            self._tasks.put(_Resume())
            raise outcome
        self._pending -= 1
        return outcome

    def statistics(self) -> dict[str, Any]:
        """See `Executor.statistics`."""
        return self._stats()

    def close(self) -> None:
        """See `Executor.close`."""
        self._closed.set()
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        self._settle(self._cpus)
        broken = False  # a step failed: those sent before the loop heard of it are dropped, it knows they are lost
        while (task := self._tasks.get()) is not None and not self._closed.is_set():
            if isinstance(task, _Resume):
                broken = False
            elif isinstance(task, _PageChanges):
                self._carry_out(task)
            elif isinstance(task, _Move):
                self._go(task.place)
            elif not broken:
                outcome = self._outcome(task)
                broken = isinstance(outcome, StepError)
                self._results.put(outcome)
                self._notify()

    def _carry_out(self, task: _PageChanges) -> None:
        if self._change_pages is None:
            return
        try:
            self._change_pages(task.changes)
        except (
            Exception
        ):  # whatever it is: pages that did not come are taken by the kernel when they are written, others stay
            _log.exception("pages of KV memory could not be taken or given back")
        self._notify()  # figures have changed

    def _settle(self, cpus: Sequence[int]) -> None:
        """Have this thread stay on these CPUs; none: it stays where it is."""
        if cpus:
            with suppress(OSError):  # the team tries again, for the time of a step, and says what is wrong
                os.sched_setaffinity(0, cpus)

    def _go(self, place: EngineBinding) -> None:
        assert self._move is not None
        try:
            self._move(place)
        except (HomenodeError, OSError, MemoryError) as error:
            _log.warning("compute threads stay where they are, as they could not be moved: %s", error)
            place_now = self._cpus
        else:
            place_now = self._cpus = place.places[0]
        self._settle(place_now)
        self._notify()  # figures have changed

    def _outcome(self, step: Step) -> StepResult | StepError:
        try:
            return self._runner.execute(step)
        except Exception as error:  # whatever a step can raise must end its requests, not the engine
            if not isinstance(error, _EXPECTED):
                _log.exception("step %d of %d tokens failed", step.number, step.num_tokens)
            return step_error(step, error)
