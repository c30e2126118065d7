"""A worker as a child of the engine's process: started with a connection, watched by it, ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Protocol

from homenode.errors import HostError
from homenode.host.process_group import start_in_own_group
from homenode.host.refusals import reason_of
from homenode.host.socket_pair import open_socket_pair
from homenode.net.queued_frames import QueuedFrameSocket

_KILLED_S = 10.0
PROGRAM = "homenode.engine.worker.main"


class StartedWorker(Protocol):
    """A worker, wherever it runs."""

    name: str
    socket: QueuedFrameSocket

    def end(self, patience_s: float) -> None:
        """Close the connection, at which it ends by itself; see that it has ended after `patience_s` seconds (0: at
        once).
        """

    def how_it_ended(self, patience_s: float) -> str:
        """Its end in words, which may come a moment later than that of its stream."""


class WorkerProcess:
    """A process to be started by a thread that lives as long as the worker should: the kernel ends the worker
    with it.
    """

    def __init__(self, name: str, program: str = PROGRAM, device: str = "") -> None:
        """`device`: the accelerator that it is to drive, as others are to read it. HostError when the machine
        refuses."""
        self.name = name
        try:
            ours, theirs = open_socket_pair()
            with theirs:
                words = [str(theirs.fileno()), str(os.getpid()), name, *([device] if device else [])]
                self._process = start_in_own_group(
                    [sys.executable, "-P", "-m", program, *words],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
        except OSError as error:
            raise HostError(f"{name} could not be started: {reason_of(error)}", errno=error.errno) from error
        self.socket = QueuedFrameSocket(ours)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def end(self, patience_s: float) -> None:
        """Close the connection, at which it ends by itself; kill it when it has not after `patience_s` seconds (0: at
        once).
        """
        self.socket.close()
        if patience_s > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel cannot end what waits in it for a device
                self._process.wait(_KILLED_S)

    def how_it_ended(self, patience_s: float) -> str:
        """Its end in words; waits a moment for it, as the end of its stream comes first."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code == -signal.SIGKILL:
            return "was killed (signal 9); the kernel does that when memory runs out"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
