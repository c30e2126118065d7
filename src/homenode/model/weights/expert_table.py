"""The place of each expert's matrix in memory that engines share. Pure, and the same for all who share it.

| header | share of member 0 | share of member 1 | ...        each on a boundary of huge pages, so that no page has two
owners

Within a share: first one expert of every layer, then the next of every layer, and so on (a run each). An owner with
several nodes gives each of them some runs, and so each of them has experts of every layer. A matrix begins on a
boundary of pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from homenode.errors import UserError
from homenode.model.part import ModelPart
from homenode.model.weights.expert_header import HEADER_BYTES, IDENTITY, MAGIC, MOST_MEMBERS
from homenode.model.weights.expert_share import expert_owners_of
from homenode.model.weights.layout import MatrixLayout, WeightLayout
from homenode.model.weights.packed_file import SourceFile
from homenode.units import format_count

PAGE, HUGE_PAGE = 4096, 2 << 20

Extent = tuple[int, int]  # from byte, to before byte
PackedBytes = Callable[[str, int, int], int]  # of a matrix kept in a format, with so many rows and columns


@dataclass(frozen=True, slots=True)
class SharedMatrix:
    """A matrix kept in common. `offset`, `size`: bytes."""

    name: str
    target: str
    rows: int
    columns: int
    owner: int
    offset: int
    size: int

    @property
    def pages(self) -> Extent:
        """The pages that are its own."""
        return self.offset, _up(self.offset + self.size, PAGE)


@dataclass(frozen=True)
class ExpertTable:
    """`matrices` by name. `runs`: of each member's share, one behind the other, none for a member without experts.
    `size`: of the memory.
    """

    matrices: Mapping[str, SharedMatrix]
    runs: tuple[tuple[Extent, ...], ...]
    size: int

    def share(self, member: int) -> Extent | None:
        """All that a member owns; None when that is nothing."""
        runs = self.runs[member]
        return (runs[0][0], runs[-1][1]) if runs else None


def expert_table(layout: WeightLayout, part: ModelPart, members: int, packed_bytes: PackedBytes) -> ExpertTable:
    """The table of all experts' matrices of a part, shared by so many members. UserError for more of them than the
    header has room for.
    """
    if not 0 < members <= MOST_MEMBERS:
        raise UserError(
            f"experts cannot be kept in common by {format_count(members, 'engine')}; give 1 to {MOST_MEMBERS}",
            param="data_parallel_size",
        )

    owned = expert_owners_of(part, members)

    def run(m: MatrixLayout) -> tuple[int, int]:
        expert = owned[m.layer or 0, m.expert or 0]
        return expert.owner, expert.turn

    # Stable: within a run as the layout has them.
    order = sorted((m for m in layout.matrices if m.expert is not None), key=run)
    matrices: dict[str, SharedMatrix] = {}
    runs: list[list[Extent]] = [[] for _ in range(members)]
    at = _up(HEADER_BYTES, HUGE_PAGE)
    for (owner, _), some in groupby(order, run):
        begin = at = at if runs[owner] else _up(at, HUGE_PAGE)
        for m in some:
            matrices[m.name] = SharedMatrix(
                m.name, m.target, m.rows, m.columns, owner, at, packed_bytes(m.target, m.rows, m.columns)
            )
            at = matrices[m.name].pages[1]
        runs[owner].append((begin, at))
    for some_runs in filter(None, runs):  # the last huge page of a share is all its own
        begin, end = some_runs.pop()
        some_runs.append((begin, _up(end, HUGE_PAGE)))
    return ExpertTable(matrices, tuple(map(tuple, runs)), _up(at, HUGE_PAGE))


def identity_of(
    table: ExpertTable, part: ModelPart, members: int, model: Sequence[SourceFile], packing: str
) -> dict[str, int]:
    """Return what the first words of the header are to say (`expert_header.IDENTITY`); none of them is 0."""
    formats = [(m.name, m.target, m.rows, m.columns, m.offset, m.size) for m in table.matrices.values()]
    said = (MAGIC, members, _digest(tuple(model)), _digest(part), _digest(formats), _digest(packing))
    return dict(zip(IDENTITY, said, strict=True))


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little") | 1


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
