"""The part that engine and worker processes have in common: a name, an end with their parent, progress of loading, and
failures in words.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from homenode.errors import HomenodeError, PeerError
from homenode.host.refusals import reason_of

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PROGRESS_STEPS = 200  # most messages about one loading


def in_words(error: BaseException) -> tuple[str, str]:
    """Return what ended an engine or a worker, as a class name of homenode.errors and a text."""
    if isinstance(error, HomenodeError):
        return type(error).__name__, error.message
    if isinstance(error, MemoryError):
        return (
            "HostError",
            "memory ran out; free some, or lower --kv-cache-memory or --max-num-batched-tokens",
        )
    if isinstance(error, OSError):
        return "HostError", f"the engine could not go on: {reason_of(error)}"
    return "InternalError", f"{type(error).__name__}: {error}"


def call_itself(name: str) -> None:
    """Be found under this name; the kernel keeps 15 bytes of it. Nothing depends on it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def show_crashes() -> None:
    """Have a crash of the native core show where it was called from. Nothing depends on it: the stack of its own that
    this takes (sigaltstack(2)) may be refused.
    """
    with suppress(OSError, RuntimeError):
        faulthandler.enable()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; where a sandbox refuses that, the end of
    its socket ends it a little later. PeerError if that thread's process has ended.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        raise PeerError(f"the front (process {parent}) ended before the engine had started")


class LoadingProgress:
    """Passes on how far loading is, (bytes done, bytes in all), at most some hundred times."""

    def __init__(self, send: Callable[[int, int], None]) -> None:
        self._send, self._step = send, -1

    def __call__(self, done: int, total: int) -> None:
        step = _PROGRESS_STEPS * done // max(1, total)
        if step != self._step:
            self._step = step
            self._send(done, total)
