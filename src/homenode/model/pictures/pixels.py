"""Pixels as towers take them: sizes, scaling, normalising, and patches in the order of their blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.errors import UnsupportedError
from homenode.model.pictures.family import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Usual = tuple[tuple[float, ...], tuple[float, ...]]  # a mean and a deviation of each channel
CLIP: Usual = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF: Usual = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
IMAGENET: Usual = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1  # as pillow numbers its filters
MOST_TILES: Final = 256  # of a picture
_STEEPEST = 200  # of the sides of a picture


@dataclass(frozen=True)
class Normalisation:
    """x * (1 / 255), less a mean and divided by a deviation, of each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def read(cls, processor: Mapping[str, Any], usual: Usual, does: bool = True) -> Normalisation:
        """Return what an image processor's fields say, or else what is `usual` of its class."""
        if not processor.get("do_normalize", does):
            return cls((0.0,) * 3, (1.0,) * 3)
        mean, deviation = (processor.get(key) or usual[i] for i, key in enumerate(("image_mean", "image_std")))
        return cls(tuple(map(float, mean)), tuple(map(float, deviation)))

    def of(self, pixels: Pixels) -> FloatArray:
        """[height, width, 3] -> [3, height, width]."""
        mean, deviation = (np.array(part, np.float32) * np.float32(255) for part in (self.mean, self.deviation))
        return np.ascontiguousarray(((pixels.astype(np.float32) - mean) / deviation).transpose(2, 0, 1))


def resized(picture: Image, height: int, width: int, resample: int) -> Image:
    """The picture in another size; as it is where it has that."""
    from PIL.Image import Resampling

    return picture if picture.size == (width, height) else picture.resize((width, height), Resampling(resample))


def pixels_of(picture: Image) -> Pixels:
    """[height, width, 3] of an RGB picture."""
    return np.asarray(picture, np.uint8)


def area_size(height: int, width: int, factor: int, least: float, most: float) -> tuple[int, int]:
    """The size whose sides are multiples of `factor` and whose area is from `least` to `most`, the ratio of the sides
    being about as it was (as Qwen 2 VL has it). ValueError for a picture that is too long for its width.
    """
    if max(height, width) / min(height, width) > _STEEPEST:
        raise ValueError(f"one side of it is more than {_STEEPEST} times as long as the other")
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    if high * wide > most:
        shrink = math.sqrt(height * width / most)
        high = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif high * wide < least:
        grow = math.sqrt(least / (height * width))
        high, wide = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return high, wide


