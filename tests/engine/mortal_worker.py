"""A worker of a real model that ends or stands still at a moment it is told: `python -m tests.engine.mortal_worker FD
PARENT NAME`.

The folder that the variable MARKS names has a file for each such moment, WHEN-WORKER-SIGNAL, with how often it is to be
met, by the worker and by those that replace it; it is removed when the moment has come as often, and one that is called
`done-` and so on, with the time of the monotonic clock, takes its place.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from homenode.engine.channels.base import WorkerChannels
from homenode.engine.channels.messages import Fits, Join, RunStep, WorkerStepDone
from homenode.engine.step import Step
from homenode.engine.worker.main import main
from homenode.engine.worker.worker import PartWorker

MARKS = "HOMENODE_TEST_MARKS"


def _chunk(step: Step) -> bool:
    """Part of a prompt, none of them ending."""
    return all(item.count > 1 and not item.draws for item in step.items)


def _decode(step: Step) -> bool:
    return all(item.count == 1 and item.draws for item in step.items)


def _mixed(step: Step) -> bool:
    return any(item.count == 1 and item.draws for item in step.items) and any(item.count > 1 for item in step.items)


def _again(step: Step) -> bool:
    """A sequence that had drawn tokens begins again."""
    return any(len(start.token_ids) > start.num_prompt for start in step.starts)


STEPS: Mapping[str, Callable[[Step], bool]] = MappingProxyType(
    {"chunk": _chunk, "decode": _decode, "mixed": _mixed, "again": _again}
)


class MortalWorker(PartWorker):
    """`loading`, `laying`: of one that replaces another; `first`: the first step after a loss; else a kind of step."""

    def __init__(self, join: Join) -> None:
        super().__init__(join)
        self._number, self._replaces = join.number, join.generation > 0
        self._prepared = 0

    def load(self, progress: Callable[[int, int], None], experts: int | None = None) -> Fits:
        def told(done: int, total: int) -> None:
            progress(done, total)
            if self._replaces:
                self._meet("loading")

        return super().load(told, experts)

    def prepare(self, links: WorkerChannels) -> None:
        self._prepared += 1
        if self._replaces:
            self._meet("laying")
        super().prepare(links)

    def compute(self, work: RunStep) -> WorkerStepDone:
        if self._replaces or self._prepared > 1:
            self._meet("first")
        for name, fits in STEPS.items():
            if work.step.items and fits(work.step):
                self._meet(name)
        return super().compute(work)

    def _meet(self, moment: str) -> None:
        for mark in Path(os.environ[MARKS]).glob(f"{moment}-{self._number}-*"):
            left = int(mark.read_text()) - 1
            new = mark.with_name(f"new-{mark.name}")
            new.write_text(str(left or time.monotonic()))
            if left:
                new.replace(mark)
            else:
                mark.unlink()
                new.replace(mark.with_name(f"done-{mark.name}"))
            os.kill(os.getpid(), int(mark.name.rpartition("-")[2]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], MortalWorker))
