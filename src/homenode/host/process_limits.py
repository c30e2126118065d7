"""Limits of this process that would end it by a signal, without a word.

The C library gives every thread a stack of the size of that limit, and a kernel that goes beyond it ends the process by
signal 11 without a word. So threads that this process starts get a size of their own, those of the native core and of
other libraries too; the first thread's stack can grow as far as the limit that it may be raised to.
Sources: pthread_setattr_default_np(3), getrlimit(2), pthread_create(3).
"""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from homenode.errors import HostError
from homenode.host.resource_limits import read_limit, set_limit
from homenode.units import format_bytes

ENOUGH = 8 << 20  # bytes, what systems usually give
LEAST = 1 << 20  # bytes: the largest frames of kernels take half of it
T = TypeVar("T")
_LEAST_DATA = 160 << 20  # bytes, of Python, NumPy and tokenizers with their threads
_WITH_ENGINE = ("serve", "generate", "chat", "bench")
_MOST_ATTRIBUTES = 256  # bytes of a pthread_attr_t, which is 64 at most


def ensure_thread_stacks() -> None:
    """Give threads that start from now on enough room. Does nothing where the limit leaves it to them."""
    soft, hard = read_limit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH:
        return
    with suppress(ValueError, OSError):  # a hard limit: the first thread has what it has
        raised = ENOUGH if hard == resource.RLIM_INFINITY or hard >= ENOUGH else hard
        set_limit(resource.RLIMIT_STACK, raised, hard)
    threading.stack_size(ENOUGH)
    _give_other_threads(ENOUGH)


def require_data_limit(command: Sequence[str]) -> None:
    """Raise HostError where this command loads libraries for which `ulimit -d` leaves no room: some of them end the
    process when they get no memory."""
    soft = read_limit(resource.RLIMIT_DATA)[0]
    if command and command[0] in _WITH_ENGINE and soft != resource.RLIM_INFINITY and soft < _LEAST_DATA:
        raise HostError(
            f"the memory of this process is limited to {format_bytes(soft)} (ulimit -d), and "
            f"{format_bytes(_LEAST_DATA)} beside the model is the least; raise it, or LimitDATA= of the unit"
        )


def on_large_stack(function: Callable[[], T]) -> T:
    """Return what `function` returns or raises; where the first thread's stack is too small for kernels it runs on
    another thread.
    """
    ensure_thread_stacks()
    if not _is_small_here():
        return function()
    with ThreadPoolExecutor(1, "homenode-stack") as thread:
        return thread.submit(function).result()


def require_large_stack() -> None:
    """Raise HostError where the calling thread, which is to compute, has too small a stack."""
    ensure_thread_stacks()
    if _is_small_here():
        soft = read_limit(resource.RLIMIT_STACK)[0]
        raise HostError(
            f"the stack of a computing thread is limited to {format_bytes(soft)} (ulimit -s), and "
            f"{format_bytes(LEAST)} is the least; raise it: ulimit -s {ENOUGH >> 10}, or LimitSTACK= of the unit"
        )


def _is_small_here() -> bool:
    soft = read_limit(resource.RLIMIT_STACK)[0]
    first = threading.current_thread() is threading.main_thread()
    return first and soft != resource.RLIM_INFINITY and soft < LEAST


def _give_other_threads(size: int) -> None:
    """Set the size that threads get which C and C++ start."""
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_MOST_ATTRIBUTES)
    with suppress(AttributeError):  # a C library without it: its threads have the size that it gives them
        if libc.pthread_attr_init(attributes) == 0:
            if libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size)) == 0:
                libc.pthread_setattr_default_np(attributes)
            libc.pthread_attr_destroy(attributes)
