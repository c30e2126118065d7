"""Qwen 2 VL: as 2.5, with LayerNorms, an MLP without a gate, and no windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homenode.model.pictures.blocks import BlockForm
from homenode.model.pictures.families.qwen2_5_vl import AREAS, GGUF_LAYER, GGUF_MERGER, Qwen25Vl
from homenode.model.pictures.families.qwen3_vl import sections_of
from homenode.model.pictures.family import FamilyFormat, PictureConfig
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.vision_config import activation_of, vision_of
from homenode.model.spec import PictureSpec


class Qwen2Vl(Qwen25Vl):
    """See `PictureFamily`."""

    layer_names: Mapping[str, str] = {
        "norm1": "norm1",
        "qkv": "attn.qkv",
        "o": "attn.proj",
        "norm2": "norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config)
        vision = vision_of(config)
        self.width, heads = vision.integer("embed_dim", 1280), vision.integer("num_heads", 16)
        self.form = BlockForm(heads, self.width // heads, 1e-6, activation=activation_of(vision, "quick_gelu"))
        self._whole = frozenset(range(self.depth))
        self._window = 1 << 20  # more blocks than any picture has


def _spec(config: PictureConfig) -> PictureSpec:
    return PictureSpec("qwen2_vl", sections=sections_of(config, (16, 24, 24)))


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower(num_hidden_layers="depth", num_attention_heads="num_heads", hidden_size="embed_dim")
    config = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "vision_config": tower | {"hidden_act": "quick_gelu"},
        "image_token_id": file.token("<|image_pad|>"),
    }
    sizes = {"shortest_edge": AREAS[0], "longest_edge": AREAS[1]}
    return config, file.processor(patch_size=tower["patch_size"], size=sizes), {}


_LAYER_NAMES = GGUF_LAYER | {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"visual.blocks.{{n}}.{name}" for own, name in _LAYER_NAMES.items()} | GGUF_MERGER
FAMILY = FamilyFormat(_spec, Qwen2Vl, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