def block_patches(channels: FloatArray, side: int, merge: int) -> FloatArray:
    """Patches [n, 3 * side * side] of [3, height, width], those of a block of `merge` x `merge` beside each other,
    blocks row by row; the values of a patch channel by channel.
    """
    count, height, width = channels.shape
    rows, columns = height // side, width // side
    cut = channels.reshape(count, rows // merge, merge, side, columns // merge, merge, side)
    return np.ascontiguousarray(cut.transpose(1, 4, 2, 5, 0, 3, 6)).reshape(rows * columns, count * side * side)


def merged_blocks(rows: FloatArray, down: int, across: int, merge: int) -> FloatArray:
    """Rows [down * across, width] of places, those of each block of `merge` x `merge` beside each other in one."""
    width = rows.shape[-1]
    cut = rows.reshape(down // merge, merge, across // merge, merge, width).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(cut).reshape(-1, merge * merge * width)


def square_tiles(picture: Image, rows: int, columns: int, side: tuple[int, int]) -> list[Pixels]:
    """The tiles of a picture that is as large as all of them, row by row."""
    whole = pixels_of(picture)
    high, wide = side
    return [
        np.ascontiguousarray(whole[row * high : (row + 1) * high, column * wide : (column + 1) * wide])
        for row in range(rows)
        for column in range(columns)
    ]


def best_grid(height: int, width: int, area: int, grids: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The one of `grids`, as columns and rows of tiles of `area`, whose ratio is nearest to that of a picture; of
    several the last that the picture fills to more than half.
    """
    best, apart = (1, 1), float("inf")
    for columns, rows in grids:
        found = abs(width / height - columns / rows)
        if found < apart or (found == apart and width * height > 0.5 * area * columns * rows):
            best, apart = (columns, rows), found
    return best


def tile_grids(least: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows of grids of so many tiles. UnsupportedError for more than any model has."""
    if not 1 <= most <= MOST_TILES:
        raise UnsupportedError(f"images in up to {most} tiles are not supported; 1 to {MOST_TILES} are")
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if least <= c * r <= most]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def in_square(picture: Image, side: int, resample: int, colour: tuple[int, int, int]) -> Image:
    """The picture scaled to a square of this side, in the middle of a colour where it is longer than wide or else."""
    from PIL import Image as images

    scale = side / max(picture.height, picture.width)
    high, wide = (max(1, round(length * scale)) for length in (picture.height, picture.width))
    canvas = images.new("RGB", (side, side), colour)
    canvas.paste(resized(picture, high, wide, resample), ((side - wide) // 2, (side - high) // 2))
    return canvas


def block_places(rows: int, columns: int, merge: int) -> FloatArray:
    """The row and column [n, 2] of each patch in the order of `block_patches`."""
    grid = np.indices((rows, columns)).transpose(1, 2, 0).astype(np.float32)
    cut = grid.reshape(rows // merge, merge, columns // merge, merge, 2)
    return np.ascontiguousarray(cut.transpose(0, 2, 1, 3, 4)).reshape(rows * columns, 2)


def rope_columns(places: FloatArray, head_dim: int, theta: float) -> FloatArray:
    """cos and sin [n, head_dim] by which heads turn, the first half of the pairs by the row, the second by the column
    of each place.
    """
    pairs = head_dim // 4
    frequencies = np.float32(1) / np.power(np.float32(theta), np.arange(pairs, dtype=np.float32) / np.float32(pairs))
    angles = (places[:, :, None] * frequencies).reshape(len(places), 2 * pairs)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rope_of_line(places: FloatArray, head_dim: int, theta: float) -> FloatArray:
    """cos and sin [n, head_dim] by which heads turn at places [n] of a line."""
    pairs = head_dim // 2
    frequencies = np.float32(1) / np.power(np.float32(theta), np.arange(pairs, dtype=np.float32) / np.float32(pairs))
    angles = places[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rope_columns_in_turns(places: FloatArray, head_dim: int, theta: float) -> FloatArray:
    """The same, every second frequency turning by the row, the others by the column (as in Pixtral)."""
    pairs = head_dim // 2
    frequencies = np.float32(1) / np.power(np.float32(theta), np.arange(pairs, dtype=np.float32) / np.float32(pairs))
    parts = [places[:, axis, None] * frequencies[axis::2] for axis in range(2)]
    angles = np.concatenate(parts, axis=1)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def bilinear_table(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """A table of positions [side * side, width] read at rows x columns places between its corners: [rows, columns,
    width].
    """
    side = math.isqrt(len(table))
    grid = table.reshape(side, side, -1)
    down, down_share = _between(side, rows)
    across, across_share = _between(side, columns)
    upper = _mixed(grid[down[:, None], across], grid[down[:, None], np.minimum(across + 1, side - 1)], across_share)
    below = np.minimum(down + 1, side - 1)
    lower = _mixed(grid[below[:, None], across], grid[below[:, None], np.minimum(across + 1, side - 1)], across_share)
    return np.asarray(_mixed(upper, lower, down_share[:, None]), np.float32)


def bicubic_table(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """A table of positions [high, wide, width] read by cubics at the middles of rows x columns places that share its
    area, its border going on outside: [rows, columns, width].
    """
    down, across = (_cubic_weights(side, count) for side, count in zip(table.shape, (rows, columns), strict=False))
    return _of_weights(table, down, across)


def _cubic_weights(side: int, count: int) -> FloatArray:
    """The share of each of `side` values in each of `count` that are read between them, a = -0.75."""
    places = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * np.float32(side / count) - np.float32(0.5)
    whole = np.floor(places)
    share = places - whole
    weights = np.zeros((count, side), np.float32)
    for tap in range(-1, 3):
        at = np.clip(whole.astype(np.int64) + tap, 0, side - 1)
        np.add.at(weights, (np.arange(count), at), _cubic(np.abs(share - np.float32(tap))))
    return weights


def _cubic(x: FloatArray, steepness: float = -0.75) -> FloatArray:
    a = np.float32(steepness)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    found: FloatArray = np.where(x <= 1, near, np.where(x < 2, far, np.float32(0))).astype(np.float32)
    return found


def read_between(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """Values [high, wide, width] read in straight lines at the middles of rows x columns places that share their area,
    without an average of those between: [rows, columns, width].
    """
    down, across = (_line_weights(side, count) for side, count in zip(table.shape, (rows, columns), strict=False))
    return _of_weights(table, down, across)


def _line_weights(side: int, count: int) -> FloatArray:
    places = np.maximum((np.arange(count) + 0.5) * (side / count) - 0.5, 0)
    apart = np.abs(np.arange(side) - np.minimum(places, side - 1)[:, None])
    return np.asarray(np.maximum(0, 1 - apart), np.float32)


def _of_weights(table: FloatArray, down: FloatArray, across: FloatArray) -> FloatArray:
    found: FloatArray = np.einsum("rh,hwd,cw->rcd", down, table, across, optimize=True).astype(np.float32)
    return found


def linear_table(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """A table of positions [high, wide, width] scaled to rows x columns as a picture is, what is made smaller being
    averaged: [rows, columns, width].
    """
    down, across = (_tent_weights(side, count) for side, count in zip(table.shape, (rows, columns), strict=False))
    return _of_weights(table, down, across)


def _tent_weights(side: int, count: int) -> FloatArray:
    """The share of each of `side` values in each of `count` in their place, a tent as wide as the scale."""
    scale = side / count
    reach = max(scale, 1.0)
    middles = (np.arange(count) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(side) + 0.5 - middles[:, None]) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def cubic_table(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """The same by cubics, a = -0.5."""
    down, across = (_scaled_cubics(side, count) for side, count in zip(table.shape, (rows, columns), strict=False))
    return _of_weights(table, down, across)


def _scaled_cubics(side: int, count: int) -> FloatArray:
    scale = side / count
    middles = (np.arange(count) + 0.5) * scale
    apart = np.abs(np.arange(side) + 0.5 - middles[:, None]) / max(scale, 1.0)
    weights = _cubic(apart.astype(np.float32), -0.5)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def nearest_table(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """A table of positions [side * side, width] read at the shares of its sides at which rows x columns places begin:
    [rows * columns, width]. Shares are multiples of one step below 1.
    """
    steps = (_multiples(count) for count in (rows, columns))
    return _of_shares(table, *(np.minimum(shares, np.float32(1 - 1e-6)) for shares in steps))


def nearest_table_of_quotients(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """The same where each share is a quotient, which may be rounded otherwise than a multiple."""
    return _of_shares(table, *(np.arange(count, dtype=np.float32) / np.float32(count) for count in (rows, columns)))


def _multiples(count: int) -> FloatArray:
    return np.arange(count, dtype=np.float32) * np.float32(1.0 / count)


def _of_shares(table: FloatArray, down: FloatArray, across: FloatArray) -> FloatArray:
    """The rows of a table of which each share is behind the beginning, and before the next one's. Beginnings are
    rounded once, as torch has them: steps of NumPy in float32 drift, so that a place would be the one before it.
    """
    side = math.isqrt(len(table))
    ends = (1 / side + np.arange(len(np.arange(1 / side, 1.0, 1 / side))) * (1 / side)).astype(np.float32)
    places = (np.searchsorted(ends, shares, side="right") for shares in (down, across))
    return table.reshape(side, side, -1)[np.ix_(*places)].reshape(len(down) * len(across), -1)


def _between(side: int, count: int) -> tuple[np.ndarray[Any, Any], FloatArray]:
    places = np.linspace(0, side - 1, count, dtype=np.float32)
    whole = places.astype(np.int64)
    return whole, (places - whole).astype(np.float32)


def _mixed(first: FloatArray, second: FloatArray, share: FloatArray) -> FloatArray:
    return first * (1 - share[..., None]) + second * share[..., None]


def fields_of(size: Any, keys: Sequence[str], usual: int) -> int:
    """The first of `keys` that a table of sizes has, a number, or the number that stands in its place."""
    if isinstance(size, Mapping):
        return next((int(size[key]) for key in keys if size.get(key)), usual)
    return int(size) if isinstance(size, int | float) and size else usual
