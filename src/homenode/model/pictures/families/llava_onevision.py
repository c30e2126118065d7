"""LLaVA-OneVision: as NeXT, with a map of all tiles that is made smaller where it has too many rows; where a request
has several pictures, each as a whole alone, with borders that make it a square.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.model.pictures import pixels
from homenode.model.pictures.families.llava import LlavaNext
from homenode.model.pictures.family import (
    FamilyFormat,
    Names,
    PictureConfig,
    PictureLayout,
    PictureRows,
    PreparedPicture,
)
from homenode.model.pictures.tower import Tower
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_SPARE = 1.1  # times as long a side as may be is left as it is


class LlavaOnevision(LlavaNext):
    """See `PictureFamily`."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config)
        ratio = config.config.text("vision_aspect_ratio", "anyres_max_9")
        most = ratio.removeprefix("anyres_max_")
        if not most.isdigit() or not int(most):
            raise config.config.wrong("vision_aspect_ratio", ratio, "anyres_max_ and a number")
        self._most = int(most)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        if alone:
            return super().prepare(picture, alone)
        from PIL import Image as images

        original, side = (picture.height, picture.width), max(picture.size)
        red, green, blue = (int(mean * 255) for mean in self.normalisation.mean)
        square = images.new("RGB", (side, side), (red, green, blue))
        square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
        tile = pixels.pixels_of(pixels.resized(square, self._shortest, self._shortest, self._resample))
        return PreparedPicture([tile], PictureLayout((1, 1), (len(tile), len(tile)), original, alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        if not layout.alone:
            return names(self.placeholder) * (self._tile_rows + 1)
        rows, columns, _, _ = self._map(layout)
        rows, columns = self._reduced(rows, columns)
        return names(self.placeholder) * (self._tile_rows + rows * (columns + 1))

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        if picture.layout.alone:
            return super().encode(tower, picture)
        assert self._newline is not None
        return PictureRows(np.concatenate([self._tiles(tower, picture)[0], self._newline[None]]))

    def _fitted(self, rows: FloatArray) -> FloatArray:
        """See `LlavaNext`."""
        size = self._reduced(rows.shape[0], rows.shape[1])
        return rows if size == rows.shape[:2] else pixels.read_between(rows, *size)

    def _reduced(self, rows: int, columns: int) -> tuple[int, int]:
        ratio = math.sqrt(rows * columns / (self._most * self.tower.side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > _SPARE else (rows, columns)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("llava_onevision")


FAMILY = FamilyFormat(_spec, LlavaOnevision)
