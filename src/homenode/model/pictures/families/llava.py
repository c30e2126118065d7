"""LLaVA 1.5, LLaVA-NeXT and Granite Vision: towers of CLIP or SigLIP, of which rows of some layers are taken, and two
products. NeXT cuts a picture into tiles besides, whose rows are one map again, without its padding, each line of it
with a row for its end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import activated, product
from homenode.model.pictures.families.mistral3 import Mistral3
from homenode.model.pictures.family import (
    FamilyFormat,
    Names,
    PictureConfig,
    PictureFamily,
    PictureLayout,
    PictureRows,
    PreparedPicture,
)
from homenode.model.pictures.siglip import SquareTower, TakenLayers
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import activation_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_TOWERS = {"clip_vision_model": True, "siglip_vision_model": False}  # whether it is CLIP
_PROJECTORS = ("model.multi_modal_projector.", "multi_modal_projector.")
_NEWLINES = ("model.image_newline", "image_newline", "model.language_model.image_newline")


class Llava:
    """See `PictureFamily`."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, vision, processor = config.config, vision_of(config), config.processor
        kind = vision.text("model_type", "clip_vision_model")
        if kind not in _TOWERS:
            raise UnsupportedError(f"a tower of {kind!r} is not supported in LLaVA; homenode runs CLIP and SigLIP")
        clip = _TOWERS[kind]
        self.placeholder = fields.integer("image_token_index", fields.integer("image_token_id", 32000), minimum=0)
        self.tower = SquareTower(vision, clip=clip, usual_activation="quick_gelu" if clip else "gelu_pytorch_tanh")
        self.form = self.tower.form
        given = fields.value("vision_feature_layer")
        layers = given if isinstance(given, list) else [-2 if given is None else given]
        wanted = [layer for layer in layers if type(layer) is int and abs(layer) <= self.tower.layers]
        if len(wanted) != len(layers) or not layers:
            raise fields.wrong("vision_feature_layer", given, f"layers of {self.tower.layers}, or one")
        self._layers = tuple(self.tower.layer_number(layer) for layer in wanted)
        self._drops_first = fields.text("vision_feature_select_strategy", "default") == "default"
        self.normalisation = pixels.Normalisation.read(processor, pixels.CLIP)
        self._resample = int(processor.get("resample", pixels.BICUBIC))
        self._activation = activation_of(fields, "gelu", "projector_hidden_act")
        crop, size = processor.get("crop_size"), processor.get("size")
        self._crop = pixels.fields_of(crop, ("height", "shortest_edge"), self.tower.image)
        self._shortest = pixels.fields_of(size, ("shortest_edge", "height"), 224)
        self._squeezes = isinstance(size, dict) and bool(size.get("height"))
        self._crops = bool(processor.get("do_center_crop", True))

    @property
    def _tile_rows(self) -> int:
        return self.tower.side**2 + (self.tower.clip and not self._drops_first)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        original = (picture.height, picture.width)
        high, wide = self._shortest, self._shortest
        if not self._squeezes:
            short, long = sorted(original)
            longer = int(self._shortest * long / short)
            high, wide = (longer, self._shortest) if original[0] > original[1] else (self._shortest, longer)
        picture = pixels.resized(picture, high, wide, self._resample)
        if self._crops:
            left, top = (picture.width - self._crop) // 2, (picture.height - self._crop) // 2
            picture = picture.crop((left, top, left + self._crop, top + self._crop))
        tile = pixels.pixels_of(picture)
        return PreparedPicture([tile], PictureLayout((1, 1), (len(tile), len(tile[0])), original, alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        return names(self.placeholder) * self._tile_rows

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        self.tower.load(tower, TakenLayers(self._layers, normed=False))
        front = tensors.front("linear_1.weight", _PROJECTORS)
        projector = tensors.layer(front, {"up": "linear_1", "down": "linear_2"})

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return product(
                ops, activated(ops, product(ops, rows, projector, "up"), self._activation), projector, "down"
            )

        tower.add("projector", self.tower.width * len(self._layers), project, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        return PictureRows(np.concatenate(list(self._tiles(tower, picture))))

    def _tiles(self, tower: Tower, picture: PreparedPicture) -> FloatArray:
        """The rows of each tile: [tiles, rows, columns]."""
        count = len(picture.tiles)
        found = self.tower.hidden(tower, [self.normalisation.of(tile) for tile in picture.tiles])
        rows = np.concatenate(found, axis=1).reshape(count, -1, self.tower.width * len(found))
        rows = np.ascontiguousarray(rows[:, 1:] if self._drops_first else rows)
        made = tower.run("projector", rows.reshape(-1, rows.shape[2]), [count * rows.shape[1]])
        return made.reshape(count, rows.shape[1], -1)


class LlavaNext(Llava):
    """See `PictureFamily`."""

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config)
        grid = config.processor.get("image_grid_pinpoints") or config.config.value("image_grid_pinpoints")
        if not isinstance(grid, list) or not grid:
            raise config.config.wrong("image_grid_pinpoints", grid, "the sizes that a picture is cut from")
        self._sizes = [(int(high), int(wide)) for high, wide in grid]
        self._newline: FloatArray | None = None

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        from PIL import Image as images

        original = (picture.height, picture.width)
        high, wide = _best_size(original, self._sizes)
        down, across = high / original[0], wide / original[1]
        if across < down:
            new = min(math.ceil(original[0] * across), high), wide
        else:
            new = high, min(math.ceil(original[1] * down), wide)
        canvas = images.new("RGB", (wide, high))
        canvas.paste(pixels.resized(picture, *new, self._resample), ((wide - new[1]) // 2, (high - new[0]) // 2))
        tile = self._crop
        whole = pixels.resized(picture, self._shortest, self._shortest, self._resample)
        tiles = pixels.square_tiles(canvas, high // tile, wide // tile, (tile, tile))
        layout = PictureLayout((high // tile, wide // tile), (high, wide), original, alone)
        return PreparedPicture([pixels.pixels_of(whole), *tiles], layout)

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows, columns, _, _ = self._map(layout)
        return names(self.placeholder) * (self._tile_rows + rows * (columns + 1))

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        super().load(tower)
        name = next((name for name in _NEWLINES if name in tower.tensors), _NEWLINES[0])
        self._newline = tower.tensors.array(name).reshape(-1)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        tiles, side = self._tiles(tower, picture), self.tower.side
        down, across = picture.layout.tiles
        cut = tiles[1:].reshape(down, across, side, side, -1).transpose(0, 2, 1, 3, 4)
        whole = cut.reshape(down * side, across * side, -1)
        rows, columns, top, left = self._map(picture.layout)
        kept = self._fitted(whole[top : top + rows, left : left + columns])
        assert self._newline is not None
        ends = np.broadcast_to(self._newline, (len(kept), 1, len(self._newline)))
        lines = np.concatenate([kept, ends], axis=1).reshape(-1, kept.shape[2])
        return PictureRows(np.concatenate([tiles[0], lines]))

    def _fitted(self, rows: FloatArray) -> FloatArray:
        """The map without its padding as the text model is given it."""
        return rows

    def _map(self, layout: PictureLayout) -> tuple[int, int, int, int]:
        """Rows and columns of the map of all tiles that are not padding, and the first of each."""
        side, (height, width) = self.tower.side, layout.original
        rows, columns = layout.tiles[0] * side, layout.tiles[1] * side
        if width / height > columns / rows:
            padding = (rows - int(round(height * (columns / width), 7))) // 2
            return rows - 2 * padding, columns, padding, 0
        padding = (columns - int(round(width * (rows / height), 7))) // 2
        return rows, columns - 2 * padding, 0, padding


def _best_size(original: tuple[int, int], sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """The size that keeps most pixels of a picture, of several the smallest."""
    height, width = original
    best, most, least = sizes[0], 0, math.inf
    for high, wide in sizes:
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = high * wide - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = (high, wide), kept, wasted
    return best


def _make(config: PictureConfig) -> PictureFamily:
    if "LlavaNext" in str(config.config.value("architectures")):
        return LlavaNext(config)
    return Mistral3(config) if vision_of(config).text("model_type") == "pixtral" else Llava(config)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("llava", unscaled_logits=True)


FAMILY = FamilyFormat(_spec, _make)
