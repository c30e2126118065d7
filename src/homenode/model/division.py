"""Dividing heads and lengths among ranks as evenly as their grain allows. Pure arithmetic.

Ranks wait for each other after every divided product, so the largest share counts: shares differ by one grain at most, the larger ones first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from homenode.model.part import Span

_SIMD = 32  # elements: rows stand in groups of so many in memory, and every vector length divides it
_LONG = 32 * _SIMD  # a share so long loses little by being rounded to _SIMD


@dataclass(frozen=True)
class Grain:
    """Where a dimension may be cut: at multiples of `needed`, the block in which it is stored, and better at those of `wanted` as well, the block in
    which it will be kept: then a share has the values that the whole has."""

    needed: int = 1
    wanted: int = 1

    def tries(self) -> Iterator[int]:
        """Grains to try, the best first."""
        both = math.lcm(self.needed, self.wanted)
        yield both
        if both != self.needed:
            yield self.needed


def divide(count: int, ranks: int, grain: Grain = Grain()) -> tuple[Span, ...] | None:
    """Elements 0 .. count - 1 for each rank, in order; None where there are fewer grains than ranks."""
    if count >= _LONG * ranks and (spans := _runs(count, ranks, math.lcm(grain.needed, grain.wanted, _SIMD))):
        return spans
    return next((spans for size in grain.tries() if (spans := _runs(count, ranks, size))), None)


def divide_heads(
    heads: int, kv_heads: int, head_dim: int, ranks: int, grain: Grain
) -> tuple[tuple[Span, Span], ...] | None:
    """For each rank its query heads and the KV heads that they read; `grain`: of the columns that the query heads are. None where it cannot be.

    Whole KV heads as long as there are enough of them. Then each is with several ranks, which divide the query heads that read it.
    """
    group = heads // kv_heads
    for size in grain.tries():
        together = size // math.gcd(size, group * head_dim)  # so many KV heads' columns end at a grain
        if runs := _runs(kv_heads, ranks, together):
            return tuple((Span(kv.first * group, kv.count * group), kv) for kv in runs)
        if (
            together == 1
            and ranks > kv_heads
            and (shared := _shared(kv_heads, group, ranks, size // math.gcd(size, head_dim)))
        ):
            return shared
    return None


def _shared(kv_heads: int, group: int, ranks: int, together: int) -> tuple[tuple[Span, Span], ...] | None:
    """Each KV head's query heads divided among the ranks that have it; `together` of them end at a grain."""
    parts: list[tuple[Span, Span]] = []
    for kv, sharing in enumerate(_runs(ranks, kv_heads, 1) or ()):
        runs = _runs(group, sharing.count, together)
        if runs is None:
            return None
        parts += [(Span(kv * group + run.first, run.count), Span(kv, 1)) for run in runs]
    return tuple(parts)


def _runs(count: int, ranks: int, grain: int) -> tuple[Span, ...] | None:
    grains = -(-count // grain)
    if grains < ranks:
        return None
    ends = accumulate((grains // ranks + (rank < grains % ranks) for rank in range(ranks)), initial=0)
    return tuple(Span(first * grain, min(end * grain, count) - first * grain) for first, end in pairwise(ends))
