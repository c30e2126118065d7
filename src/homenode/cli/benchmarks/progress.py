"""Progress of `homenode bench`: one line on stderr, and a line for everything that had to be thrown
away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class BenchProgress:
    """`bench.machine.steady_state.BenchListener` on a progress bar. `runs`: how many are foreseen."""

    def __init__(self, bar: Progress, runs: int) -> None:
        self._bar = bar
        self._task = bar.add_task("measuring", total=runs)

    def started(self, what: str) -> None:
        """Name what is measured now."""
        self._bar.update(self._task, description=what)

    def ran(self) -> None:
        """One run further."""
        self._bar.advance(self._task)

    def discarded(self, reason: str) -> None:
        """Say why a run does not count; one more is foreseen for it."""
        self._bar.console.print(
            f"homenode: a run is discarded, as the machine changed meanwhile: {reason}", highlight=False
        )
        total = self._bar.tasks[0].total
        self._bar.update(self._task, total=None if total is None else total + 1)


@contextmanager
def measuring(runs: int) -> Iterator[BenchProgress]:
    """A progress bar for `runs` runs, on a terminal only; what is discarded is said in any case."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from homenode.cli.output.report import ERR

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        yield BenchProgress(bar, runs)
