"""The ranks that have each expert of an MoE model, where experts are divided as wholes: in turn, in runs, or by how
often each is used. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Experts = tuple[tuple[int, ...], ...]  # of each rank, ascending


@dataclass(frozen=True)
class ExpertUse:
    """Counts of how often each expert of each layer was used: `counts[layer][expert]`; layers without experts may have
    anything.
    """

    counts: tuple[tuple[float, ...], ...]


ExpertPlacement = Literal["spread", "packed"] | ExpertUse


def place_experts(
    experts: Sequence[int], layer: int, ranks: int, placement: ExpertPlacement, accelerators: Collection[int] = ()
) -> Experts:
    """The experts of layer `layer` for each rank, as many for each as can be. `accelerators`: ranks that get the most
    used, by counts.
    """
    if isinstance(placement, ExpertUse):
        return _by_use({e: placement.counts[layer][e] for e in experts}, ranks, accelerators)
    if placement == "spread":
        return tuple(tuple(experts[rank::ranks]) for rank in range(ranks))
    cuts = [len(experts) * rank // ranks for rank in range(ranks + 1)]
    return tuple(tuple(experts[first:end]) for first, end in pairwise(cuts))


def _by_use(counts: dict[int, float], ranks: int, accelerators: Collection[int]) -> Experts:
    """The most used to accelerators; among ranks of a kind the next goes to the one with the least to do
    that has room.
    """
    order = sorted(range(ranks), key=lambda rank: rank not in accelerators)
    room = {rank: len(counts) // ranks + (place < len(counts) % ranks) for place, rank in enumerate(order)}
    load = dict.fromkeys(range(ranks), 0.0)
    has: list[list[int]] = [[] for _ in range(ranks)]
    for expert in sorted(counts, key=lambda e: (-counts[e], e)):
        free = [rank for rank in order if room[rank] > len(has[rank])]
        better = [rank for rank in free if rank in accelerators] or free
        rank = min(better, key=lambda r: (load[r], len(has[r]), r))
        has[rank].append(expert)
        load[rank] += counts[expert]
    return tuple(tuple(sorted(some)) for some in has)
