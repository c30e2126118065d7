"""Pictures in slices, as MiniCPM-V has them: a picture as a whole, about as large as one slice, and a large one besides
cut by the grid whose ratio is nearest to its own; the slices keep that ratio, so no slice is stretched to a square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from homenode.model.pictures import pixels
from homenode.model.pictures.family import PictureLayout, PreparedPicture

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]  # height and width


class SlicedPictures:
    """Sizes of a picture and its slices. `factor`: of which their sides are multiples."""

    def __init__(self, processor: Mapping[str, Any], factor: int) -> None:
        self.factor = factor
        self._most = int(processor.get("max_slice_nums") or 9) if processor.get("slice_mode", True) else 1
        self._side = int(processor.get("scale_resolution") or 448)
        self._resample = int(processor.get("resample") or pixels.BICUBIC)
        self._ids = bool(processor.get("use_image_id", True))

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`. The whole is first; no tiles in the layout are a picture that is not cut."""
        original = (picture.height, picture.width)
        rows, columns = self._grid(*original)
        size = self._whole(*original, enlarged=not rows)
        tiles = [pixels.pixels_of(pixels.resized(picture, *size, self._resample))]
        if rows:
            high, wide = self.slice_size(original, (rows, columns))
            cut = pixels.resized(picture, high * rows, wide * columns, self._resample)
            tiles += pixels.square_tiles(cut, rows, columns, (high, wide))
        return PreparedPicture(tiles, PictureLayout((rows, columns), size, original, alone))

    def slice_size(self, original: Size, tiles: Size) -> Size:
        """The size of each slice of a picture of the size `original` in so many rows and columns."""
        high, wide = (_nearest(length, count) / count for length, count in zip(original, tiles, strict=True))
        return self._whole(high, wide, enlarged=True)

    def text(self, layout: PictureLayout, places: Callable[[Size], str], number: int) -> str:
        """Return what stands in a prompt for the picture `number`. `places`: the placeholders of a tile of a size."""
        parts = [f"<image_id>{number}</image_id>"] if self._ids else []
        parts.append(f"<image>{places(layout.size)}</image>")
        rows, columns = layout.tiles
        if rows:
            line = f"<slice>{places(self.slice_size(layout.original, layout.tiles))}</slice>" * columns
            parts.append("\n".join([line] * rows))
        return "".join(parts)

    def _whole(self, height: float, width: float, *, enlarged: bool) -> Size:
        if enlarged or height * width > self._side * self._side:
            ratio = width / height
            height = int(self._side / math.sqrt(ratio))
            width = int(height * ratio)
        return _nearest(height, self.factor), _nearest(width, self.factor)

    def _grid(self, height: int, width: int) -> Size:
        """Rows and columns of slices; 0, 0: the picture is not cut."""
        ratio = math.log(width / height)
        count = min(math.ceil(height * width / (self._side * self._side)), self._most)
        if count <= 1:
            return 0, 0
        best, apart = (1, 1), math.inf
        for slices in (count - 1, count, count + 1):
            for rows in range(1, slices + 1) if 1 < slices <= self._most else ():
                if slices % rows:
                    continue
                found = abs(ratio - math.log(slices // rows / rows))
                if found < apart or (found == apart and rows > best[0]):
                    best, apart = (rows, slices // rows), found
        return best


def _nearest(length: float, step: int) -> int:
    return max(round(length / step), 1) * step
