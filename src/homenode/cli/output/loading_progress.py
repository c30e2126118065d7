"""Progress of loading a model: a bar on a terminal, elsewhere a line every few seconds. A model that is there at
once is not spoken of.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from homenode.units import format_progress

if TYPE_CHECKING:
    from rich.progress import Progress

Update = Callable[[int, int], None]  # is told bytes done and bytes in all

_EVERY_S = 3.0
_ENDS_S = 1.0  # for the thread that writes lines
_QUICK_S = 0.5  # a model that is loaded sooner gets no bar, whose library takes a tenth of that to import


@contextmanager
def loading_progress(write_line: Callable[[str], None]) -> Iterator[Update]:
    """Within it the function that is yielded takes how much of a model is loaded. `write_line` writes a line where
    there is no terminal."""
    with _Bar() if sys.stderr.isatty() else _Lines(write_line) as progress:
        yield progress.update


class _Lines:
    """A line every few seconds, also while a large matrix takes longer than that."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line, self._ended = write_line, threading.Event()
        self._begin, self._at = 0.0, (0, 0)
        self._thread = threading.Thread(target=self._write_lines, name="loading progress", daemon=True)

    def update(self, done: int, total: int) -> None:
        if self._at == (0, 0):
            self._begin = time.monotonic()
        self._at = done, total

    def _write_lines(self) -> None:
        while not self._ended.wait(_EVERY_S):
            done, total = self._at
            if 0 < done < total:
                self._write_line(f"loading: {format_progress(done, total, time.monotonic() - self._begin)}")

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._ended.set()
        self._thread.join(_ENDS_S)


class _Bar:
    """A bar with bytes, rate and the time that is left, which goes away at the end."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._bar: Progress | None = None

    def update(self, done: int, total: int) -> None:
        if self._bar is None:
            if time.monotonic() - self._begin < _QUICK_S:
                return
            self._bar = _new_bar()
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Progress:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from homenode.cli.output.report import ERR

    bar = Progress(
        TextColumn("[bold]loading"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=ERR,
        transient=True,
    )
    bar.add_task("loading", total=None)
    return bar
