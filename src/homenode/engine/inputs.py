"""The input of a model: token ids, and rows that take the place of their embeddings.

A prompt is a list of parts: token ids, or rows of the model's first layer that were computed elsewhere (embeddings that
a client has made, what an encoder of pictures makes). Whoever makes a part calls it by digests, one a row; equal
digests stand for equal rows, so that the prefix cache knows rows without looking at their numbers.

The engine has a prompt in flat form: an id for every position, a placeholder where a row stands, and the rows with
their places. Of these a step carries those that it computes, and `StepArrays.input_rows` has them for the model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from homenode.sampling import NO_TOKEN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ROW_DIGEST_BYTES = 32
_ELEMENT = 4  # bytes of a float32
_ROWS, _PLACE_BYTES = b"rows", 8  # what `digests_between` begins with; a place in it


class PromptRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a model's input, [rows, columns] float32 little-endian, and their digests beside each other.
    `placeholder`: the token id that a vocabulary has for such a position; `NO_TOKEN`: none. `grid`: of a model whose
    rope turns by the places of a picture, how many rows and columns of places these stand for; 0, 0: each follows the
    one before, as tokens do. `together`: each sees all of them, also those behind it, in layers that have that.
    """

    data: bytes
    columns: int
    digests: bytes
    placeholder: int = NO_TOKEN
    grid: tuple[int, int] = (0, 0)
    together: bool = False

    def __len__(self) -> int:
        return len(self.digests) // ROW_DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Token ids, or rows that take the place of their embeddings; `ids` are placeholders then."""

    ids: Sequence[int]
    rows: PromptRows | None = None

    @classmethod
    def of_rows(cls, rows: PromptRows) -> PromptPart:
        """The part that these rows are."""
        return cls([rows.placeholder] * len(rows), rows)


class PlacedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows from position `first` of a prompt on."""

    first: int
    rows: PromptRows

    @property
    def past(self) -> int:
        """The position behind them."""
        return self.first + len(self.rows)


class PictureGrid(NamedTuple):
    """The places of a picture's rows, from position `first` of a sequence on."""

    first: int
    rows: int
    columns: int

    @property
    def past(self) -> int:
        """The position behind them."""
        return self.first + self.rows * self.columns

    @property
    def saved(self) -> int:
        """By how much less than their number they move what follows: its place is behind the longer side."""
        return self.rows * self.columns - max(self.rows, self.columns)


class StepRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows that a step computes, from position `first` of a sequence on."""

    first: int
    columns: int
    data: memoryview

    def array(self) -> npt.NDArray[np.float32]:
        """[rows, columns]. ValueError where bytes are missing."""
        import numpy as np  # not for servers, which start without it

        return np.frombuffer(self.data, "<f4").reshape(-1, self.columns)


class FlatPrompt(NamedTuple):
    """The ids of all positions, and what stands in places of embeddings, in the order of positions."""

    ids: list[int]
    rows: list[PlacedRows]


def flatten(parts: Iterable[PromptPart]) -> FlatPrompt:
    """The flat form of a prompt's parts."""
    ids: list[int] = []
    rows = []
    for part in parts:
        if part.rows is not None:
            rows.append(PlacedRows(len(ids), part.rows))
        ids += part.ids
    return FlatPrompt(ids, rows)


def rows_problem(ids: Sequence[int], rows: Sequence[PlacedRows]) -> str | None:
    """Return what is wrong with a flat prompt; None where every position has an id or a row, and rows are whole."""
    past = 0
    for placed in rows:
        own = placed.rows
        if len(own.digests) % ROW_DIGEST_BYTES or len(own.data) != len(own) * own.columns * _ELEMENT or not len(own):
            return f"rows of {len(own.data)} bytes in {own.columns} columns have digests of {len(own.digests)} bytes"
        if own.grid != (0, 0) and (min(own.grid) < 1 or own.grid[0] * own.grid[1] != len(own)):
            return f"{len(own)} rows are said to stand in {own.grid[0]} x {own.grid[1]} places"
        if placed.first < past or placed.past > len(ids):
            return f"rows stand at {placed.first} to {placed.past - 1} of {len(ids)} positions, {past} of them taken"
        past = placed.past
    bare = sum(token < 0 for token in ids) - sum(len(each.rows) for each in rows if each.rows.placeholder < 0)
    return f"{bare} positions have neither an id nor a row" if bare > 0 else None


def grids_of(rows: Sequence[PlacedRows]) -> list[PictureGrid]:
    """Return the places of all pictures that have such."""
    return [PictureGrid(placed.first, *placed.rows.grid) for placed in rows if placed.rows.grid != (0, 0)]


def spans_of(rows: Sequence[PlacedRows]) -> list[tuple[int, int]]:
    """Return the first and the past position of rows that see each other."""
    return [(placed.first, placed.past) for placed in rows if placed.rows.together]


def rows_between(rows: Sequence[PlacedRows], start: int, end: int) -> tuple[StepRows, ...]:
    """The rows at positions start .. end - 1, without a copy."""
    found = []
    for placed in rows:
        first, past = max(start, placed.first), min(end, placed.past)
        if first < past:
            size = placed.rows.columns * _ELEMENT
            data = memoryview(placed.rows.data)[(first - placed.first) * size : (past - placed.first) * size]
            found.append(StepRows(first, placed.rows.columns, data))
    return tuple(found)


def digests_between(rows: Sequence[PlacedRows], start: int, end: int) -> bytes:
    """Return what tells the rows at positions start .. end - 1 from others: their places within, and their digests,
    however they were cut into parts. Nothing where there are none; else never as long as some ids of eight bytes,
    beside which a hash takes it in.
    """
    places: list[int] = []
    digests = b""
    for placed in rows:
        first, past = max(start, placed.first), min(end, placed.past)
        if first < past:
            places += range(first - start, past - start)
            own = slice((first - placed.first) * ROW_DIGEST_BYTES, (past - placed.first) * ROW_DIGEST_BYTES)
            digests += placed.rows.digests[own]
    return _ROWS + struct.pack(f"{len(places)}q", *places) + digests if places else b""


def row_digests_in(told: bytes) -> bytes:
    """Return the digests alone, one behind the other, of what `digests_between` has returned."""
    count = max(0, len(told) - len(_ROWS)) // (_PLACE_BYTES + ROW_DIGEST_BYTES)
    return told[len(told) - count * ROW_DIGEST_BYTES :]
