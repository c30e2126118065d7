"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: pictures of any size in blocks of patches as in Qwen's, learned positions read by
cubics (but in GLM-OCR), and a block of patches as one row by a convolution and a gated MLP.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, activated, block, inner, normed, product
from homenode.model.pictures.families.qwen2_5_vl import GGUF_LAYER
from homenode.model.pictures.families.qwen3_vl import QwenSizes, sections_of
from homenode.model.pictures.family import FamilyFormat, PictureConfig, PictureRows, PreparedPicture
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, vision_of
from homenode.model.spec import PictureSpec

_LAYER = {
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "o": "attn.proj",
    "norm2": "norm2",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_HEAD_NORMS = {"q_norm": "attn.q_norm", "k_norm": "attn.k_norm"}
_MERGER = {
    "proj": "proj",
    "norm": "post_projection_norm",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
_FRONTS = ("model.visual.", "visual.")
_AREAS = (112 * 112, 28 * 28 * 15000)  # of the class, over two frames


class Glm4v(QwenSizes):
    """See `PictureFamily`."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config, 14, pixels.CLIP, frames=2, areas=_AREAS)
        self.placeholder = config.config.integer("image_token_id", 151343, minimum=0)
        vision = vision_of(config)
        self.width, heads = vision.integer("hidden_size", 1536), vision.integer("num_heads", 12)
        eps = vision.number("rms_norm_eps", 1e-5)
        self.form = BlockForm(heads, self.width // heads, eps, "rms", activation_of(vision, "silu"), gated=True)
        self.depth, self.theta = layers_of(vision, 24, "depth"), rope_theta(vision, 10000.0)
        self._table: FloatArray | None = None

    def sized(self, height: int, width: int) -> tuple[int, int]:
        """The size that a picture is scaled to."""
        if height < self.factor or width < self.factor:
            scale = max(self.factor / height, self.factor / width)
            height, width = int(height * scale), int(width * scale)
        return super().sized(height, width)

    def load(self, tower: Tower) -> None:
        """Make the programs: patches, which have a place added behind their norm, blocks, and the merger."""
        tensors = tower.tensors
        front = tensors.front("patch_embed.proj.weight", _FRONTS)
        first = {"patch": tensors.of_array(tensors.still(f"{front}patch_embed.proj.weight"))}
        if f"{front}patch_embed.proj.bias" in tensors:
            first["patch_bias"] = tensors.vector(f"{front}patch_embed.proj.bias")
        places = f"{front}embeddings.position_embedding.weight"
        self._table = tensors.array(places) if places in tensors else None
        behind = self._table is not None and tensors.layer(front, {"norm": "post_conv_layernorm"})
        layers = [self._layer(tower, f"{front}blocks.{number}.") for number in range(self.depth)]
        last = tensors.layer(front, {"norm": "post_layernorm"})
        columns, head = 3 * self.patch**2, self.form.head_dim

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            if behind:
                patches, learned, angles = ops.split(rows, (columns, self.width, head))
                x = ops.add(normed(ops, self.form, product(ops, patches, first, "patch"), behind, "norm"), learned)
            else:
                patches, angles = ops.split(rows, (columns, head))
                x = product(ops, patches, first, "patch")
            for layer in layers:
                x = block(ops, self.form, x, layer, cache, angles)
            return normed(ops, self.form, x, last, "norm")

        tower.add("blocks", columns + (self.width if behind else 0) + head, forward)
        self._add_merger(tower, front)

    def _layer(self, tower: Tower, front: str) -> dict[str, Any]:
        layer = tower.tensors.layer(front, _LAYER)
        if f"{front}attn.q_norm.weight" in tower.tensors:
            layer |= tower.tensors.layer(front, _HEAD_NORMS)
        return layer

    def _add_merger(self, tower: Tower, front: str) -> None:
        tensors = tower.tensors
        merger = tensors.layer(f"{front}merger.", _MERGER)
        merger |= tensors.layer(front, {"downsample": "downsample"})

        def merge(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x = product(ops, product(ops, rows, merger, "downsample"), merger, "proj")
            x = activated(ops, normed(ops, BlockForm(1, 1, 1e-5), x, merger, "norm"), "gelu_erf")
            return product(ops, inner(ops, self.form, x, merger), merger, "down")

        tower.add("merger", self.merge**2 * self.width, merge, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        patches, rows, columns = self.patches(picture)
        parts = [patches]
        if self._table is not None:
            side = round(len(self._table) ** 0.5)
            places = pixels.bicubic_table(self._table.reshape(side, side, -1), rows, columns).transpose(2, 0, 1)
            parts.append(pixels.block_patches(np.ascontiguousarray(places), 1, self.merge))
        parts.append(self.angles(rows, columns))
        x = tower.run("blocks", np.concatenate(parts, axis=1), [len(patches)])
        # The convolution has its values channel by channel.
        merged = x.reshape(-1, self.merge**2, self.width).transpose(0, 2, 1).reshape(-1, self.merge**2 * self.width)
        return PictureRows(tower.run("merger", merged, [len(merged)]), self.grid(picture.layout))


def _spec(config: PictureConfig) -> PictureSpec:
    return PictureSpec("glm4v", sections=sections_of(config, (8, 12, 12)))


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower(num_hidden_layers="depth", num_attention_heads="num_heads")
    tower["rms_norm_eps"] = tower.pop("layer_norm_eps", 1e-5)
    config = {
        "architectures": ["Glm4vForConditionalGeneration"],
        "vision_config": tower,
        "image_token_id": file.token("<|image|>"),
    }
    return config, file.processor(patch_size=tower["patch_size"]), {}


_LAYER_NAMES = GGUF_LAYER | {
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"visual.blocks.{{n}}.{name}" for own, name in _LAYER_NAMES.items()}
_GGUF_NAMES |= {
    "v.patch_embd": "visual.patch_embed.proj",
    "v.norm_embd": "visual.post_conv_layernorm",
    "v.position_embd": "visual.embeddings.position_embedding",
    "v.post_ln": "visual.post_layernorm",
    "mm.patch_merger": "visual.downsample",
    "mm.model.fc": "visual.merger.proj",
    "mm.post_norm": "visual.merger.post_projection_norm",
    "mm.gate": "visual.merger.gate_proj",
    "mm.up": "visual.merger.up_proj",
    "mm.down": "visual.merger.down_proj",
}
FAMILY = FamilyFormat(_spec, Glm4v, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
