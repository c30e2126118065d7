"""How tests wait: until something holds, with one deadline for all, and with a failure that says what did not
happen."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 900.0 if "HOMENODE_LAB" in os.environ else 60.0  # emulated processors are slow
_LONGEST_PAUSE_S = 0.02


def wait_until(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "",
    patience_s: float = PATIENCE_S,
    every_s: float = _LONGEST_PAUSE_S,
) -> T:
    """What `condition` returns, once that is true; it is called again after pauses that grow to `every_s` seconds.

    `what`: what is waited for, or a function that says it when time is up; else the failure shows the condition.

    Raises `AssertionError` when it was not true for `patience_s` seconds.
    """
    deadline, pause_s = time.monotonic() + patience_s, min(0.001, every_s)
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_failure(condition, what, patience_s))
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, every_s)
    return found


async def wait_in_loop(
    condition: Callable[[], object | Awaitable[object]],
    what: str | Callable[[], object] = "",
    patience_s: float = PATIENCE_S,
    every_s: float = _LONGEST_PAUSE_S,
) -> None:
    """As `wait_until`, while the event loop goes on; `condition` may be a coroutine function."""
    try:
        async with asyncio.timeout(patience_s) as deadline:
            pause_s = min(0.001, every_s)
            while True:
                holds = condition()
                if await holds if isinstance(holds, Awaitable) else holds:
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, every_s)
    except TimeoutError:
        if not deadline.expired():
            raise
    raise AssertionError(_failure(condition, what, patience_s))


def shown(condition: Callable[..., object]) -> str:
    """The source of a condition, for a failure to say."""
    return inspect.getsource(condition).strip() if inspect.isfunction(condition) else repr(condition)


def _failure(condition: Callable[[], object], what: str | Callable[[], object], patience_s: float) -> str:
    return f"not within {patience_s:g} s: {what() if callable(what) else what or shown(condition)}"
