"""The demand that was made of the NUMA nodes, and what that came to. Pure, and without the topology of a host: every
command line has these settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.numa_policy import NumaPolicy


@dataclass(frozen=True, slots=True)
class NumaDemand:
    """The demand that was made of the NUMA nodes. `nodes`: the text of --numa-nodes. `mirror_tensors`: patterns
    of tensor names.

    `reserve`: physical cores that nothing computes on, None for the usual one.
    """

    policy: NumaPolicy = NumaPolicy.AUTO
    nodes: str | None = None
    threads: int | None = None
    threads_per_core: int = 1
    mirror_tensors: tuple[str, ...] = ()
    strict: bool = False
    reserve: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice that was made already."""

    policy: NumaPolicy
    why: str
    nodes: tuple[int, ...] = ()
