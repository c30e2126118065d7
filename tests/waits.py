"""Waiting in tests for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_PAUSE_S = 0.02


def eventually(holds: Callable[[], object], what: str = "it", within_s: float = 60.0) -> None:
    """Returns when it holds. AssertionError with `what` after `within_s`. Looks less often the longer it takes."""
    ends, pause_s = time.monotonic() + within_s, 0.001
    while not holds():
        assert time.monotonic() < ends, f"not within {within_s} s: {what}"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
