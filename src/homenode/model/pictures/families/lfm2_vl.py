"""LFM2-VL: a picture as one tile of any size, or in a grid of square ones and once more as a whole; SigLIP 2, whose
positions are scaled to each tile, and four patches as one row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, activated, normed, product
from homenode.model.pictures.family import (
    FamilyFormat,
    Names,
    PictureConfig,
    PictureLayout,
    PictureRows,
    PreparedPicture,
)
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.siglip import GGUF_NAMES, SquareTower, TakenLayers
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import activation_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_PROJECTORS = ("model.multi_modal_projector.", "multi_modal_projector.")
_BEGIN, _END, _WHOLE = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"


class Lfm2Vl:
    """See `PictureFamily`. Marks of tiles are tokens by their names."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, processor = config.config, config.processor
        self.placeholder = fields.integer("image_token_id", 396, minimum=0)
        self.tower = SquareTower(vision_of(config), clip=False, usual_activation="gelu_pytorch_tanh", of_any_size=True)
        self.form = self.tower.form
        self.merge = fields.integer("downsample_factor", 2)
        self._factor = int(processor.get("encoder_patch_size") or self.tower.patch) * self.merge
        self._tile = int(processor.get("tile_size") or 512)
        least, most = int(processor.get("min_image_tokens") or 64), int(processor.get("max_image_tokens") or 256)
        self._least, self._most = least * self._factor**2, most * self._factor**2
        self._spare = float(processor.get("max_pixels_tolerance") or 2.0)
        tiles = int(processor.get("min_tiles") or 2), int(processor.get("max_tiles") or 10)
        self._tiles = tiles if processor.get("do_image_splitting", True) else (1, 1)
        self._whole = bool(processor.get("use_thumbnail", True))
        self._resample = int(processor.get("resample", pixels.BILINEAR))
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)
        self._activation = activation_of(fields, "gelu", "projector_hidden_act")
        self._normed = fields.boolean("projector_use_layernorm", True)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        original = (picture.height, picture.width)
        size = self._whole_size(*original)
        whole = pixels.pixels_of(pixels.resized(picture, *size, self._resample))
        if not self._is_large(*original) or self._tiles == (1, 1):
            return PreparedPicture([whole], PictureLayout((1, 1), size, original, alone))
        tile, (least, most) = self._tile, self._tiles
        columns, rows = pixels.best_grid(*original, tile * tile, _grids(least, most))
        cut = pixels.resized(picture, rows * tile, columns * tile, self._resample)
        tiles = pixels.square_tiles(cut, rows, columns, (tile, tile))
        if self._whole and len(tiles) > 1:
            tiles.append(whole)
        return PreparedPicture(tiles, PictureLayout((rows, columns), size, original, alone))

    def _whole_size(self, height: int, width: int) -> tuple[int, int]:
        side = self._factor
        high, wide = (max(side, round(length / side) * side) for length in (height, width))
        if high * wide > self._most:
            shrink = math.sqrt(height * width / self._most)
            high, wide = (max(side, math.floor(length / shrink / side) * side) for length in (height, width))
        elif high * wide < self._least:
            grow = math.sqrt(self._least / (height * width))
            high, wide = (math.ceil(length * grow / side) * side for length in (height, width))
        return high, wide

    def _is_large(self, height: int, width: int) -> bool:
        side = self._factor
        high, wide = (max(side // self.merge, round(length / side) * side) for length in (height, width))
        return high * wide > self._most * self._spare

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        one, (rows, columns) = names(self.placeholder), layout.tiles
        whole = one * (layout.size[0] // self._factor * (layout.size[1] // self._factor))
        if rows * columns == 1:
            return f"{_BEGIN}{whole}{_END}"
        tile = one * (self._tile // self._factor) ** 2
        parts = [f"<|img_row_{row + 1}_col_{column + 1}|>{tile}" for row in range(rows) for column in range(columns)]
        return "".join([_BEGIN, *parts, f"{_WHOLE}{whole}" if self._whole else "", _END])

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        self.tower.load(tower, TakenLayers((self.tower.layers,), normed=True))
        front = tensors.front("linear_1.weight", _PROJECTORS)
        projector = tensors.layer(front, {"up": "linear_1", "down": "linear_2"})
        if self._normed:
            projector |= tensors.layer(front, {"norm": "layer_norm"})

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x = normed(ops, BlockForm(1, 1, 1e-5), rows, projector, "norm") if self._normed else rows
            return product(ops, activated(ops, product(ops, x, projector, "up"), self._activation), projector, "down")

        tower.add("projector", self.tower.width * self.merge**2, project, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        (rows,) = self.tower.hidden(tower, [self.normalisation.of(tile) for tile in picture.tiles], _scaled)
        merged, at, side = [], 0, self.tower.patch
        for tile in picture.tiles:
            down, across = len(tile) // side, len(tile[0]) // side
            merged.append(pixels.merged_blocks(rows[at : at + down * across], down, across, self.merge))
            at += down * across
        x = np.concatenate(merged)
        return PictureRows(tower.run("projector", x, [len(x)]))


def _scaled(table: FloatArray, down: int, across: int) -> FloatArray:
    side = math.isqrt(len(table))
    return pixels.linear_table(table.reshape(side, side, -1), down, across).reshape(down * across, -1)


def _grids(least: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows of grids of so many tiles, in the order in which transformers looks at them."""
    grids = {
        (columns, rows)
        for count in range(least, most + 1)
        for columns in range(1, count + 1)
        for rows in range(1, count + 1)
        if least <= columns * rows <= most
    }
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("lfm2_vl")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config = {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "vision_config": file.tower() | {"hidden_act": "gelu_pytorch_tanh"},
        "downsample_factor": file.vision.integer("projector.scale_factor", 2),
        "projector_use_layernorm": file.has("mm.input_norm.weight"),
        "image_token_id": file.token("<image>"),
    }
    return config, file.processor(), {}


_GGUF_NAMES = GGUF_NAMES | {
    "mm.1": "multi_modal_projector.linear_1",
    "mm.2": "multi_modal_projector.linear_2",
    "mm.input_norm": "multi_modal_projector.layer_norm",
}
FAMILY = FamilyFormat(_spec, Lfm2Vl, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
