"""A process that loads a model with experts in common with others, stopping where it is told, and says what
came of it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from homenode.compute.native import NativeBackend
from homenode.errors import HomenodeError
from homenode.model.spec import Checkpoint
from homenode.model.weights.expert_share import ExpertShare
from homenode.model.weights.load import load_model
from tests.model.driver import Driver
from tests.waiting import PATIENCE_S

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@dataclass(frozen=True)
class Seat:
    """`stops`: before which tensor it says "stopped" and waits to be told to go on (True) or to fail (False); None:
    nowhere.
    """

    memory: str  # a path of the memfd
    member: int
    members: int
    threads: int
    stops: int | None = None
    timeout_s: float = 2 * PATIENCE_S


def sit(seat: Seat, checkpoint: Checkpoint, said: Connection, settings: dict[str, Any]) -> None:
    """Load, generate, tell: ("stopped",), ("loaded", tokens, statistics, bytes read) or ("failed", name of the error,
    text).
    """
    read: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        read.append((done, total))
        if len(read) == seat.stops:
            said.send(("stopped",))
            if not said.recv():
                raise HomenodeError("told to fail")

    backend = NativeBackend([-1] * seat.threads, spin_us=20)
    fd = os.open(seat.memory, os.O_RDWR | os.O_CLOEXEC)
    try:
        share = ExpertShare(fd, seat.member, seat.members, seat.timeout_s)
        model = load_model(checkpoint, backend, progress=progress, experts=share, **settings)
    except HomenodeError as error:
        said.send(("failed", type(error).__name__, error.message))
        return
    (sequence,) = Driver(model, backend).generate([PROMPT], 12)
    said.send(("loaded", sequence.tokens, backend.statistics(), read[-1][1]))


class Process:
    """One of them, running. What it says is waited for with a deadline."""

    def __init__(self, seat: Seat, checkpoint: Checkpoint, **settings: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._said, theirs = spawn.Pipe()
        self.process = spawn.Process(target=sit, args=(seat, checkpoint, theirs, settings), daemon=True)
        self.process.start()
        theirs.close()

    def says(self) -> tuple[Any, ...]:
        """The next thing it says."""
        assert self._said.poll(2 * PATIENCE_S), "it says nothing"
        said: tuple[Any, ...] = self._said.recv()
        return said

    def tell(self, go_on: bool) -> None:
        """To go on, or to fail."""
        self._said.send(go_on)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.join(2 * PATIENCE_S)
        assert self.process.exitcode is not None

    def end(self) -> None:
        """Whatever it does."""
        if self.process.is_alive():
            self.kill()


Starts = Callable[..., Process]
