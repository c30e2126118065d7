"""The number of CPUs that vLLM's CPU backend keeps free of compute threads, by its version. Pure.

| version | x86-64 | Arm, RISC-V | others | with KV transfer |
|---|---|---|---|---|
| 0.32 and later | one of each rank | one of each rank | one in all | one more of each rank |
| before | one in all | one of each rank | one in all | one more in all |

Where the ranks have no more CPUs than that together, it keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.plan.thread_layout import every_thread_computes

Version = tuple[int, int]

_OF_EACH_RANK: Version = (0, 32)  # the first release with today's rule
_X86 = ("x86_64", "amd64", "i386", "i686")


def cpus_kept(machine: str, ranks: int, *, kv_transfer: bool, version: Version | None) -> int:
    """CPUs that the rule keeps of all ranks together. `version`: None for the current rule."""
    if version is not None and version < _OF_EACH_RANK:
        return (ranks if every_thread_computes(machine) else 1) + kv_transfer
    return (ranks if every_thread_computes(machine) or machine in _X86 else 1) + ranks * kv_transfer


def parts_kept(pools: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return how many CPUs each rank gives of its own where nobody asked for the reserve: equal parts, what is left
    over from the last ranks. A rank keeps one CPU, and where all have no more than `count` together nobody gives any.
    """
    ranks = len(pools)
    if sum(map(len, pools)) <= count:
        return [0] * ranks
    even, rest = divmod(count, ranks)
    return [min(even + (rank >= ranks - rest), len(pool) - 1) for rank, pool in enumerate(pools)]
