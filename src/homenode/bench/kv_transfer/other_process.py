"""The other process of `homenode bench transfer`, as the first sees it, and a small message there and back."""

from __future__ import annotations

import json
import select
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from homenode.bench.kv_transfer.transfer_side import compute_for
from homenode.errors import PeerError
from homenode.host.socket_pair import open_socket_pair

PATIENCE_S = 60.0
PAUSE_S = 500e-6
_ECHO_BYTES = 64
_ECHOES = 200
_PAUSED_ECHOES = 20


class OtherProcess:
    """Runs `transfer_peer`."""

    def __init__(self) -> None:
        ours, theirs = open_socket_pair()
        command = [sys.executable, "-m", "homenode.bench.kv_transfer.transfer_peer", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        theirs.close()
        ours.settimeout(PATIENCE_S)
        self._control, self._lines = ours, ours.makefile("rb")

    def ask(self, **order: Any) -> dict[str, Any]:
        """Have something done."""
        self.order(**order)
        return self.answer()

    def order(self, **order: Any) -> None:
        """The same, without waiting for the answer."""
        self._control.sendall(json.dumps(order).encode() + b"\n")

    def has_answered(self) -> bool:
        """Return whether `answer` would not wait."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return bool(poll.poll(0))

    def answer(self) -> dict[str, Any]:
        """Return the answer to the last order."""
        line = self._lines.readline()
        if not line:
            raise PeerError(f"the other process of the benchmark ended with {self.process.wait(5)}")
        return dict(json.loads(line))

    def end(self) -> None:
        """End the process with its socket, unless it serves another one."""
        self._lines.close()
        self._control.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class SocketEcho:
    """A small message there and back over a Unix socket."""

    def __init__(self, peer: OtherProcess) -> None:
        path = peer.ask(do="echo", size=_ECHO_BYTES)["path"]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect("\0" + path)

    def two_round_trips(self) -> float:
        """The median pair of a row of them."""
        return self._row(_ECHOES, 0.0)

    def after_a_pause(self) -> float:
        """The same when this process has computed for a while before each pair, and the other one has slept."""
        return self._row(_PAUSED_ECHOES, PAUSE_S)

    def _row(self, count: int, pause_s: float) -> float:
        message, taken = b"x" * _ECHO_BYTES, []
        for _ in range(count):
            compute_for(pause_s)
            begin = time.perf_counter()
            for _ in range(2):
                self._socket.sendall(message)
                self._socket.recv(_ECHO_BYTES)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)
