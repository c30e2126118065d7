"""The places of pictures in a prompt: in its text, where the chat template has written a mark for each, and among its
ids, where rows stand for placeholders. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from homenode.engine.inputs import ROW_DIGEST_BYTES, PlacedRows, PromptRows
from homenode.model.pictures.family import PictureFamily, PictureLayout

Names = Callable[[int], str]  # of tokens


def marker_of(family: PictureFamily, names: Names) -> str:
    """The text that a chat template writes for a picture."""
    token = family.marker_token
    return token if isinstance(token, str) else names(family.placeholder if token is None else token)


def marked_places(text: str, marker: str) -> list[tuple[int, int]]:
    """The beginnings and ends of marks in a text."""
    return [found.span() for found in re.finditer(re.escape(marker), text)]


def with_pictures(
    text: str,
    places: Sequence[tuple[int, int]],
    layouts: Sequence[PictureLayout],
    family: PictureFamily,
    names: Names,
) -> str:
    """The text with what a family writes in the place of each picture."""
    parts, at = [], 0
    for number, (place, layout) in enumerate(zip(places, layouts, strict=True)):
        parts += [text[at : place[0]], family.written(layout, names, number)]
        at = place[1]
    return "".join([*parts, text[at:]])


def placed_rows(placeholder: int, ids: Sequence[int], rows: Sequence[PromptRows], first: int) -> list[PlacedRows] | int:
    """The rows of pictures at the placeholders among `ids` from place `first` on, each run of them apart; how many
    placeholders there are where these are not as many as rows.
    """
    places = [place for place in range(first, len(ids)) if ids[place] == placeholder]
    if len(places) != sum(map(len, rows)):
        return len(places)
    found, at = [], 0
    for own in rows:
        mine = places[at : at + len(own)]
        at += len(own)
        begin = 0
        for number in range(1, len(mine) + 1):
            if number == len(mine) or mine[number] != mine[number - 1] + 1:
                found.append(PlacedRows(mine[begin], _part(own, begin, number)))
                begin = number
    return found


def _part(rows: PromptRows, begin: int, end: int) -> PromptRows:
    if (begin, end) == (0, len(rows)):
        return rows
    width = 4 * rows.columns
    digests = rows.digests[begin * ROW_DIGEST_BYTES : end * ROW_DIGEST_BYTES]
    data = rows.data[begin * width : end * width]
    return PromptRows(data, rows.columns, digests, rows.placeholder, (0, 0), rows.together)
