"""Kimi-VL and Kimi K2.5: pictures that are never made larger, with black behind them up to whole blocks of patches;
MoonViT, whose heads turn by column and row in turns; four patches as one row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, activated, block, normed, product
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
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_LAYER = {
    "norm1": "norm0",
    "qkv": "wqkv",
    "o": "wo",
    "norm2": "norm1",
    "up": "mlp.fc0",
    "down": "mlp.fc1",
}
_PATCHES = ("vision_tower.patch_embed.", "vision_tower.encoder.patch_embed.")
_TABLE = "vision_tower.patch_embed.pos_emb.weight"
# The norm, and the two products, of projectors as they are saved.
_PROJECTORS = (
    ("mm_projector.pre_norm", "mm_projector.proj.0", "mm_projector.proj.2"),
    ("model.mm_projector.pre_norm", "mm_projector.proj.0", "mm_projector.proj.2"),
    ("multi_modal_projector.pre_norm", "multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
)


class KimiVl:
    """See `PictureFamily`."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, vision = config.config, vision_of(config)
        processor = {**config.processor, **config.processor.get("media_proc_cfg", {})}
        ids = (fields.value(key) for key in ("image_token_id", "media_placeholder_token_id"))
        self.placeholder = next((found for found in ids if isinstance(found, int)), 163605)
        vision = vision.respelled(
            {
                "vt_hidden_size": "hidden_size",
                "vt_num_attention_heads": "num_attention_heads",
                "vt_num_hidden_layers": "num_hidden_layers",
            }
        )
        self.width, heads = vision.integer("hidden_size", 1152), vision.integer("num_attention_heads", 16)
        activation = activation_of(vision, "gelu_pytorch_tanh")
        self.form = BlockForm(heads, self.width // heads, 1e-5, "layer", activation, adjacent=True)
        self.layers, self.patch = layers_of(vision, 27), vision.integer("patch_size", 14)
        self.theta = rope_theta(vision, 10000.0)
        self._apart = vision.boolean("rope_apart", False)
        self.merge = int(processor.get("merge_size") or 2)
        size = processor.get("size")
        self._side = pixels.fields_of(size, ("max_height",), int(processor.get("patch_limit_on_one_side") or 512))
        limits = (processor.get(key) for key in ("max_patches", "in_patch_limit", "in_token_limit"))
        self._most = int(next((found for found in limits if found), 16384))
        self._resample = int(processor.get("resample", pixels.BICUBIC))
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)
        self._table: FloatArray | None = None

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        from PIL import Image as images

        original = (picture.height, picture.width)
        high, wide = self._scaled(*original)
        block_side = self.merge * self.patch
        padded = [-(-length // block_side) * block_side for length in (high, wide)]
        canvas = images.new("RGB", (padded[1], padded[0]))
        canvas.paste(pixels.resized(picture, high, wide, self._resample), (0, 0))
        layout = PictureLayout((1, 1), (padded[0], padded[1]), original, alone)
        return PreparedPicture([pixels.pixels_of(canvas)], layout)

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        patches = max(1.0, height // self.patch) * max(1.0, width // self.patch)
        longest = self._side * self.patch
        scale = min(1.0, math.sqrt(self._most / patches), longest / height, longest / width)
        high, wide = (min(max(1, int(length * scale)), longest) for length in (height, width))
        return high, wide

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        side = self.merge * self.patch
        return names(self.placeholder) * (layout.size[0] // side * (layout.size[1] // side))

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        patches = tensors.layer(tensors.front("proj.weight", _PATCHES), {"patch": "proj"})
        table = tensors.array(_TABLE)
        side = math.isqrt(table.size // table.shape[-1])
        self._table = table.reshape(side, -1, table.shape[-1]) if table.ndim == 2 else table
        front = "vision_tower.encoder."
        layers = [tensors.layer(f"{front}blocks.{number}.", _LAYER) for number in range(self.layers)]
        last = tensors.layer(front, {"norm": "final_layernorm"})
        names = next((names for names in _PROJECTORS if f"{names[0]}.weight" in tensors), _PROJECTORS[0])
        projector = tensors.layer("", dict(zip(("norm", "up", "down"), names, strict=True)))
        columns, head = 3 * self.patch**2, self.form.head_dim

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            pieces, places, angles = ops.split(rows, (columns, self.width, head))
            x = product(ops, pieces, patches, "patch", residual=places)
            for layer in layers:
                x = block(ops, self.form, x, layer, cache, angles)
            return normed(ops, self.form, normed(ops, self.form, x, last, "norm"), projector, "norm")

        tower.add("blocks", columns + self.width + head, forward)

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return product(ops, activated(ops, product(ops, rows, projector, "up"), "gelu_erf"), projector, "down")

        tower.add("projector", self.merge**2 * self.width, project, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        rows, columns = (side // self.patch for side in picture.layout.size)
        patches = pixels.block_patches(self.normalisation.of(picture.tiles[0]), self.patch, self.merge)
        assert self._table is not None
        learned = pixels.bicubic_table(self._table, rows, columns).transpose(2, 0, 1)
        places = pixels.block_places(rows, columns, self.merge)[:, ::-1]  # the column, then the row
        angles = pixels.rope_columns(places, self.form.head_dim, self.theta)
        if not self._apart:
            angles = _in_turns(angles)
        parts = [patches, pixels.block_patches(np.ascontiguousarray(learned), 1, self.merge), angles]
        x = tower.run("blocks", np.concatenate(parts, axis=1), [len(patches)])
        merged = x.reshape(-1, self.merge**2 * self.width)
        return PictureRows(tower.run("projector", merged, [len(merged)]))


def _in_turns(angles: FloatArray) -> FloatArray:
    """cos and sin of frequencies by column and row, one after the other in place of one half behind the other."""
    return angles.reshape(len(angles), 2, 2, -1).swapaxes(2, 3).reshape(angles.shape)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("kimi_vl")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    later = file.projector == "kimik25"
    tower = file.tower() | {"hidden_act": "gelu_pytorch_tanh", "rope_apart": later}
    config = {
        "architectures": ["Kimi_K25ForConditionalGeneration" if later else "KimiVLForConditionalGeneration"],
        "vision_config": tower,
        "image_token_id": file.token("<|media_pad|>"),
    }
    return config, file.processor(max_patches=16384 if later else 4096), {}


_LAYER_NAMES = {
    "attn_qkv": "wqkv",
    "attn_q": "wq",
    "attn_k": "wk",
    "attn_v": "wv",
    "attn_out": "wo",
    "ln1": "norm0",
    "ln2": "norm1",
    "ffn_up": "mlp.fc0",
    "ffn_down": "mlp.fc1",
}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"vision_tower.encoder.blocks.{{n}}.{name}" for own, name in _LAYER_NAMES.items()}
_GGUF_NAMES |= {
    "v.patch_embd": "vision_tower.patch_embed.proj",
    "v.position_embd": "vision_tower.patch_embed.pos_emb",
    "v.post_ln": "vision_tower.encoder.final_layernorm",
    "mm.input_norm": "mm_projector.pre_norm",
    "mm.1": "mm_projector.proj.0",
    "mm.2": "mm_projector.proj.2",
}
FAMILY = FamilyFormat(_spec, KimiVl, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
