"""A short look at what others run on each CPU, taken while whoever looks does something else.

Sources: /proc/stat and /proc/PID/task/TID/stat (proc_stat(5), proc_pid_stat(5), times in clock ticks).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from homenode.host.bind.cpu_load import busy_and_stolen, parse_cpu_times
from homenode.host.topology.source import LiveSource, Source

LOOK_S = 0.1  # ten clock ticks of most kernels
_UTIME, _STIME, _PROCESSOR = 11, 12, 36  # fields behind the name


class CpuLook:
    """A look that begins when it is made. What processes `own` (0: the calling one) use does not count: it is not there
    when they have been placed. It is ascribed to the CPU on which each of their threads was seen last.
    """

    def __init__(self, own: Collection[int] = (0,), source: Source | None = None) -> None:
        self._source, self._own = source or LiveSource(env={}), tuple(own)
        self._began = time.monotonic()
        self._before, self._threads = self._times(), dict(self._own_threads())

    def finish(self, least_s: float = LOOK_S) -> Mapping[int, float]:
        """The part (0 to 1) of the time since the beginning in which others ran, for each CPU; it waits until the look
        has taken `least_s` seconds. Empty where the kernel does not tell."""
        time.sleep(max(0.0, self._began + least_s - time.monotonic()))
        after, own = self._times(), dict.fromkeys(self._before, 0)
        for thread, (ticks, cpu) in self._own_threads():
            if cpu in own:
                own[cpu] += max(0, ticks - self._threads.get(thread, (0, cpu))[0])
        shares = {}
        for cpu in self._before:
            if (parts := busy_and_stolen(self._before, after, (cpu,), own[cpu])) is not None:
                shares[cpu] = min(1.0, sum(parts))
        return shares

    def _times(self) -> Mapping[int, Mapping[str, int]]:
        return parse_cpu_times(self._source.read("/proc/stat") or "")

    def _own_threads(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield for each thread the ticks that it has computed, and the CPU where it was last."""
        for pid in self._own:
            folder = Path(f"/proc/{pid or 'self'}/task")
            try:
                names = [entry.name for entry in folder.iterdir()]
            except OSError:
                continue
            for name in names:
                words = (self._source.read(f"{folder}/{name}/stat") or "").rpartition(")")[2].split()
                if len(words) > _PROCESSOR:
                    yield name, (int(words[_UTIME]) + int(words[_STIME]), int(words[_PROCESSOR]))
