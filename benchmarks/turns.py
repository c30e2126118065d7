"""Measuring many things in turns, so that whatever changes on the machine in the course of an hour changes for all of
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.contender import Unavailable

T = TypeVar("T")
_TRIES = 2  # of each wanted pair
_FAILURES = 2  # after which a task is given up: one may be a time limit on a bad moment


@dataclass(frozen=True)
class Turns(Generic[T]):
    """`measure` measures a task once, records it and says what came of it (it raises Unavailable); `count`: how many
    records of it count; `give_up` is told which task is left alone and why.
    """

    name: Callable[[T], str]
    measure: Callable[[T], str]
    count: Callable[[T], int]
    give_up: Callable[[T, str], None]

    def run(self, tasks: Sequence[T], wanted: int) -> None:
        """Round by round, until each task has `wanted` records that count, was tried twice as often, or failed
        twice."""
        console, failures, left = Console(stderr=True, soft_wrap=True), Counter[str](), list(tasks)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("measuring", total=wanted * len(left))
            for _ in range(_TRIES * wanted):
                for task in [task for task in left if self.count(task) < wanted]:
                    name = self.name(task)
                    progress.update(bar, description=name)
                    try:
                        console.print(f"{name}: {self.measure(task)}", highlight=False, markup=False)
                    except Unavailable as reason:
                        console.print(f"{name}: {reason}", style="yellow", highlight=False, markup=False)
                        failures[name] += 1
                        if failures[name] == _FAILURES:
                            left.remove(task)
                            self.give_up(task, str(reason))
                    progress.update(bar, completed=sum(min(wanted, self.count(task)) for task in tasks))
