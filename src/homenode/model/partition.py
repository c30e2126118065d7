"""Dividing heads and lengths among ranks as evenly as their alignment allows. Pure arithmetic.

Ranks wait for each other after every divided product, so the largest share counts: shares differ by one aligned unit at
most, the larger ones first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from homenode.model.part import IndexRange

_SIMD = 32  # elements: rows stand in groups of so many in memory, and every vector length divides it
_LONG = 32 * _SIMD  # a share so long loses little by being rounded to _SIMD


@dataclass(frozen=True)
class Alignment:
    """The places where a dimension may be cut: at multiples of `needed`, the block in which it is stored, and better at
    those of `wanted` as well, the block in which it will be kept: then a share has the values that the whole has.
    """

    needed: int = 1
    wanted: int = 1

    def tries(self) -> Iterator[int]:
        """Alignments to try, the best first."""
        both = math.lcm(self.needed, self.wanted)
        yield both
        if both != self.needed:
            yield self.needed


def divide(count: int, ranks: int, alignment: Alignment = Alignment()) -> tuple[IndexRange, ...] | None:
    """Elements 0 .. count - 1 for each rank, in order; None where there are fewer aligned pieces than ranks."""
    if count >= _LONG * ranks and (ranges := _runs(count, ranks, math.lcm(alignment.needed, alignment.wanted, _SIMD))):
        return ranges
    return next((ranges for size in alignment.tries() if (ranges := _runs(count, ranks, size))), None)


def divide_heads(
    heads: int, kv_heads: int, head_dim: int, ranks: int, alignment: Alignment
) -> tuple[tuple[IndexRange, IndexRange], ...] | None:
    """Return for each rank its query heads and the KV heads that they read; `alignment`: of the columns that the query
    heads are. None where it cannot be.

    Whole KV heads as long as there are enough of them. Then each is with several ranks, which divide the query heads
    that read it.
    """
    group = heads // kv_heads
    for size in alignment.tries():
        together = size // math.gcd(size, group * head_dim)  # so many KV heads' columns end at an aligned place
        if runs := _runs(kv_heads, ranks, together):
            return tuple((IndexRange(kv.first * group, kv.count * group), kv) for kv in runs)
        if (
            together == 1
            and ranks > kv_heads
            and (shared := _shared(kv_heads, group, ranks, size // math.gcd(size, head_dim)))
        ):
            return shared
    return None


def _shared(kv_heads: int, group: int, ranks: int, together: int) -> tuple[tuple[IndexRange, IndexRange], ...] | None:
    """Each KV head's query heads divided among the ranks that have it; `together` of them end at an aligned place."""
    parts: list[tuple[IndexRange, IndexRange]] = []
    for kv, sharing in enumerate(_runs(ranks, kv_heads, 1) or ()):
        runs = _runs(group, sharing.count, together)
        if runs is None:
            return None
        parts += [(IndexRange(kv * group + run.first, run.count), IndexRange(kv, 1)) for run in runs]
    return tuple(parts)


def _runs(count: int, ranks: int, alignment: int) -> tuple[IndexRange, ...] | None:
    units = -(-count // alignment)
    if units < ranks:
        return None
    ends = accumulate((units // ranks + (rank < units % ranks) for rank in range(ranks)), initial=0)
    return tuple(
        IndexRange(first * alignment, min(end * alignment, count) - first * alignment) for first, end in pairwise(ends)
    )
