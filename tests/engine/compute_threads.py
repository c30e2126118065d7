"""On which CPUs the threads of a process compute, as the kernel tells it while it answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_STATE, _UTIME, _STIME, _PROCESSOR = 0, 11, 12, 36  # fields of /proc/PID/task/TID/stat behind the name
_PAUSE = 10  # between two looks, times what one takes: an emulated machine would do little else


def computing_cpus(pids: Iterable[int], work: Callable[[], object], threads: int, *, loop: bool) -> list[int]:
    """The CPU of each of the `threads` threads of these processes that compute most while `work` is done, most first:
    that on which it was seen most. `loop`: the first thread of each process plans and computes nothing.
    """
    watched = list(pids)
    seen: dict[int, Counter[int]] = {}
    spent: dict[int, list[int]] = {}
    done = threading.Event()

    def watch() -> None:
        look_s = 0.0
        while not done.wait(max(0.004, _PAUSE * look_s)):
            began = time.monotonic()
            for tid, words in _stats(watched):
                if not (loop and tid in watched):
                    spent.setdefault(tid, []).append(int(words[_UTIME]) + int(words[_STIME]))
                    seen.setdefault(tid, Counter())[int(words[_PROCESSOR])] += words[_STATE] == "R"
            look_s = time.monotonic() - began

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    busiest = sorted(spent, key=lambda tid: spent[tid][0] - spent[tid][-1])[:threads]
    return [seen[tid].most_common(1)[0][0] for tid in busiest]


def _stats(pids: Iterable[int]) -> Iterable[tuple[int, list[str]]]:
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                yield int(task.name), (task / "stat").read_text().rpartition(")")[2].split()
