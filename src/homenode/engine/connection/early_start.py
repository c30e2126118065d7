"""The engine's process started before its settings are known.

An engine's process imports as much as the front does, and either takes a third of a second. `serve` therefore starts
the process first and reads the settings while the process imports; the process waits for them on its stream as it
always does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from homenode.host.process_group import start_in_own_group

ENGINE_PROGRAM = "homenode.engine.runtime.process"
# Of `serve`: with these no engine is started, or not this one.
_WITHOUT_ENGINE = (
    "-h",
    "--help",
    "--check-config",
    "--show-config",
    "--models",
    "--data-parallel-size",
    "--api-server-count",
)
_END_WITHIN_S = 2.0  # of a process that was killed


class StartedEngine(NamedTuple):
    """The process of an engine, and the front's end of the stream to it."""

    process: subprocess.Popen[bytes]
    stream: socket.socket


_early: StartedEngine | None = None
_environment: dict[str, str] = {}  # what it was started with


def run_program(
    program: str, descriptors: Sequence[int], memories: Sequence[int] = (), name: str | None = None
) -> subprocess.Popen[bytes]:
    """Run an engine's process with these descriptors: of streams, and of memory for experts in common.
    Raises OSError.
    """
    given = ",".join(map(str, descriptors)) + (":" + ",".join(map(str, memories)) if memories else "")
    return start_in_own_group(
        [sys.executable, "-P", "-m", program, given, str(os.getpid()), *([name] if name else [])],
        pass_fds=(*descriptors, *memories),
        stdin=subprocess.DEVNULL,
    )


def needs_engine(arguments: Sequence[str]) -> bool:
    """Return whether the command with these arguments is a `serve` that will have one engine, as far as one can tell
    without reading its settings.
    """
    return arguments[:1] == ["serve"] and not any(each.startswith(_WITHOUT_ENGINE) for each in arguments[1:])


def start_engine_early() -> StartedEngine | None:
    """Start the process, on the thread that lives as long as the engine should. Return it. Where the machine refuses,
    it is None, the engine is started later, and the refusal told then.
    """
    global _early, _environment
    _environment = dict(os.environ)
    _early = start_engine_process()
    return _early


def start_engine_process(name: str | None = None) -> StartedEngine | None:
    """The process of an engine, called `name`, which imports until it is told its settings; to be called on the thread
    that lives as long as the engine should. None where the machine refuses.
    """
    with contextlib.suppress(OSError):
        ours, theirs = socket.socketpair()
        with theirs:
            return StartedEngine(run_program(ENGINE_PROGRAM, [theirs.fileno()], (), name), ours)
    return None


def take_early_engine() -> StartedEngine | None:
    """The process that was started early, once; None where there is none, or where a setting has changed a variable
    meanwhile that it would inherit.
    """
    global _early
    if _environment != os.environ:
        end_early_engine()
    taken, _early = _early, None
    return taken


def end_early_engine() -> None:
    """End the process if nobody took it."""
    global _early
    left, _early = _early, None
    if left is not None:
        end_engine_process(left)


def end_engine_process(started: StartedEngine) -> None:
    """End a process that nobody took."""
    started.stream.close()
    started.process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.process.wait(_END_WITHIN_S)
