"""Idefics 3 and SmolVLM: a picture in square tiles and once more as a whole, SigLIP, blocks of patches as one row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import product
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
from homenode.model.pictures.vision_config import vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_FAKE, _WHOLE = "<fake_token_around_image>", "<global-img>"
_MOST_SIDE = 4096


class Idefics3:
    """See `PictureFamily`. Marks of tiles are tokens by their names."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, processor = config.config, config.processor
        self.placeholder = fields.integer("image_token_id", 128257, minimum=0)
        self.tower = SquareTower(vision_of(config), clip=False, usual_activation="gelu_pytorch_tanh")
        self.form = self.tower.form
        self._merge = fields.integer("scale_factor", 2)
        self._longest = pixels.fields_of(processor.get("size"), ("longest_edge",), 4 * 364)
        self._tile = pixels.fields_of(processor.get("max_image_size"), ("longest_edge",), 364)
        self._splits = bool(processor.get("do_image_splitting", True))
        self._resample = int(processor.get("resample", pixels.LANCZOS))
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)
        self._rows = (self._tile // self.tower.patch // self._merge) ** 2

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        original, tile = (picture.height, picture.width), self._tile
        picture = pixels.resized(picture, *_scaled(picture.height, picture.width, self._longest), self._resample)
        if not self._splits:
            picture = pixels.resized(picture, tile, tile, self._resample)
            return PreparedPicture([pixels.pixels_of(picture)], PictureLayout((0, 0), (tile, tile), original, alone))
        picture = pixels.resized(picture, *_whole_tiles(picture.height, picture.width, tile), self._resample)
        size, rows, columns = (picture.height, picture.width), picture.height // tile, picture.width // tile
        tiles = pixels.square_tiles(picture, rows, columns, (tile, tile))
        if len(tiles) == 1:
            return PreparedPicture(tiles, PictureLayout((0, 0), size, original, alone))
        tiles.append(pixels.pixels_of(pixels.resized(picture, tile, tile, self._resample)))
        return PreparedPicture(tiles, PictureLayout((rows, columns), size, original, alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows, columns = layout.tiles
        one = names(self.placeholder) * self._rows
        text = "".join(
            "".join(f"{_FAKE}<row_{row + 1}_col_{column + 1}>{one}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        return f"{text}{chr(10) if rows else ''}{_FAKE}{_WHOLE}{one}{_FAKE}"

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        self.tower.load(tower, TakenLayers((self.tower.layers,), normed=True))
        front = tensors.front("modality_projection.proj.weight", ("model.connector.", "connector."))
        matrix = tensors.layer(front, {"proj": "modality_projection.proj"})
        columns = self.tower.width * self._merge**2
        tower.add("projector", columns, lambda ops, rows, _: product(ops, rows, matrix, "proj"), attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        tiles = [self.normalisation.of(tile) for tile in picture.tiles]
        (rows,) = self.tower.hidden(tower, tiles, pixels.nearest_table)
        side = self._tile // self.tower.patch
        merged = [
            pixels.merged_blocks(one, side, side, self._merge) for one in rows.reshape(len(tiles), side * side, -1)
        ]
        x = np.concatenate(merged)
        return PictureRows(tower.run("projector", x, [len(x)]))


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """The longer side as `longest`, the other one even and by the ratio, neither longer than any may be."""
    ratio = width / height
    if width >= height:
        width = longest
        height = int(width / ratio)
        height += height % 2
    else:
        height = longest
        width = int(height * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > _MOST_SIDE:
        width, height = _MOST_SIDE, int(_MOST_SIDE / ratio)
    elif height > width and height > _MOST_SIDE:
        height, width = _MOST_SIDE, int(_MOST_SIDE * ratio)
    return max(height, 1), max(width, 1)


def _whole_tiles(height: int, width: int, tile: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        return math.ceil(int(width / ratio) / tile) * tile, width
    height = math.ceil(height / tile) * tile
    return height, math.ceil(int(height * ratio) / tile) * tile


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("idefics3")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tile = file.vision.integer("image_size")
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "vision_config": file.tower() | {"hidden_act": "gelu_pytorch_tanh"},
        "scale_factor": file.vision.integer("projector.scale_factor", 2),
        "image_token_id": file.token("<image>"),
    }
    longest = file.vision.integer("preproc_image_size", 4 * tile)
    sizes = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tile}}
    return config, file.processor(**sizes), {}


_GGUF_NAMES = GGUF_NAMES | {"mm.model.fc": "connector.modality_projection.proj"}
FAMILY = FamilyFormat(_spec, Idefics3, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
