"""Progress of the lab while it runs and its results afterwards, for a person or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools.lab.suite import Job, JobResult
from tools.lab.topologies import TOPOLOGIES


class Lanes:
    """A line for each machine, on standard error. In a terminal it moves; elsewhere a line is printed when a machine
    has ended.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:16}"),
            BarColumn(pulse_style="cyan"),
            TextColumn("{task.completed:3.0f} tests"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, console=self._console, disable=not self._console.is_terminal, transient=True
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Lanes:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, job: Job) -> None:
        self._tasks[job.name] = self._progress.add_task(job.name, total=None)

    def update(self, job: Job, tests: int) -> None:
        self._progress.update(self._tasks[job.name], completed=tests)

    def end(self, result: JobResult) -> None:
        self._progress.remove_task(self._tasks[result.job.name])
        told = ", started again after it had died" if result.retried else ""
        colour = "red" if result.count("failed") else "green"
        line = f"[{colour}]{result.job.name:16}[/] {result.count('passed'):3} passed {result.count('failed'):2} failed"
        self._console.print(
            (
                f"{line} {result.count('skipped'):2} skipped {result.seconds:4.0f} s ({result.cpu_seconds:.0f} of "
                f"CPU){told}"
            ),
            highlight=False,
        )


def show(results: Sequence[JobResult]) -> None:
    """Why things failed, then the table of machines, on standard output."""
    console = Console()
    for result in results:
        for check in result.checks:
            if check.outcome == "failed":
                console.rule(f"{result.job.name}: {check.name}", align="left")
                console.print(check.told, markup=False, highlight=False)
    table = Table("machine", "processor", "what it is", box=None)
    for name in ("passed", "failed", "skipped", "seconds", "of CPU"):
        table.add_column(name, justify="right")
    for result in results:
        numbers = [str(result.count(outcome)) for outcome in ("passed", "failed", "skipped")]
        table.add_row(
            result.job.topology,
            result.job.arch,
            TOPOLOGIES[result.job.topology].about,
            *numbers,
            f"{result.seconds:.0f}",
            f"{result.cpu_seconds:.0f}",
        )
    console.print(table)


def as_json(results: Sequence[JobResult]) -> str:
    """Every check of every machine."""
    return json.dumps(
        [
            {**asdict(result), "seconds": round(result.seconds, 1), "cpu_seconds": round(result.cpu_seconds, 1)}
            for result in results
        ],
        indent=2,
    )
