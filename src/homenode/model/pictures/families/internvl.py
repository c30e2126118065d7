"""InternVL as transformers has it: a picture in the grid of tiles that fits its ratio best, and once more as a whole; a
ViT whose blocks scale what they add, and four patches as one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.errors import UnsupportedError
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
from homenode.model.pictures.siglip import side_of
from homenode.model.pictures.tower import Tower, TowerTensors
from homenode.model.pictures.vision_config import activation_of, layers_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_LAYER = {
    "norm1": "layernorm_before",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.projection_layer",
    "norm2": "layernorm_after",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_FRONTS = ("model.vision_tower.", "vision_tower.")
_NORMS = {"q_norm": "attention.q_norm", "k_norm": "attention.k_norm"}


class _Names(NamedTuple):
    """The names of a tower's tensors, behind `front`, and of the modules of the projector."""

    front: str
    patches: str
    places: str
    first: str
    layers: str
    layer: Mapping[str, str]
    norms: Mapping[str, str]
    scales: tuple[str, str]
    projector: tuple[str, Mapping[str, str]]


def _names(tensors: TowerTensors) -> _Names:
    """As transformers has them, or as the makers do."""
    if f"{_PUBLISHED.front}{_PUBLISHED.patches}.weight" in tensors:
        return _PUBLISHED
    front = tensors.front("embeddings.patch_embeddings.projection.weight", _FRONTS)
    ends = tensors.front("linear_1.weight", ("model.multi_modal_projector.", "multi_modal_projector."))
    return _Names(
        front,
        "embeddings.patch_embeddings.projection",
        "embeddings.position_embeddings",
        "embeddings.cls_token",
        "encoder.layer.",
        _LAYER,
        _NORMS,
        ("lambda_1", "lambda_2"),
        (ends, {"norm": "layer_norm", "up": "linear_1", "down": "linear_2"}),
    )


_PUBLISHED = _Names(
    "vision_model.",
    "embeddings.patch_embedding",
    "embeddings.position_embedding",
    "embeddings.class_embedding",
    "encoder.layers.",
    {"norm1": "norm1", "qkv": "attn.qkv", "o": "attn.proj", "norm2": "norm2", "up": "mlp.fc1", "down": "mlp.fc2"},
    {"q_norm": "attn.q_norm", "k_norm": "attn.k_norm"},
    ("ls1", "ls2"),
    ("mlp1.", {"norm": "0", "up": "1", "down": "3"}),
)
_BEGIN, _END = "<img>", "</img>"
_EXACT = 1e-3  # of a ratio, relative


