"""A worker that computes nothing: `python -m tests.engine.scripted_worker FD PARENT NAME`. Rows go through its channels
all the same.

The model of its config is a folder; what lies in it says how the worker behaves: see `ScriptedWorker`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.kv_memory import KvLayout
from homenode.engine.channels.base import WorkerChannels
from homenode.engine.channels.messages import FileRange, Fits, Join, RunStep, WorkerStepDone
from homenode.engine.step import Advance, StepResult
from homenode.engine.worker.main import main
from homenode.errors import CapacityError
from homenode.model.identity import ModelIdentity
from tests.engine.socket_channels import open_sockets

BLOCKS = 64


def token_of(seq: int, position: int) -> int:
    """What is drawn after a position."""
    return (seq * 31 + position * 7) % 1000


class ScriptedWorker:
    """Files in the folder of the model: `broken-N`: worker N cannot load. `dies-N`, `stops-N`, `fails-N`, `slow-N`:
    with the next step of worker N it is killed, stands still, fails with ValueError, or takes 50 ms; the first three
    are removed when they have come true. What is in the file `weights` is the identity of what a worker loads, and in
    `weights-N` that of worker N.
    """

    def __init__(self, join: Join) -> None:
        self._join, self._folder = join, Path(str(join.config.model.path))
        self._links = WorkerChannels()
        self._told: dict[int, list[int]] = {}

    def load(self, progress: Callable[[int, int], None], experts: int | None = None) -> Fits:
        if (self._folder / f"broken-{self._join.number}").exists():
            raise CapacityError("there is no room for this part", param="kv_cache_memory")
        self._act("dies-loading", lambda: os.kill(os.getpid(), signal.SIGKILL))
        progress(50, 100)
        progress(100, 100)
        notes = (f"note of {self._join.number}",)
        blocks = BLOCKS + self._join.number
        return Fits(num_blocks=blocks, weight_bytes=1000, notes=notes, identity=self._identity())

    def _identity(self) -> ModelIdentity | None:
        for file in (self._folder / f"weights-{self._join.number}", self._folder / "weights"):
            if file.exists():
                return ModelIdentity(file.read_text(), {"model.safetensors": file.read_text()}, "")
        return None

    def lay(
        self, num_blocks: int, memory: tuple[int, FileRange] | None = None, grows: bool = False, state_slots: int = 0
    ) -> KvLayout | None:
        assert num_blocks == BLOCKS
        return None

    def attach(self, fd: int, first: int, layout: KvLayout) -> None:
        raise AssertionError("nothing is handed over here")

    def detach(self, first: int) -> None:
        raise AssertionError("nothing is handed over here")

    def prepare(self, links: WorkerChannels) -> None:
        self._links, self._told = links, {}

    def compute(self, work: RunStep) -> WorkerStepDone:
        step, part = work.step, self._join.part
        for seq, token in work.drawn:
            self._told.setdefault(seq, []).append(token)
        self._act("dies", lambda: os.kill(os.getpid(), signal.SIGKILL))
        self._act("stops", lambda: os.kill(os.getpid(), signal.SIGSTOP))
        self._act("fails", self._fail)
        if (self._folder / f"slow-{self._join.number}").exists():
            time.sleep(0.05)
        rows = np.full((step.num_tokens, 4), step.number, np.float32)
        if self._links.inlet is not None:
            rows = self._links.inlet.take(step.number, step.num_tokens, 4)
            self._links.inlet.free()
            if not (rows == step.number).all():
                raise ValueError(f"rows of step {rows[0, 0]} came for step {step.number}")
        if self._links.group is not None:
            mine = np.ones((step.num_tokens, 4), np.float32)
            self._links.group.sum(mine)
            if not (mine == part.ranks).all():
                raise ValueError("the sum is wrong")
        if self._links.outlet is not None:
            self._links.outlet.put(step.number, rows)
        sampled = []
        if part.last_stage and part.rank == 0:
            sampled = [
                Advance(item.seq, [token_of(item.seq, item.start + item.count - 1)])
                for item in step.items
                if item.draws
            ]
        elif not part.last_stage:
            self._check(work)
        return WorkerStepDone(StepResult(step.number, sampled, [], 0.001), 0.0)

    def prepare_grammar(self, grammar: str) -> Future[None] | None:
        """`known` is there, `never` does not come, anything else does on another thread."""
        if grammar == "known":
            return None
        made: Future[None] = Future()
        if grammar != "never":
            threading.Timer(0.05, made.set_result, [None]).start()
        return made

    def statistics(self) -> dict[str, Any]:
        return {"threads": 1, "weight_bytes": 1000}

    def _check(self, work: RunStep) -> None:
        """Whoever draws nothing was told every token before the step that computes it."""
        for item in work.step.items:
            first = {start.seq: start.num_prompt for start in work.step.starts}.get(item.seq)
            if (
                first is None
                and item.start > 0
                and self._told.get(item.seq, [])[-1:] != [token_of(item.seq, item.start - 1)]
            ):
                raise ValueError(
                    f"position {item.start} of sequence {item.seq} is to be computed, and its token was not told"
                )

    def _fail(self) -> None:
        raise ValueError("this step cannot be computed")

    def _act(self, what: str, act: Callable[[], None]) -> None:
        sign = self._folder / f"{what}-{self._join.number}"
        if sign.exists():
            sign.unlink()
            act()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ScriptedWorker, open_sockets))
