"""Ranks of a group as threads of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from homenode.compute.native import NativeRankGroup
from tests.waiting import PATIENCE_S


def together(work: list[Callable[[], Any]], deadline_s: float = 60) -> list[Any]:
    """The results of all, each called in a thread of its own; the first exception, if any."""
    results: list[Any] = [None] * len(work)
    failures: list[BaseException] = []

    def call(i: int) -> None:
        try:
            results[i] = work[i]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline_s)
        assert not thread.is_alive(), "a rank does not come to an end"
    if failures:
        raise failures[0]
    return results


def ranks(
    size: int, bytes_per_rank: int = 1 << 20, timeout_s: float = PATIENCE_S, spin_us: int = 0
) -> list[NativeRankGroup]:
    """All ranks of a group."""
    memory = NativeRankGroup.make(size, bytes_per_rank)
    return [NativeRankGroup.attach(memory.fd, rank, timeout_s, spin_us) for rank in range(size)]
