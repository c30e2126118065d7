"""Llama 4: a picture on the canvas of tiles that keeps most of it, and once more as a whole; a ViT whose class token is
the last, whose heads turn by column and row, and whose patches are merged two by two.
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
    Pixels,
    PreparedPicture,
)
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.siglip import side_of
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import layers_of, rope_theta, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_LAYER = {
    "norm1": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_FRONTS = ("vision_model.", "model.vision_model.")
_PROJECTORS = ("multi_modal_projector.", "model.multi_modal_projector.")
_BEGIN, _END, _WHOLE = "<|image_start|>", "<|image_end|>", "<|image|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"


class Llama4:
    """See `PictureFamily`. Marks of tiles are tokens by their names."""

    marker_token: str | None = _WHOLE

    def __init__(self, config: PictureConfig) -> None:
        fields, vision, processor = config.config, vision_of(config), config.processor
        self.placeholder = fields.integer("image_token_index", 200092, minimum=0)
        self.width, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 16)
        self.form = BlockForm(heads, self.width // heads, 1e-5, activation="gelu_erf", adjacent=True)
        self.layers, self.theta = layers_of(vision, 34), rope_theta(vision, 10000.0)
        self.image, self.patch = side_of(vision, "image_size", 448), side_of(vision, "patch_size", 14)
        self.merge = round(1 / vision.number("pixel_shuffle_ratio", 0.5))
        self._tile = pixels.fields_of(processor.get("size"), ("height",), self.image)
        self._most = int(processor.get("max_patches") or 16)
        self._fills = bool(processor.get("resize_to_max_canvas", False))
        self._resample = int(processor.get("resample", pixels.BILINEAR))
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)
        self._table: FloatArray | None = None

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        from PIL import Image as images

        original, tile = (picture.height, picture.width), self._tile
        high, wide = _best_canvas(original, _canvases(self._most, tile), fills=self._fills)
        room = (high, wide) if self._fills else (min(max(original[0], tile), high), min(max(original[1], tile), wide))
        canvas = images.new("RGB", (wide, high))
        canvas.paste(pixels.resized(picture, *_within(original, room), self._resample), (0, 0))
        rows, columns = high // tile, wide // tile
        tiles = pixels.square_tiles(canvas, rows, columns, (tile, tile))
        if len(tiles) > 1:
            tiles.append(pixels.pixels_of(pixels.resized(picture, tile, tile, self._resample)))
        return PreparedPicture(tiles, PictureLayout((rows, columns), (tile, tile), original, alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        one = names(self.placeholder) * (self._tile // self.patch // self.merge) ** 2
        rows, columns = layout.tiles
        line = _BESIDE.join([one] * columns) + _BELOW
        return f"{_BEGIN}{line * rows if rows * columns > 1 else ''}{_WHOLE}{one}{_END}"

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        front = tensors.front("patch_embedding.linear.weight", _FRONTS)
        first = tensors.layer(front, {"patch": "patch_embedding.linear", "before": "layernorm_pre"})
        last = tensors.layer(front, {"norm": "layernorm_post"})
        table = tensors.array(f"{front}positional_embedding_vlm").copy()
        table[-1] += tensors.array(f"{front}class_embedding").reshape(-1)
        self._table = table
        layers = [tensors.layer(f"{front}model.layers.{number}.", _LAYER) for number in range(self.layers)]
        ends = tensors.layer(f"{front}vision_adapter.mlp.", {"up": "fc1", "down": "fc2"})
        ends |= tensors.layer(tensors.front("linear_1.weight", _PROJECTORS), {"proj": "linear_1"})
        columns, head = 3 * self.patch**2, self.form.head_dim

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            patches, places, angles = ops.split(rows, (columns, self.width, head))
            x = normed(ops, self.form, product(ops, patches, first, "patch", residual=places), first, "before")
            for layer in layers:
                x = block(ops, self.form, x, layer, cache, angles)
            return normed(ops, self.form, x, last, "norm")

        tower.add("blocks", columns + self.width + head, forward)

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x = activated(ops, product(ops, rows, ends, "up"), "gelu_erf")
            return product(ops, activated(ops, product(ops, x, ends, "down"), "gelu_erf"), ends, "proj")

        tower.add("projector", self.merge**2 * self.width, project, attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        side = self._tile // self.patch
        places = np.concatenate([pixels.block_places(side, side, 1)[:, ::-1] + 1, np.zeros((1, 2), np.float32)])
        angles = pixels.rope_columns(places, self.form.head_dim, self.theta)
        assert self._table is not None
        beside = np.concatenate([self._table, angles], axis=1)
        rows = []
        for tile in picture.tiles:
            patches = pixels.block_patches(self._values(tile), self.patch, 1)
            patches = np.concatenate([patches, np.zeros((1, patches.shape[1]), np.float32)])
            rows.append(np.concatenate([patches, beside], axis=1))
        x = tower.run("blocks", np.concatenate(rows), [len(beside)] * len(rows))
        whole = x.reshape(len(rows), len(beside), -1)[:, :-1]
        merged = np.concatenate([pixels.merged_blocks(one, side, side, self.merge) for one in whole])
        return PictureRows(tower.run("projector", merged, [len(merged)]))

    def _values(self, tile: Pixels) -> FloatArray:
        """A tile normalised in steps of bfloat16, as the processor does."""
        mean, deviation = (
            np.array(part, np.float32) for part in (self.normalisation.mean, self.normalisation.deviation)
        )
        scaled = _rounded(tile.astype(np.float32) * np.float32(1 / 255))
        found = _rounded(_rounded(scaled - _rounded(mean)) / _rounded(deviation))
        return np.ascontiguousarray(found.transpose(2, 0, 1))


def _rounded(values: FloatArray) -> FloatArray:
    """The nearest numbers of bfloat16, of two the even one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return even.view(np.float32)


