"""What the process of a tower and its parent say to each other, as JSON has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homenode.model.pictures.family import PictureLayout

PIECE = 32 << 20  # bytes of rows in one frame


def layout_of(words: Sequence[Any]) -> PictureLayout:
    """A layout out of `layout_words`."""
    (rows, columns), (high, wide), (height, width), alone = words
    return PictureLayout((int(rows), int(columns)), (int(high), int(wide)), (int(height), int(width)), bool(alone))


def layout_words(layout: PictureLayout) -> list[Any]:
    """A layout as JSON has it."""
    return [list(layout.tiles), list(layout.size), list(layout.original), layout.alone]
