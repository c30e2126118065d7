"""Records that repeat are written a few times, and then counted: a fault that comes a thousand times a second is not a
thousand lines.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TextIO

_PERIOD_S = 10.0
_WRITTEN = 5  # records of a kind that are written in a period
_MOST_KINDS = 1000  # that are remembered at a time


@dataclass
class _Window:
    """The records of one kind that came since `began`."""

    began: float
    written: int = 0
    counted: int = 0


class Repetitions:
    """A choice of the records that are written, and how many were not. Pure: times are the caller's, in seconds."""

    def __init__(self, period_s: float = _PERIOD_S, written: int = _WRITTEN) -> None:
        self.period_s = period_s
        self._most_written = written
        self._windows: dict[Hashable, _Window] = {}

    def admit(self, kind: Hashable, now: float) -> bool:
        """Return whether a record of this kind is written; else it is counted."""
        if kind not in self._windows and len(self._windows) >= _MOST_KINDS:
            self._windows.pop(next(iter(self._windows)))
        window = self._windows.setdefault(kind, _Window(now))
        if window.written < self._most_written:
            window.written += 1
            return True
        window.counted += 1
        return False

    def ended(self, now: float) -> list[tuple[Hashable, int]]:
        """Kinds whose period is over, and how many of each were not written; a new period begins with their next
        record.
        """
        over = [kind for kind, window in self._windows.items() if now - window.began >= self.period_s]
        return [(kind, count) for kind in over if (count := self._windows.pop(kind).counted)]


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream; warnings and errors that repeat become a line with a count every ten seconds."""

    def __init__(
        self,
        stream: TextIO,
        repetitions: Repetitions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream)
        self._repetitions = repetitions or Repetitions()
        self._clock = clock
        self._last: dict[Hashable, logging.LogRecord] = {}  # of each kind that is being counted
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it. Called with the handler's lock held."""
        if record.levelno < logging.WARNING:
            super().emit(record)
            return
        self.tell_counts()
        kind = kind_of(record)
        if self._repetitions.admit(kind, self._clock()):
            super().emit(record)
            return
        self._last[kind] = record
        if self._timer is None:
            self._timer = threading.Timer(self._repetitions.period_s, self._tell_later)
            self._timer.daemon = True
            self._timer.start()

    def tell_counts(self) -> None:
        """Write a line for each kind whose period is over and of which records were counted."""
        for kind, count in self._repetitions.ended(self._clock()):
            if (record := self._last.pop(kind, None)) is not None:
                super().emit(_summary(record, count))

    def _tell_later(self) -> None:
        with self.lock:  # type: ignore[union-attr]  # a handler always has one
            self._timer = None
            self.tell_counts()
            if self._last:
                self._timer = threading.Timer(1.0, self._tell_later)
                self._timer.daemon = True
                self._timer.start()


def kind_of(record: logging.LogRecord) -> Hashable:
    """Return what records of one kind have in common: who logs, the text before its values are put in, and where the
    error was raised.
    """
    where: tuple[Hashable, ...] = ()
    if record.exc_info and record.exc_info[0] is not None:
        trace = record.exc_info[2]
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place: Hashable = None if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
        where = (record.exc_info[0].__qualname__, place)
    return (record.name, record.levelno, str(record.msg), *where)


def _summary(record: logging.LogRecord, count: int) -> logging.LogRecord:
    text = f"{count} more like this one: {record.getMessage()}"
    return logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, (), None)
