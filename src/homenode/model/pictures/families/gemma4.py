"""Gemma 4: pictures scaled to a number of rows, a tower like the text's with values clamped around each product, and
the mean of squares of patches. Layers that look up token ids look for those of padding in their places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, ScoreRule, Tensor
from homenode.errors import UnsupportedError
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm
from homenode.model.pictures.family import (
    FamilyFormat,
    Names,
    PictureConfig,
    PictureLayout,
    PictureRows,
    PreparedPicture,
)
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, text_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

    from homenode.model.pictures.tower import Tower, TowerTensors

_FRONTS = ("model.vision_tower.", "vision_tower.")
_PROJECTIONS = ("model.embed_vision.", "embed_vision.")
_PRODUCTS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMS = {
    "norm1": "input_layernorm",
    "attended": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "fed": "post_feedforward_layernorm",
}
_BUDGET = 280  # rows of a picture
_FEWEST = "min_soft_tokens"  # of a picture that is left as it is
_FEWEST_ROWS = 70  # the same, of GGUF files, which say no budget: llama.cpp enlarges smaller ones


class Gemma4:
    """See `PictureFamily`."""

    def __init__(self, config: PictureConfig) -> None:
        fields, vision, processor = config.config, vision_of(config), config.processor
        self.placeholder = fields.integer("image_token_id", 258880, minimum=0)
        self.marker_token: int | None = None
        self._begin = fields.integer("boi_token_id", 255999, minimum=0)
        self._end = fields.integer("eoi_token_id", 258882, minimum=0)
        self.width, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12)
        head_dim = vision.integer("head_dim", 64)
        if vision.integer("num_key_value_heads", heads) != heads:
            raise UnsupportedError("a tower of Gemma 4 with fewer heads of keys than of queries is not supported")
        eps = vision.number("rms_norm_eps", 1e-6)
        activation = activation_of(vision, "gelu_pytorch_tanh", "hidden_activation")
        self.form = BlockForm(heads, head_dim, eps, "rms", activation, gated=True, scale=1.0)
        self.layers, self.theta = layers_of(vision, 16), rope_theta(vision, 100.0)
        self.patch = int(processor.get("patch_size") or vision.integer("patch_size", 16))
        self.pool = int(processor.get("pooling_kernel_size") or vision.integer("pooling_kernel_size", 3))
        self._budget = int(processor.get("max_soft_tokens") or _BUDGET)
        self._fewest = int(processor.get(_FEWEST) or 0)
        self._clips = vision.boolean("use_clipped_linears", False)
        self._standardizes = vision.boolean("standardize", False)
        self._resample = int(processor.get("resample", pixels.BICUBIC))
        self._table: FloatArray | None = None

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        original = (picture.height, picture.width)
        size = original if self._fits(*original) else _budgeted(*original, self.patch * self.pool, self._budget)
        if max(size) // self.patch > 10240:
            raise ValueError("one side of it is too long for the other")
        found = pixels.pixels_of(pixels.resized(picture, *size, self._resample))
        return PreparedPicture([found], PictureLayout((1, 1), size, original, alone))

    def _fits(self, height: int, width: int) -> bool:
        """Return whether a picture of whole blocks has as many rows as it may have without being enlarged, where files
        say that there are such.
        """
        side = self.patch * self.pool
        whole = not (height % side or width % side)
        return whole and 0 < self._fewest <= height // side * (width // side) <= self._budget

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        side = self.patch * self.pool
        rows = layout.size[0] // side * (layout.size[1] // side)
        return f"{names(self._begin)}{names(self.placeholder) * rows}{names(self._end)}"

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors, head = tower.tensors, self.form.head_dim
        front = tensors.front("patch_embedder.input_proj.weight", _FRONTS)
        self._table = tensors.array(f"{front}patch_embedder.position_embedding_table")
        first = tensors.matrix(f"{front}patch_embedder.input_proj.weight")
        layers = [self._layer(tensors, f"{front}encoder.layers.{number}.") for number in range(self.layers)]
        columns = 3 * self.patch**2

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            patches, places, angles = ops.split(rows, (columns, self.width, head))
            x = ops.linear(patches, (first,), residual=places, precision="fine")
            for layer in layers:
                x = self._block(ops, x, layer, cache, angles)
            return x

        tower.add("blocks", columns + self.width + head, forward)
        self._standard = (
            [tensors.array(f"{front}std_{part}").reshape(-1) for part in ("bias", "scale")]
            if self._standardizes
            else []
        )
        ends = tensors.front("embedding_projection.weight", _PROJECTIONS)
        matrix = tensors.matrix(f"{ends}embedding_projection.weight")

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return ops.linear(ops.rms_norm(rows, self.width, self.form.eps), (matrix,), precision="fine")

        tower.add("projector", self.width, project, attends=False)

    def _layer(self, tensors: TowerTensors, front: str) -> dict[str, Any]:
        layer: dict[str, Any] = {key: tensors.vector(f"{front}{name}.weight") for key, name in _NORMS.items()}
        order = _half_order(self.form.head_dim)
        for key, name in _PRODUCTS.items():
            linear = f"{front}{name}.linear" if f"{front}{name}.linear.weight" in tensors else f"{front}{name}"
            values = tensors.array(f"{linear}.weight")
            if key in "qk":
                heads = values.reshape(self.form.heads, self.form.head_dim, -1)[:, order]
                values = np.ascontiguousarray(heads.reshape(values.shape))
            layer[key] = tensors.of_array(values, tensors.storage_of(f"{linear}.weight"))
            for side in ("input", "output") if self._clips else ():
                low, high = (
                    float(tensors.array(f"{front}{name}.{side}_{end}").reshape(-1)[0]) for end in ("min", "max")
                )
                layer[f"{key}_{side}"] = _limits(tensors, low, high, values.shape[side == "input"])
        for key in ("q_norm", "k_norm"):
            layer[key] = tensors.constant(tensors.array(f"{front}self_attn.{key}.weight").reshape(-1)[order])
        return layer

    def _product(self, ops: Ops, x: Tensor, layer: dict[str, Any], key: str) -> Tensor:
        x = _clamped(ops, x, layer.get(f"{key}_input"))
        return _clamped(ops, ops.linear(x, (layer[key],), precision="fine"), layer.get(f"{key}_output"))

    def _block(self, ops: Ops, x: Tensor, layer: dict[str, Any], cache: KvCache, angles: Tensor) -> Tensor:
        eps, head = self.form.eps, self.form.head_dim
        h = ops.rms_norm(x, layer["norm1"], eps)
        q, k, v = (self._product(ops, h, layer, key) for key in "qkv")
        q, k = (ops.rms_norm(rows, layer[name], eps) for rows, name in ((q, "q_norm"), (k, "k_norm")))
        q, k = (ops.rope(rows, angles, head) for rows in (q, k))
        found = ops.attention(q, k, ops.rms_norm(v, head, eps), cache, 0, ScoreRule(1.0, mask="all"))
        x = ops.add(x, ops.rms_norm(self._product(ops, found, layer, "o"), layer["attended"], eps))
        h = ops.rms_norm(x, layer["norm2"], eps)
        gate, up = (self._product(ops, h, layer, key) for key in ("gate", "up"))
        inner = ops.gelu_mul(gate, up)
        return ops.add(x, ops.rms_norm(self._product(ops, inner, layer, "down"), layer["fed"], eps))

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        rows, columns = (side // self.patch for side in picture.layout.size)
        whole = picture.tiles[0].astype(np.float32) * np.float32(1 / 255)
        cut = (2 * (whole - np.float32(0.5))).reshape(rows, self.patch, columns, self.patch, 3)
        patches = cut.transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)
        places = pixels.block_places(rows, columns, 1)[:, ::-1]  # the column, then the row
        assert self._table is not None
        at = places.astype(np.int64)
        learned = self._table[0][at[:, 0]] + self._table[1][at[:, 1]]
        angles = pixels.rope_columns(places, self.form.head_dim, self.theta)
        x = tower.run("blocks", np.concatenate([patches, learned, angles], axis=1), [len(patches)])
        pooled = x.reshape(rows // self.pool, self.pool, columns // self.pool, self.pool, -1).mean(
            axis=(1, 3), dtype=np.float32
        )
        pooled = pooled.reshape(-1, self.width) * np.float32(math.sqrt(self.width))
        if self._standard:
            pooled = (pooled - self._standard[0]) * self._standard[1]
        return PictureRows(tower.run("projector", pooled, [len(pooled)]))


def _half_order(head_dim: int) -> list[int]:
    """The elements of a head by their pairs: each half of a head turns by itself here, its quarters being pairs."""
    quarter = head_dim // 4
    return [part * quarter + number for part in (0, 2, 1, 3) for number in range(quarter)]


def _limits(tensors: TowerTensors, low: float, high: float, columns: int) -> tuple[float, Tensor, Tensor] | None:
    """Half of the range that values are clamped to, and its middle less and more; None where there is none."""
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        return None
    middle = np.full(columns, (low + high) / 2, np.float32)
    return (high - low) / 2, tensors.constant(-middle), tensors.constant(middle)


def _clamped(ops: Ops, x: Tensor, limits: tuple[float, Tensor, Tensor] | None) -> Tensor:
    return x if limits is None else ops.add(ops.clamp(ops.add(x, limits[1]), limits[0]), limits[2])


def _budgeted(height: int, width: int, side: int, budget: int) -> tuple[int, int]:
    """The size in multiples of `side` that has at most `budget` squares of it, the ratio being about as it was."""
    factor = math.sqrt(budget * side * side / (height * width))
    high, wide = (math.floor(factor * length / side) * side for length in (height, width))
    if not high and not wide:
        raise ValueError("it is too small")
    if not high:
        return side, min(math.floor(width / height), budget) * side
    if not wide:
        return min(math.floor(height / width), budget) * side, side
    return high, wide


def _spec(config: PictureConfig) -> PictureSpec:
    text = text_of(config)
    both = text.text("use_bidirectional_attention") == "vision"
    neutral = text.integer("pad_token_id", 0, minimum=0)
    return PictureSpec("gemma4", sees_both_ways="windows" if both else "none", neutral_token=neutral)


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower() | {
        "use_clipped_linears": file.has("v.blk.0.attn_q.input_min"),
        "standardize": file.has("v.std_bias"),
        "rms_norm_eps": file.vision.number("attention.layer_norm_epsilon", 1e-6),
    }
    tower["head_dim"] = tower["hidden_size"] // tower["num_attention_heads"]
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "vision_config": tower,
        "text_config": {
            "pad_token_id": file.text.get("tokenizer.ggml.padding_token_id", 0),
            "use_bidirectional_attention": _both_ways(file),
        },
        "image_token_id": file.token("<|image|>"),
        "boi_token_id": file.token("<|image>"),
        "eoi_token_id": file.token("<image|>"),
    }
    return config, file.processor(**{_FEWEST: _FEWEST_ROWS}), {}


def _both_ways(file: Mmproj) -> str | None:
    """Sizes without embeddings for each layer see a picture both ways."""
    return None if file.figures.integer("embedding_length_per_layer_input", 0, minimum=0) else "vision"


def _folder_patches(weight: FloatArray) -> FloatArray:
    """[width, channels, rows, columns] -> [width, rows * columns * channels]."""
    return np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(len(weight), -1)


_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"vision_tower.encoder.layers.{{n}}.{name}" for own, name in _LAYER_NAMES.items()}
_GGUF_NAMES |= {
    "v.patch_embd": "vision_tower.patch_embedder.input_proj",
    "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
    "v.std_bias": "vision_tower.std_bias",
    "v.std_scale": "vision_tower.std_scale",
    "mm.input_projection": "embed_vision.embedding_projection",
}
FAMILY = FamilyFormat(
    _spec, Gemma4, GgufTower(_gguf_config, lambda _: _GGUF_NAMES, {"input_proj.weight": _folder_patches})
)
