"""An engine that several fronts talk to, as who started it sees it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Sequence

from homenode.engine.assignment import EngineAssignment
from homenode.engine.connection.engine_client import AsyncEngineClient
from homenode.engine.fronts.messages import FrontHello
from homenode.engine.messages import EngineStats, ServingChanged, ToFront
from homenode.host.socket_pair import open_socket_pair
from homenode.net.descriptors import door, send_fd


class SharedEngine(AsyncEngineClient):
    """An engine in a child process; this end starts and watches it, and fronts have streams of their own to it."""

    def __init__(
        self,
        assignment: EngineAssignment,
        program: str,
        on_news: Callable[[], None],
        memories: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """`on_news` is called when `statistics` or `hindrance` have changed. `memories`: as of every engine."""
        super().__init__(assignment, program=program, memories=memories)
        self._on_news = on_news
        self._door: socket.socket | None = None

    def connect(self, front: int) -> socket.socket | None:
        """The other end of a new stream of this front; None when the engine takes none, as one that is ending."""
        ours, theirs = open_socket_pair()
        with theirs:
            if self._door is not None and send_fd(self._door, FrontHello(front), theirs):
                return ours
        ours.close()
        return None

    async def close(self, timeout: float = 2.0) -> None:
        """Close it as every engine."""
        await super().close(timeout)
        if self._door is not None:
            self._door.close()
            self._door = None

    def _run_program(self, *descriptors: int) -> subprocess.Popen[bytes]:
        self._door, theirs = door()
        with theirs:
            return super()._run_program(*descriptors, theirs.fileno())

    def _take(self, message: ToFront) -> None:
        super()._take(message)
        if isinstance(message, EngineStats | ServingChanged):
            self._on_news()