def _canvases(most: int, tile: int) -> list[tuple[int, int]]:
    """Height and width of all grids of up to so many tiles, those of one ratio after each other."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in (number for number in range(1, count + 1) if count % number == 0):
            by_ratio.setdefault(rows / (count // rows), []).append((rows * tile, count // rows * tile))
    return [size for sizes in by_ratio.values() for size in sizes]


def _best_canvas(original: tuple[int, int], sizes: list[tuple[int, int]], *, fills: bool) -> tuple[int, int]:
    """The canvas into which a picture fits with least of it lost, or else enlarged as little as can be (`fills`: as
    much as can be), of several the smallest.
    """
    scales = np.min(np.array(sizes, np.float32) / np.array(original, np.float32), axis=1)
    larger = scales[scales >= 1]
    chosen = (larger.max() if fills else larger.min()) if len(larger) else scales.max()
    fitting = [size for size, scale in zip(sizes, scales, strict=True) if scale == chosen]
    return min(fitting, key=lambda size: size[0] * size[1])


def _within(original: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """The largest size of that ratio within a room."""
    down, across = room[0] / original[0], room[1] / original[1]
    if across < down:
        return max(min(math.floor(original[0] * across), room[0]), 1), room[1]
    return room[0], max(min(math.floor(original[1] * down), room[1]), 1)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("llama4")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tile = file.vision.integer("image_size")
    config = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "vision_config": file.tower() | {"pixel_shuffle_ratio": 1 / file.vision.integer("projector.scale_factor", 2)},
        "image_token_index": file.token("<|patch|>"),
    }
    return config, file.processor(size={"height": tile, "width": tile}), {}


_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn_post_norm": "post_attention_layernorm",  # as converters since Gemma 4 call it
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"vision_model.model.layers.{{n}}.{name}" for own, name in _LAYER_NAMES.items()}
_GGUF_NAMES |= {
    "v.patch_embd": "vision_model.patch_embedding.linear",
    "v.class_embd": "vision_model.class_embedding",
    "v.position_embd.weight": "vision_model.positional_embedding_vlm",
    "v.pre_ln": "vision_model.layernorm_pre",
    "v.post_ln": "vision_model.layernorm_post",
    "mm.model.mlp.1": "vision_model.vision_adapter.mlp.fc1",
    "mm.model.mlp.2": "vision_model.vision_adapter.mlp.fc2",
    "mm.model.fc": "multi_modal_projector.linear_1",
}
FAMILY = FamilyFormat(_spec, Llama4, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
