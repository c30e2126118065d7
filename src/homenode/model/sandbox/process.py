"""The parent's side of a sandboxed process: start it, ask it, end it, and say how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from homenode.errors import HostError
from homenode.host.bind.base.temporary import nameless_file
from homenode.host.process_group import start_in_own_group
from homenode.host.refusals import reason_of
from homenode.host.socket_pair import open_socket_pair
from homenode.model.sandbox.frames import FrameStream, SandboxFrameError

_Frame = TypeVar("_Frame")
_STARTS_WITHIN_S = 60.0  # also where each CPU has several others that start
_LAST_WORDS = 2000  # bytes of standard error that are looked at
_NOT_A_REASON = re.compile(r"panicked at|^note: |^Traceback|^\s+File ")  # lines around the one that says what happened
# What Python, the dynamic linker and the clock need; secrets in the environment are not for a process that runs a
# model's code.
_KEPT_VARIABLES = ("PATH", "HOME", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV", "TMPDIR")
_KEPT_BEGINNINGS = ("LC_", "PYTHON", "LD_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_")
# Libraries such as NumPy's start threads when they are imported, which would take address space, and leave the CPUs and
# the niceness that a process gives itself.
_THREAD_COUNTS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class ProcessLostError(Exception):
    """A sandboxed process ended, or said what is no frame, before it answered. The text says how it ended."""


class SandboxProcess:
    """One child process that runs a module of ours, and answers one request after the other. Used by one thread at a
    time.

    The module's `main` gets the descriptor of its socket as its first argument; `homenode.model.sandbox.limits` says
    what else it may rely on. The child ends with this process, whatever ends that.
    """

    def __init__(self, module: str, arguments: Sequence[str] = (), within_s: float = _STARTS_WITHIN_S) -> None:
        """Starts it, and does not wait until it runs; `within_s`: how long that may take. HostError when the machine
        refuses.
        """
        self._module, self._owner = module, os.getpid()
        with contextlib.ExitStack() as undone:
            try:
                # Standard error grows to no more than the child's limit, and nobody has to read it meanwhile.
                errors = nameless_file("standard error")
                undone.callback(os.close, errors)
                ours, theirs = open_socket_pair()
                undone.callback(ours.close)
                with theirs:
                    self._process = self._spawn(theirs.fileno(), errors, arguments)
            except OSError as error:
                raise HostError(f"{module} could not be started: {reason_of(error)}", errno=error.errno) from error
            undone.pop_all()
        self._frames, self._errors = FrameStream(ours), errors
        self._within_s = within_s
        self._started_by = time.monotonic() + within_s
        self._ready = False
        self.end = weakref.finalize(self, _end, self._owner, self._process, self._frames, errors)  # at exit as well

    def _spawn(self, descriptor: int, errors: int, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        return start_in_own_group(
            [sys.executable, "-P", "-W", "ignore", "-m", self._module, str(descriptor), *arguments],
            pass_fds=(descriptor,),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=_environment(),
        )

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether it has not ended, and belongs to this process; a forked one has to start its own."""
        return self._owner == os.getpid() and self.end.alive and self._process.poll() is None

    def wait_ready(self) -> None:
        """Wait until it has said that it takes requests. HostError when it ends or is silent instead."""
        if self._ready:
            return
        try:
            self._receive(self._started_by)
        except (TimeoutError, ProcessLostError) as error:
            why = str(error) or f"it was not ready within {self._within_s:g} s"
            raise HostError(f"{self._module} could not be started: {why}") from None
        self._ready = True

    def send(self, *bodies: bytes, deadline: float) -> None:
        """Send frames, made by `frames.encode`.

        TimeoutError at the deadline, ProcessLostError when the process has ended before.
        """
        try:
            self._frames.send(*bodies, deadline=deadline)
        except TimeoutError:
            raise
        except OSError:
            raise ProcessLostError(self._how_it_ended()) from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The answer. TimeoutError at the deadline, ProcessLostError when the process ends instead."""
        return self._receive(deadline)

    def receive_body(self, deadline: float) -> bytes:
        """The bytes of a frame that is no JSON; the rest as of `receive`."""
        return self._read(self._frames.receive_body, deadline)

    def _receive(self, deadline: float) -> dict[str, Any]:
        return self._read(self._frames.receive, deadline)

    def _read(self, receive: Callable[[float], _Frame | None], deadline: float) -> _Frame:
        try:
            answer = receive(deadline)
        except TimeoutError:
            raise
        except (SandboxFrameError, OSError) as error:
            raise ProcessLostError(f"what it said could not be read: {error}") from error
        if answer is None:
            raise ProcessLostError(self._how_it_ended())
        return answer

    def _how_it_ended(self) -> str:
        """Say by which signal or code it ended, and the last line that it wrote to standard error."""
        try:
            code = self._process.wait(1.0)  # its sockets close before it can be waited for
        except subprocess.TimeoutExpired:
            return "it closed its stream"
        end = f"exit code {code}" if code >= 0 else _signal_name(-code)
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not _NOT_A_REASON.search(line)]
        return f"it ended by {end}" + (f": {lines[-1][:200]}" if lines else "")


def _end(owner: int, process: subprocess.Popen[bytes], frames: FrameStream, errors: int) -> None:
    """End the process at once, unless it is that of another process which this one was forked from; free
    what it had.
    """
    if owner == os.getpid():
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
    frames.close()
    os.close(errors)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in _KEPT_VARIABLES or k.startswith(_KEPT_BEGINNINGS)}
    return kept | dict.fromkeys(_THREAD_COUNTS, "1") | {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
