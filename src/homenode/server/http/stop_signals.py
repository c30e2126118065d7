"""SIGTERM and SIGINT from a server's first moment to its last: a start is given up, requests are drained, an end is not
disturbed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from homenode.host.socket_pair import require_socket_pairs

_LOG = logging.getLogger("homenode.server")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """SIGTERM and SIGINT of this process, from its start to its end, for whichever of its parts has to act on them.

    A context of the running event loop. `handler` is called for each signal and may be replaced at any time, so no
    moment is without one; `ignore_signal` is the handler of a process that is ending already. Afterwards both signals
    are handled as before, or ignored where the process `ends` with this context.
    """

    def __init__(self, handler: Callable[[], object], *, ends: bool = False) -> None:
        self.handler = handler
        self._ends = ends
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            loop = asyncio.get_running_loop()

            def heard(*_: object) -> None:
                loop.call_soon_threadsafe(lambda: self.handler())

            # Not the loop's own handlers: for a moment after these a signal would end the process by its default.
            self._before = {number: signal.signal(number, heard) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._ends else before or signal.SIG_DFL)


def ignore_signal() -> None:
    """The handler of a process that is ending already."""


@contextmanager
def signals(handler: Callable[[], None], stop: StopSignals | None = None) -> Iterator[None]:
    """`handler` for SIGTERM and SIGINT inside the context. `stop` is used if given, and ignores them afterwards."""
    if stop is None:
        with StopSignals(handler):
            yield
        return
    stop.handler = handler
    try:
        yield
    finally:
        stop.handler = ignore_signal


def run_service(serving: Callable[[StopSignals], Coroutine[Any, Any, int]]) -> int:
    """Return what `serving` returns on an event loop of its own, see `run_until_stopped`. HostError where the machine
    lets nobody make one.
    """
    require_socket_pairs()
    return asyncio.run(run_until_stopped(serving))


async def run_until_stopped(serving: Callable[[StopSignals], Coroutine[Any, Any, int]]) -> int:
    """Return what `serving` returns. A signal before it has a handler of its own cancels it: whatever it began it ends,
    and 0 is returned. Nothing is left to do but to end the process: both signals are ignored from then on.
    """
    task = asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        stop.handler = ignore_signal
        task.cancel()
        _LOG.warning("stopped while starting")

    with StopSignals(cancel, ends=True) as stop:
        try:
            return await serving(stop)
        except asyncio.CancelledError:
            if task.uncancel() == 0 and stop.handler is ignore_signal:
                return 0
            raise
