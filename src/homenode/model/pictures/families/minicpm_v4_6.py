"""MiniCPM-V 4.6: a picture in slices, each of its own size; SigLIP, four patches becoming one row behind one of its
layers, where they see each other alone, and four of these becoming one behind the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, activated, normed, product
from homenode.model.pictures.family import FamilyFormat, Names, PictureConfig, PictureLayout, PictureRows
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.siglip import FRONTS, GGUF_NAMES, SquareTower, TakenLayers
from homenode.model.pictures.slices import Size, SlicedPictures
from homenode.model.pictures.tower import Tower, TowerTensors
from homenode.model.pictures.vision_config import vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

    from homenode.model.pictures.family import PreparedPicture

_SIDE = 2  # patches of a side of a window, and of a block
_WINDOW = {
    "norm": "layer_norm1",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "merged_norm": "pre_norm",
    "up": "linear_1",
    "down": "linear_2",
}
_MERGER = {"norm": "pre_norm", "up": "linear_1", "down": "linear_2"}
_FRONTS = ("model.vision_tower.vit_merger.", "vision_tower.vit_merger.")
_MERGERS = ("model.merger.mlp.", "merger.mlp.")


class MiniCpmV46:
    """See `PictureFamily`. Marks of slices are tokens by their names."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, vision, processor = config.config, vision_of(config), config.processor
        self.placeholder = fields.integer("image_token_id", 248056, minimum=0)
        self.tower = SquareTower(vision, clip=False, usual_activation="gelu_pytorch_tanh")
        self.form = self.tower.form
        for key, table in (("window_kernel_size", vision), ("merge_kernel_size", fields)):
            if (sides := table.value(key)) not in (None, [_SIDE, _SIDE]):
                raise UnsupportedError(f"{key} {sides} of MiniCPM-V is not supported; homenode runs {_SIDE} x {_SIDE}")
        mode = processor.get("downsample_mode") or fields.text("downsample_mode", "16x")
        self._rounds = fields.integer("merger_times", 1, maximum=limits.MOST_LAYERS)
        last = self.tower.layers - 1
        self._windows_behind = fields.integer("insert_layer_id", 6, minimum=0, maximum=last) + 1 if mode != "4x" else 0
        fold = _SIDE ** (self._rounds + bool(self._windows_behind))
        self._slices = SlicedPictures(processor, int(processor.get("patch_size") or self.tower.patch) * fold)
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        return self._slices.prepare(picture, alone)

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        one, area = names(self.placeholder), self._slices.factor**2
        return self._slices.text(layout, lambda size: one * (size[0] * size[1] // area), number)

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors, last = tower.tensors, self.tower.layers
        self.tower.load(tower, TakenLayers((self._windows_behind, last) if self._windows_behind else (last,), False))
        if self._windows_behind:
            self._load_windows(tower, tensors)
        front = tensors.front("embeddings.patch_embedding.weight", FRONTS)
        norm = tensors.layer(front, {"norm": "post_layernorm"})
        tower.add("norm", self.tower.width, lambda ops, x, _: normed(ops, self.form, x, norm, "norm"), attends=False)
        front = tensors.front("0.linear_1.weight", _MERGERS)
        for number in range(self._rounds):
            merger = tensors.layer(f"{front}{number}.", _MERGER)
            tower.add(f"merger {number}", _SIDE**2 * self.tower.width, _merger(merger), attends=False)

    def _load_windows(self, tower: Tower, tensors: TowerTensors) -> None:
        layer, form, width = (
            tensors.layer(tensors.front("linear_1.weight", _FRONTS), _WINDOW),
            self.form,
            self.tower.width,
        )

        def attended(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x = normed(ops, form, rows, layer, "norm")
            return ops.linear(x, (layer["q"], layer["k"], layer["v"]), tuple(layer.get(f"{key}_bias") for key in "qkv"))

        def added(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            found, x = ops.split(rows, (width, width))
            return product(ops, found, layer, "o", residual=x)

        def merged(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x, means = ops.split(rows, (_SIDE**2 * width, width))
            up = product(ops, normed(ops, form, x, layer, "merged_norm"), layer, "up")
            return product(ops, activated(ops, up, "gelu"), layer, "down", residual=means)

        tower.add("windows", width, attended, attends=False)
        tower.add("windows out", 2 * width, added, attends=False)
        tower.add("windows merged", (_SIDE**2 + 1) * width, merged, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        tiles = [self.normalisation.of(tile) for tile in picture.tiles]
        sizes = [(tile.shape[1] // self.tower.patch, tile.shape[2] // self.tower.patch) for tile in tiles]
        x, lengths = self.tower.placed(tower, tiles, pixels.nearest_table_of_quotients)
        if self._windows_behind:
            x = self.tower.through(tower, self._windows_behind, x, lengths)
            x, sizes = self._joined(tower, _merged(x, sizes)), _halved(sizes)
            lengths = [down * across for down, across in sizes]
        if self._windows_behind < self.tower.layers:
            x = self.tower.through(tower, self.tower.layers, x, lengths)
        x = tower.run("norm", x, [len(x)])
        for number in range(self._rounds):
            x, sizes = _merged(x, sizes), _halved(sizes)
            x = tower.run(f"merger {number}", x, [len(x)])
        return PictureRows(x)

    def _joined(self, tower: Tower, windows: FloatArray) -> FloatArray:
        """The patches of each window as one row, after they have seen each other. `windows`: [n, 4 * width]."""
        width = self.tower.width
        rows = windows.reshape(-1, width)
        seen = self._seen(tower.run("windows", rows, [len(rows)]))
        rows = tower.run("windows out", np.concatenate([seen, rows], axis=1), [len(rows)])
        means = rows.reshape(-1, _SIDE**2, width).mean(axis=1, dtype=np.float32)
        joined = np.concatenate([rows.reshape(len(means), -1), means], axis=1)
        return tower.run("windows merged", joined, [len(means)])

    def _seen(self, qkv: FloatArray) -> FloatArray:
        """Return what each patch sees of its window, of queries, keys and values of all heads side by side."""
        heads, dim = self.form.heads, self.form.head_dim
        q, k, v = qkv.reshape(-1, _SIDE**2, 3, heads, dim).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(2, 3) * np.float32(dim**-0.5)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return np.ascontiguousarray((shares @ v).swapaxes(1, 2)).reshape(-1, heads * dim)


def _merger(layer: dict[str, Any]) -> Any:
    def forward(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
        x = normed(ops, BlockForm(1, 1), rows, layer, "norm")
        return product(ops, activated(ops, product(ops, x, layer, "up"), "gelu_erf"), layer, "down")

    return forward


def _merged(rows: FloatArray, sizes: Sequence[Size]) -> FloatArray:
    """The rows of tiles of these sizes, those of each block of four beside each other in one."""
    ends = np.cumsum([down * across for down, across in sizes])
    parts = np.split(rows, ends[:-1])
    return np.concatenate([pixels.merged_blocks(part, *size, _SIDE) for part, size in zip(parts, sizes, strict=True)])


def _halved(sizes: Sequence[Size]) -> list[Size]:
    return [(down // _SIDE, across // _SIDE) for down, across in sizes]


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("minicpm_v4_6")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower() | {"hidden_act": "gelu_pytorch_tanh"}
    layers = file.vision.integers("wa_layer_indexes") if file.vision.has("wa_layer_indexes") else (6,)
    config = {
        "architectures": ["MiniCPMV4_6ForConditionalGeneration"],
        "vision_config": tower,
        "insert_layer_id": layers[0],
        "image_token_id": file.token("<|image_pad|>"),
    }
    mode = "4x" if file.vision.integer("projector.scale_factor", 4) == _SIDE else "16x"
    return config, file.processor(scale_resolution=tower.get("image_size", 448), downsample_mode=mode), {}


_WINDOW_NAMES = {
    "ln1": "layer_norm1",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ds_ln": "pre_norm",
    "ds_ffn_up": "linear_1",
    "ds_ffn_down": "linear_2",
}
_MERGER_NAMES = {"mm.input_norm": "pre_norm", "mm.up": "linear_1", "mm.down": "linear_2"}
_GGUF_NAMES = GGUF_NAMES | {own: f"{_MERGERS[1]}0.{name}" for own, name in _MERGER_NAMES.items()}
_GGUF_NAMES |= {f"v.vit_merger.{own}": f"{_FRONTS[1]}{name}" for own, name in _WINDOW_NAMES.items()}
FAMILY = FamilyFormat(_spec, MiniCpmV46, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
