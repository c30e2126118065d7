"""Qwen 2.5 VL: pictures of any size in blocks of patches, which see each other within windows but in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import KvCache, Ops, Tensor
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, activated, block, normed, product
from homenode.model.pictures.families.qwen3_vl import QwenSizes, sections_of
from homenode.model.pictures.family import FamilyFormat, PictureConfig, PictureRows, PreparedPicture
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from homenode.model.pictures.tower import Tower

_LAYER = {
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "o": "attn.proj",
    "norm2": "norm2",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_FRONTS = ("model.visual.", "visual.")
_WHOLE_LAYERS = (7, 15, 23, 31)
IndexArray = npt.NDArray[np.int64]


class Qwen25Vl(QwenSizes):
    """See `PictureFamily`."""

    marker_token: int | None = None
    layer_names: Mapping[str, str] = _LAYER

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config, 14, pixels.CLIP)
        self.placeholder = config.config.integer("image_token_id", 151655, minimum=0)
        vision = vision_of(config)
        self.width, heads = vision.integer("hidden_size", 3584), vision.integer("num_heads", 16)
        self.form = BlockForm(heads, self.width // heads, 1e-6, "rms", activation_of(vision, "silu"), gated=True)
        self.depth, self.theta = layers_of(vision, 32, "depth"), rope_theta(vision, 10000.0)
        whole = vision.integers("fullatt_block_indexes") if vision.has("fullatt_block_indexes") else _WHOLE_LAYERS
        self._whole = frozenset(whole)
        self._window = max(1, vision.integer("window_size", 112) // self.merge // self.patch)

    def load(self, tower: Tower) -> None:
        """Make the programs: a run of blocks with windows or without, one after the other, and the merger."""
        tensors = tower.tensors
        front = tensors.front("patch_embed.proj.weight", _FRONTS)
        first = tensors.of_array(tensors.still(f"{front}patch_embed.proj.weight"))
        taken = 3 * self.patch**2
        tower.add("patches", taken, lambda ops, x, _: ops.linear(x, (first,), precision="fine"), attends=False)
        for number, (begin, end, _) in enumerate(self._runs()):
            layers = [tensors.layer(f"{front}blocks.{layer}.", self.layer_names) for layer in range(begin, end)]
            tower.add(f"blocks {number}", self.width + self.form.head_dim, self._run(layers))
        merger = tensors.layer(f"{front}merger.", {"norm": "ln_q", "up": "mlp.0", "down": "mlp.2"})
        tower.add("norm", self.width, lambda ops, x, _: normed(ops, self.form, x, merger, "norm"), attends=False)

        def merge(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return product(ops, activated(ops, product(ops, rows, merger, "up"), "gelu_erf"), merger, "down")

        tower.add("merger", self.merge**2 * self.width, merge, attends=False)

    def _runs(self) -> list[tuple[int, int, bool]]:
        """The first and past layer of each run, and whether its layers see the whole picture."""
        runs: list[tuple[int, int, bool]] = []
        for layer in range(self.depth):
            whole = layer in self._whole
            if runs and runs[-1][2] == whole:
                runs[-1] = (runs[-1][0], layer + 1, whole)
            else:
                runs.append((layer, layer + 1, whole))
        return runs

    def _run(self, layers: list[dict[str, Any]]) -> Any:
        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            x, angles = ops.split(rows, (self.width, self.form.head_dim))
            for layer in layers:
                x = block(ops, self.form, x, layer, cache, angles)
            return x

        return forward

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        patches, rows, columns = self.patches(picture)
        grid, side = self.grid(picture.layout), self.merge**2
        order, windows = _windows(*grid, self._window)
        angles = self.angles(rows, columns)
        x, angles = (part.reshape(len(order), -1)[order].reshape(part.shape) for part in (patches, angles))
        x = tower.run("patches", x, [len(x)])
        for number, (_, _, whole) in enumerate(self._runs()):
            lengths = [len(x)] if whole else [count * side for count in windows]
            x = tower.run(f"blocks {number}", np.concatenate([x, angles], axis=1), lengths)
        merged = tower.run("norm", x, [len(x)]).reshape(len(order), -1)
        made = tower.run("merger", merged, [len(merged)])
        found = np.empty_like(made)
        found[order] = made
        return PictureRows(found, grid)


def _windows(rows: int, columns: int, side: int) -> tuple[IndexArray, list[int]]:
    """The blocks of a picture window by window, and how many each has: those at the edges are cut."""
    numbers = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    found = [
        numbers[row : row + side, column : column + side].reshape(-1)
        for row in range(0, rows, side)
        for column in range(0, columns, side)
    ]
    return np.concatenate(found), [len(each) for each in found]


def _spec(config: PictureConfig) -> PictureSpec:
    return PictureSpec("qwen2_5_vl", sections=sections_of(config, (16, 24, 24)))


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower(num_hidden_layers="depth", num_attention_heads="num_heads") | {"hidden_act": "silu"}
    if period := file.vision.integer("n_wa_pattern", 0, minimum=0):
        tower["fullatt_block_indexes"] = list(range(period - 1, tower["depth"], period))
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "vision_config": tower,
        "image_token_id": file.token("<|image_pad|>"),
    }
    sizes = {"shortest_edge": AREAS[0], "longest_edge": AREAS[1]}
    return config, file.processor(patch_size=tower["patch_size"], size=sizes), {}


AREAS = (56 * 56, 28 * 28 * 16384)  # as published
GGUF_LAYER = {
    "attn_qkv": "attn.qkv",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_out": "attn.proj",
    "ln1": "norm1",
    "ln2": "norm2",
}
_LAYER_NAMES = GGUF_LAYER | {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GGUF_MERGER = {
    "v.patch_embd": "visual.patch_embed.proj",
    "v.post_ln": "visual.merger.ln_q",
    "mm.0": "visual.merger.mlp.0",
    "mm.2": "visual.merger.mlp.2",
}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"visual.blocks.{{n}}.{name}" for own, name in _LAYER_NAMES.items()} | GGUF_MERGER
FAMILY = FamilyFormat(_spec, Qwen25Vl, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
