"""Mistral 3 and Pixtral: pictures of any size whose rows of patches end with a mark, a tower like Llama that turns by
row and column, and patches merged two by two (Mistral 3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import KvCache, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, activated, block, product
from homenode.model.pictures.family import (
    FamilyFormat,
    Names,
    PictureConfig,
    PictureLayout,
    PictureRows,
    PreparedPicture,
)
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, text_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_LAYER = {
    "norm1": "attention_norm",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.o_proj",
    "norm2": "ffn_norm",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}
_FRONTS = ("model.vision_tower.", "vision_tower.", "model.vision_encoder.")
_PROJECTORS = ("model.multi_modal_projector.", "multi_modal_projector.", "model.vision_projection.")
_MERGING = ("Mistral3", "LightOn")  # of the names of classes that merge patches


class Mistral3:
    """See `PictureFamily`. The marks of rows follow the placeholder in the vocabulary by name."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, vision, processor = config.config, vision_of(config), config.processor
        self.placeholder = fields.integer("image_token_index", fields.integer("image_token_id", 10), minimum=0)
        named = str(fields.value("architectures"))
        self.merge = fields.integer("spatial_merge_size", 2) if any(name in named for name in _MERGING) else 1
        self._break = str(config.whole.get("image_break_token") or "[IMG_BREAK]")
        self._end = str(config.whole.get("image_end_token") or "[IMG_END]")
        if fields.value("vision_feature_layer") not in (None, -1):
            raise UnsupportedError("a vision_feature_layer of Pixtral other than -1 is not supported")
        self.width, heads = vision.integer("hidden_size", 1024), vision.integer("num_attention_heads", 16)
        head = vision.integer("head_dim", self.width // heads)
        activation = activation_of(vision, "gelu" if vision.text("model_type") == "" else "silu")
        self.form = BlockForm(heads, head, 1e-5, "rms", activation, gated=True)
        self.layers, self.patch = layers_of(vision, 24), vision.integer("patch_size", 16)
        self.theta = rope_theta(vision, 10000.0)
        self._longest = pixels.fields_of(processor.get("size"), ("longest_edge", "height"), 1024)
        patch = pixels.fields_of(processor.get("patch_size"), ("height",), self.patch)
        self.block = patch * self.merge if config.whole.get("spatial_merge_size", self.merge) else patch
        self._resample = int(processor.get("resample", pixels.BICUBIC))
        self.normalisation = pixels.Normalisation.read(processor, pixels.CLIP)
        self._eps = text_of(config).number("rms_norm_eps", 1e-6)
        self._activation = activation_of(fields, "gelu", "projector_hidden_act")

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        height, width = picture.height, picture.width
        ratio = max(height / self._longest, width / self._longest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        high, wide = (((side - 1) // self.block + 1) * self.block for side in (height, width))
        found = pixels.pixels_of(pixels.resized(picture, high, wide, self._resample))
        return PreparedPicture([found], PictureLayout((1, 1), (high, wide), (picture.height, picture.width), alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows, columns = (side // self.block for side in layout.size)
        return self._break.join([names(self.placeholder) * columns] * rows) + self._end

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        front = tensors.front("patch_conv.weight", _FRONTS)
        weight, norm = tensors.matrix(f"{front}patch_conv.weight"), tensors.vector(f"{front}ln_pre.weight")
        layers = [tensors.layer(f"{front}transformer.layers.{n}.", _LAYER) for n in range(self.layers)]
        head, columns = self.form.head_dim, 3 * self.patch**2

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            patches, angles = ops.split(rows, (columns, head))
            x = ops.rms_norm(ops.linear(patches, (weight,), precision="fine"), norm, self.form.eps)
            for layer in layers:
                x = block(ops, self.form, x, layer, cache, angles)
            return x

        tower.add("blocks", columns + head, forward)
        ends = tensors.front("linear_1.weight", _PROJECTORS)
        projector = tensors.layer(ends, {"up": "linear_1", "down": "linear_2"})
        if self.merge > 1:
            projector |= tensors.layer(ends, {"norm": "norm", "merge": "patch_merger.merging_layer"})
            tower.add(
                "norm", self.width, lambda ops, x, _: ops.rms_norm(x, projector["norm"], self._eps), attends=False
            )

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x = product(ops, rows, projector, "merge") if self.merge > 1 else rows
            return product(ops, activated(ops, product(ops, x, projector, "up"), self._activation), projector, "down")

        tower.add("projector", self.width * self.merge**2, project, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        rows, columns = (side // self.patch for side in picture.layout.size)
        patches = pixels.block_patches(self.normalisation.of(picture.tiles[0]), self.patch, 1)
        angles = pixels.rope_columns_in_turns(pixels.block_places(rows, columns, 1), self.form.head_dim, self.theta)
        x = tower.run("blocks", np.concatenate([patches, angles], axis=1), [len(patches)])
        if self.merge > 1:
            whole = tower.run("norm", x, [len(x)]).reshape(rows, columns, -1)
            whole = whole[: rows // self.merge * self.merge, : columns // self.merge * self.merge]
            grid = whole.transpose(2, 0, 1)
            x = pixels.block_patches(np.ascontiguousarray(grid), self.merge, 1)
        return PictureRows(tower.run("projector", x, [len(x)]))


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("mistral3")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    merges = file.has("mm.patch_merger.weight")
    kind = "Mistral3ForConditionalGeneration" if merges else "LlavaForConditionalGeneration"
    config = {
        "architectures": [kind],
        "vision_config": file.tower() | {"model_type": "pixtral"},
        "image_token_index": file.token("[IMG]"),
    }
    if merges:
        config["spatial_merge_size"] = file.vision.integer("spatial_merge_size", 2)
    return config, file.processor(size={"longest_edge": file.vision.integer("image_size")}), {}


_LAYER_NAMES = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
GGUF_NAMES = {
    f"v.blk.{{n}}.{own}": f"vision_tower.transformer.layers.{{n}}.{name}" for own, name in _LAYER_NAMES.items()
}
GGUF_NAMES |= {
    "v.patch_embd": "vision_tower.patch_conv",
    "v.pre_ln": "vision_tower.ln_pre",
    "mm.1": "multi_modal_projector.linear_1",
    "mm.2": "multi_modal_projector.linear_2",
    "mm.input_norm": "multi_modal_projector.norm",
    "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
}
PERMUTED = ("q_proj.weight", "k_proj.weight")
FAMILY = FamilyFormat(_spec, Mistral3, GgufTower(_gguf_config, lambda _: GGUF_NAMES, permuted=PERMUTED))