class InternVl:
    """See `PictureFamily`."""

    marker_token: int | str | None = None

    def __init__(self, config: PictureConfig) -> None:
        fields, vision, processor = config.config, vision_of(config), config.processor
        self.placeholder = fields.integer("image_token_id", 151667, minimum=0)
        if fields.value("vision_feature_layer") not in (None, -1) or vision.boolean("use_mean_pooling", True) is False:
            raise UnsupportedError("features of InternVL other than those of its last layer are not supported")
        self.width, heads = vision.integer("hidden_size", 1024), vision.integer("num_attention_heads", 16)
        norm = "rms" if vision.text("norm_type") == "rms_norm" else "layer"
        eps = vision.number("layer_norm_eps", 1e-6)
        self.form = BlockForm(heads, self.width // heads, eps, norm, activation_of(vision, "gelu"))  # type: ignore[arg-type]
        self.layers = layers_of(vision, 24)
        self.image, self.patch = side_of(vision, "image_size", 448), side_of(vision, "patch_size", 14)
        self._norms = vision.boolean("use_qk_norm", False)
        ratio = fields.number("downsample_ratio", 0.5)
        self.merge = round(1 / ratio) if ratio > 0.0 else 0
        if self.merge < 1 or abs(self.merge * ratio - 1.0) > _EXACT:
            raise fields.wrong("downsample_ratio", ratio, "one half, one third and so on")
        self._rows = (self.image // self.patch // self.merge) ** 2  # of a tile
        self._cuts = bool(processor.get("crop_to_patches", False))
        self._grids = pixels.tile_grids(int(processor.get("min_patches", 1)), int(processor.get("max_patches", 12)))
        size = processor.get("size")
        high, wide = (pixels.fields_of(size, (key,), 384) for key in ("height", "width"))
        self._tile = high, wide
        if self._tile != (self.image, self.image):
            raise UnsupportedError(f"tiles of {high} x {wide} pixels before a tower of {self.image} are not supported")
        self._resample = int(processor.get("resample", pixels.BICUBIC))
        self.normalisation = pixels.Normalisation.read(processor, pixels.CLIP)
        self._activation = activation_of(fields, "gelu", "projector_hidden_act")
        self._table: FloatArray | None = None

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        original, (high, wide) = (picture.height, picture.width), self._tile
        rows, columns = 1, 1
        if self._cuts and len(self._grids) > 1:
            columns, rows = pixels.best_grid(*original, high * wide, self._grids)
        whole = pixels.resized(picture, high * rows, wide * columns, self._resample)
        tiles = pixels.square_tiles(whole, rows, columns, self._tile)
        if len(tiles) > 1:
            tiles.append(pixels.pixels_of(pixels.resized(picture, high, wide, self._resample)))
        return PreparedPicture(tiles, PictureLayout((rows, columns), self._tile, original, alone))

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows, columns = layout.tiles
        tiles = rows * columns + (rows * columns > 1)
        return f"{_BEGIN}{names(self.placeholder) * (self._rows * tiles)}{_END}"

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors, names = tower.tensors, _names(tower.tensors)
        front = names.front
        patches = tensors.layer(front, {"patches": names.patches})
        table = tensors.array(f"{front}{names.places}")[0].copy()
        table[0] += tensors.array(f"{front}{names.first}").reshape(-1)
        self._table = table
        layers = [self._layer(tower, names, f"{front}{names.layers}{n}.") for n in range(self.layers)]
        columns = 3 * self.patch**2

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            pieces, places = ops.split(rows, (columns, self.width))
            x = product(ops, pieces, patches, "patches", residual=places)
            for layer in layers:
                x = block(ops, self.form, x, layer, cache)
            return x

        tower.add("blocks", columns + self.width, forward)
        projector = tensors.layer(*names.projector)
        self._bias = tensors.array(f"{front}{names.patches}.bias").reshape(-1)

        def project(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x = normed(ops, BlockForm(1, 1, 1e-5), rows, projector, "norm")
            return product(ops, activated(ops, product(ops, x, projector, "up"), self._activation), projector, "down")

        tower.add("projector", self.width * self.merge**2, project, attends=False)

    def _layer(self, tower: Tower, names: _Names, front: str) -> dict[str, Any]:
        tensors = tower.tensors
        layer = tensors.layer(front, names.layer)
        layer["o_scale"], layer["down_scale"] = (tensors.vector(f"{front}{name}") for name in names.scales)
        if self._norms:
            layer |= tensors.layer(front, names.norms)
        return layer

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        side = self.image // self.patch
        assert self._table is not None
        table = self._table.copy()
        table[0] -= self._bias  # which the product adds to the class token, too
        rows = []
        for tile in picture.tiles:
            patches = pixels.block_patches(self.normalisation.of(tile), self.patch, 1)
            patches = np.concatenate([np.zeros((1, patches.shape[1]), np.float32), patches])
            rows.append(np.concatenate([patches, table], axis=1))
        count = side * side + 1
        x = tower.run("blocks", np.concatenate(rows), [count] * len(rows)).reshape(len(rows), count, -1)[:, 1:]
        merged = np.concatenate([pixels.merged_blocks(one, side, side, self.merge) for one in x])
        return PictureRows(tower.run("projector", merged, [len(merged)]))


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("internvl")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    side, merge = file.vision.integer("image_size"), file.vision.integer("projector.scale_factor", 2)
    tower = file.tower() | {"use_qk_norm": file.has("v.blk.0.attn_q_norm.weight")}
    if not file.has("v.blk.0.ln1.bias"):
        tower["norm_type"] = "rms_norm"
    config = {
        "architectures": ["InternVLForConditionalGeneration"],
        "vision_config": tower,
        "downsample_ratio": 1 / merge,
        "image_token_id": file.token("<IMG_CONTEXT>"),
    }
    tiles = {"min_patches": file.vision.integer("preproc_min_tiles", 1), "crop_to_patches": True}
    tiles["max_patches"] = file.vision.integer("preproc_max_tiles", 12)
    return config, file.processor(size={"height": side, "width": side}, **tiles), {}


_LAYER_NAMES = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.projection_layer",
    "attn_q_norm": "attention.q_norm",
    "attn_k_norm": "attention.k_norm",
    "ln1": "layernorm_before",
    "ln2": "layernorm_after",
    "ls1.weight": "lambda_1",
    "ls2.weight": "lambda_2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_GGUF_NAMES = {f"v.blk.{{n}}.{own}": f"vision_tower.encoder.layer.{{n}}.{name}" for own, name in _LAYER_NAMES.items()}
_GGUF_NAMES |= {
    "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection",
    "v.class_embd": "vision_tower.embeddings.cls_token",
    "v.position_embd.weight": "vision_tower.embeddings.position_embeddings",
    "mm.model.mlp.0": "multi_modal_projector.layer_norm",
    "mm.model.mlp.1": "multi_modal_projector.linear_1",
    "mm.model.mlp.3": "multi_modal_projector.linear_2",
}
GGUF = GgufTower(
    _gguf_config,
    lambda _: _GGUF_NAMES,
    {"position_embeddings": lambda table: table.reshape(1, -1, table.shape[-1])},
)
FAMILY = FamilyFormat(_spec, InternVl)
