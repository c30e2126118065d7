"""Gemma 3: pictures stretched to a square, SigLIP, and the mean of squares of patches; a picture's rows see each other
both ways in all layers of the text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import KvCache, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.pictures import pixels
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

_SIDE = 896


class Gemma3:
    """See `PictureFamily`."""

    def __init__(self, config: PictureConfig) -> None:
        processor, fields = config.processor, config.config
        if processor.get("do_pan_and_scan"):
            raise UnsupportedError("do_pan_and_scan, which adds parts of a picture, is not supported")
        self.placeholder = fields.integer("image_token_index", 262144, minimum=0)
        self._begin = fields.integer("boi_token_index", 255999, minimum=0)
        self._end = fields.integer("eoi_token_index", 256000, minimum=0)
        self.marker_token: int | None = self._begin
        self.tower = SquareTower(vision_of(config), clip=False, usual_activation="gelu_pytorch_tanh")
        self.form = self.tower.form
        self._rows = fields.integer("mm_tokens_per_image", 256)
        size = processor.get("size")
        high, wide = (pixels.fields_of(size, (side,), self.tower.image or _SIDE) for side in ("height", "width"))
        self._size = (high, wide)
        self._resample = int(processor.get("resample", pixels.BILINEAR))
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        found = pixels.pixels_of(pixels.resized(picture, self._size[0], self._size[1], self._resample))
        return PreparedPicture([found], PictureLayout((1, 1), self._size, (picture.height, picture.width), alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows = names(self.placeholder) * self._rows
        return f"\n\n{names(self._begin)}{rows}{names(self._end)}\n\n"

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        self.tower.load(tower, TakenLayers((self.tower.layers,), normed=True))
        front = tensors.front("mm_input_projection_weight", ("model.multi_modal_projector.", "multi_modal_projector."))
        matrix = tensors.of_array(tensors.array(f"{front}mm_input_projection_weight").T)
        norm = tensors.vector(f"{front}mm_soft_emb_norm.weight", 1.0)

        def forward(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return ops.linear(ops.rms_norm(rows, norm, self.form.eps), (matrix,), precision="fine")

        tower.add("projector", self.tower.width, forward, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        (rows,) = self.tower.hidden(tower, [self.normalisation.of(picture.tiles[0])])
        side, kept = self.tower.side, math.isqrt(self._rows)
        run = side // kept
        means = rows.reshape(kept, run, kept, run, -1).mean(axis=(1, 3), dtype=np.float32).reshape(kept * kept, -1)
        return PictureRows(tower.run("projector", means, [len(means)]))


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("gemma3", sees_both_ways="all")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower() | {"hidden_act": "gelu_pytorch_tanh"}
    side = file.vision.integer("image_size")
    kept = side // file.vision.integer("patch_size") // file.vision.integer("projector.scale_factor", 4)
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": tower,
        "mm_tokens_per_image": kept * kept,
        "image_token_index": file.token("<image_soft_token>"),
        "boi_token_index": file.token("<start_of_image>"),
        "eoi_token_index": file.token("<end_of_image>"),
    }
    return config, file.processor(size={"height": side, "width": side}), {}


_GGUF_NAMES = GGUF_NAMES | {
    "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
    "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
}
FAMILY = FamilyFormat(
    _spec, Gemma3, GgufTower(_gguf_config, lambda _: _GGUF_NAMES, {"mm_soft_emb_norm.weight": lambda norm: norm - 1})
)
