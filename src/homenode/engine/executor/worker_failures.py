"""The rules when a worker counts as lost, and when the engine gives up replacing them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.engine.channels.messages import LivenessProbe
from homenode.engine.executor.worker_handle import WorkerHandle
from homenode.units import format_count

_LONGEST_PROBE_S = 5.0  # between two questions to a worker
_FIRST_WORD_S = 60.0  # a process that starts answers nothing before its interpreter has read the modules it needs
_MOST_LOSSES, _WITHIN_S = 5, 60.0
_STOOD_STILL_S = 0.5


class Silence:
    """Asks workers whether they live. `timeout`: seconds one may be silent."""

    def __init__(self, timeout: float, now: float) -> None:
        self.every = min(_LONGEST_PROBE_S, timeout / 4)  # seconds between two looks
        self._timeout = timeout
        self._looked_at = now
        self._probes = 0

    def silent_workers(self, handles: Sequence[WorkerHandle], now: float) -> dict[int, str]:
        """Ask those that have not told their figures for long; the workers that did not answer, each with what is to be
        said of it.
        """
        slept, self._looked_at = now - self._looked_at, now
        if slept > 2 * self.every + _STOOD_STILL_S:  # this process itself stood still: nobody's silence counts
            for handle in handles:
                handle.asked_at = None
        silent = {}
        for number, handle in enumerate(handles):
            if not handle.watched:
                continue
            timeout = self._timeout if handle.spoke else max(self._timeout, _FIRST_WORD_S)
            if handle.asked_at is not None and now - handle.asked_at > timeout:
                silent[number] = f"did not answer for {timeout:g} s"
            elif handle.asked_at is None and now - handle.known_at >= self.every:
                self._probes += 1
                handle.asked_at = now
                handle.process.socket.send(LivenessProbe(self._probes))
        return silent


@dataclass(frozen=True)
class Loss:
    """`text`: for people. `fatal`: it was one too many."""

    text: str
    fatal: bool


class WorkerFailures:
    """Losses of the last minute, and those since all workers were there. Pure."""

    def __init__(self) -> None:
        self._at: deque[float] = deque()
        self._in_a_row = 0

    def recovered(self) -> None:
        """All workers are there."""
        self._in_a_row = 0

    def count(self, why: Mapping[int, str], workers: int, now: float) -> Loss:
        """Another loss: of these workers, each with its name and what became of it, of so many in all."""
        self._at.append(now)
        self._in_a_row += 1
        while self._at[0] < now - _WITHIN_S:
            self._at.popleft()
        text = f"worker {', '.join(map(str, sorted(why)))} of {workers} is being replaced: {'; '.join(why.values())}"
        if len(self._at) > _MOST_LOSSES:
            return Loss(
                f"{format_count(len(self._at), 'loss', 'losses')} of workers in {_WITHIN_S:g} s, the last: {text}",
                fatal=True,
            )
        if self._in_a_row > _MOST_LOSSES:  # who fails only after minutes of loading will do so for ever
            return Loss(
                f"{format_count(self._in_a_row, 'loss', 'losses')} of workers in a row, the last: {text}", fatal=True
            )
        return Loss(text, fatal=False)
