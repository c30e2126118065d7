"""The placement strategies: each by its name on the command line and in plans."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """A member is its name, and a policy of `policies`; `select.STRATEGIES` says what each does."""

    FAIR = "fair"
    ASCEND = "ascend"
    GLOBAL_SLICE = "global-slice"
    TOPO_AFFINITY = "topo-affinity"
    NUMA_BIND = "numa-bind"
    CPU_THREADS = "cpu-threads"
