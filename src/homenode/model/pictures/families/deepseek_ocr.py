"""DeepSeek-OCR: a picture as a whole in a square of grey, and a large one besides in tiles of the grid that fits its
ratio best; the rows of SAM go through CLIP and beside what that makes of them. The tiles are one map, each line of
which has a row for its end, as those of the whole have, and the last row parts views.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.model.formats.fields import Fields
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, block, normed, product
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
from homenode.model.pictures.sam import GGUF_NAMES as SAM_NAMES
from homenode.model.pictures.sam import SamTower
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import activation_of, layers_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

PLACEHOLDER = 128815
_FRONT = "model.vision_model."
_LAYER = {
    "norm1": "layer_norm1",
    "qkv": "self_attn.qkv_proj",
    "o": "self_attn.out_proj",
    "norm2": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_PUBLISHED = {"width": "hidden_size", "heads": "num_attention_heads", "layers": "num_hidden_layers"}
_GREY = (127, 127, 127)
_LARGEST = 4096  # pixels of a side
_LARGEST_STRETCHED = 640  # of pictures that are never cut


class TiledViews:
    """How a picture becomes a whole and tiles. `tile`: their side, `most`: how many, where no file says."""

    def __init__(self, processor: dict[str, Any], tile: int, most: int) -> None:
        size = processor.get("size")
        self.side = max(pixels.fields_of(size, (key,), 1024) for key in ("height", "width"))
        self.tile = int(processor.get("tile_size") or tile)
        self.cuts = bool(processor.get("crop_to_patches", True))
        self._grids = pixels.tile_grids(
            int(processor.get("min_patches") or 2), int(processor.get("max_patches") or most)
        )
        colour = processor.get("background_color") or _GREY
        self._colour = (int(colour[0]), int(colour[1]), int(colour[2]))
        self._resample = int(processor.get("resample", pixels.BICUBIC))

    def prepare(self, picture: Image, side: int, alone: bool, *, stretched: bool = False) -> PreparedPicture:
        """See `PictureFamily`. The whole, of this side, is first; no tiles in the layout: it is not cut."""
        original, tile = (picture.height, picture.width), self.tile
        if stretched:
            tiles = [pixels.pixels_of(pixels.resized(picture, side, side, self._resample))]
        else:
            tiles = [pixels.pixels_of(pixels.in_square(picture, side, self._resample, self._colour))]
        rows, columns = 0, 0
        if self.cuts and self._grids and max(original) > tile:
            columns, rows = pixels.best_grid(*original, tile * tile, self._grids)
            cut = pixels.resized(picture, rows * tile, columns * tile, self._resample)
            tiles += pixels.square_tiles(cut, rows, columns, (tile, tile))
        return PreparedPicture(tiles, PictureLayout((rows, columns), (side, side), original, alone))


class DeepseekOcr:
    """See `PictureFamily`."""

    marker_token: int | str | None = ""

    def __init__(self, config: PictureConfig) -> None:
        self.placeholder = config.config.integer("image_token_id", PLACEHOLDER, minimum=0)
        vision = vision_of(config)
        self.sam = SamTower(vision)
        published = vision.table("width") if vision.value("encoder_config") is None else None
        found = vision.table("encoder_config") if published is None else published.table("clip-l-14-224")
        clip = (found or Fields(vision.path, {})).respelled(_PUBLISHED)
        self.width, heads = clip.integer("hidden_size", 1024), clip.integer("num_attention_heads", 16)
        eps, activation = clip.number("layer_norm_eps", 1e-5), activation_of(clip, "quick_gelu")
        self.form = BlockForm(heads, self.width // heads, eps, activation=activation)
        self.layers = layers_of(clip, 24)
        processor = {**config.whole, **config.processor}
        self.views = TiledViews(processor, 640, 9)
        for side in (self.views.side, self.views.tile):
            self.sam.check_side(side)
        self._stretches = int(processor.get("maximum_pad_value") or _LARGEST_STRETCHED)
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)
        self._table: FloatArray | None = None
        self._ends: list[FloatArray] = []

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        side = self.views.side
        return self.views.prepare(picture, side, alone, stretched=not self.views.cuts and side <= self._stretches)

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        whole, tile = self.sam.side_rows(layout.size[0]), self.sam.side_rows(self.views.tile)
        down, across = (count * tile for count in layout.tiles)
        return names(self.placeholder) * (whole * (whole + 1) + 1 + (down * (across + 1) if down else 0))

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors, form = tower.tensors, self.form
        self.sam.load(tower)
        for side in {self.views.side, self.views.tile}:
            self.sam.load_side(tower, side)
        table = tensors.array(f"{_FRONT}embeddings.position_embedding.weight").copy()
        table[0] += tensors.array(f"{_FRONT}embeddings.class_embedding").reshape(-1)
        self._table = table
        first = tensors.layer(_FRONT, {"norm": "pre_layrnorm"})
        layers = [tensors.layer(f"{_FRONT}transformer.layers.{n}.", _LAYER) for n in range(self.layers)]
        last = tensors.layer("model.projector.", {"made": "layers"})
        self._ends = [tensors.array(f"model.{name}").reshape(1, -1) for name in ("image_newline", "view_seperator")]

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            x = normed(ops, form, rows, first, "norm")
            for layer in layers:
                x = block(ops, form, x, layer, cache)
            return x

        tower.add("clip", self.width, forward)
        tower.add("projector", 2 * self.width, lambda ops, rows, _: product(ops, rows, last, "made"), attends=False)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        whole, *tiles = (self._view(tower, tile) for tile in picture.tiles)
        views = [self._lines(whole)]
        if tiles:
            down, across = picture.layout.tiles
            side = len(tiles[0])
            one = np.stack(tiles).reshape(down, across, side, side, -1).swapaxes(1, 2)
            views.insert(0, self._lines(one.reshape(down * side, across * side, -1)))
        return PictureRows(np.concatenate([*views, self._ends[1]]))

    def _view(self, tower: Tower, tile: Pixels) -> FloatArray:
        """The rows of a square: [rows, columns, width]."""
        made = self.sam.rows(tower, self.normalisation.of(tile))
        side = len(made)
        rows = made.reshape(side * side, self.width)
        assert self._table is not None
        learned = math.isqrt(len(self._table) - 1)
        places = pixels.cubic_table(self._table[1:].reshape(learned, learned, -1), side, side).reshape(side * side, -1)
        x = np.concatenate([self._table[:1], rows + places])
        seen = tower.run("clip", x, [len(x)])[1:]
        beside = np.concatenate([seen, rows], axis=1)
        return tower.run("projector", beside, [len(beside)]).reshape(side, side, -1)

    def _lines(self, view: FloatArray) -> FloatArray:
        """The rows of a view, each line with the row for its end."""
        ends = np.broadcast_to(self._ends[0], (len(view), 1, view.shape[2]))
        return np.concatenate([view, ends], axis=1).reshape(-1, view.shape[2])


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("deepseek_ocr")


def sam_figures(file: Mmproj) -> dict[str, Any]:
    """The figures of SAM in a file, as a folder has them. Layers that see all have as many distances as a whole has."""
    vision = file.vision
    layers, window = layers_of(vision, 12, "sam.block_count"), vision.integer("window_size", 14)
    tables = {n: file.tensors.get(f"v.sam.blk.{n}.attn.pos_h.weight") for n in range(layers)}
    return {
        "hidden_size": vision.integer("sam.embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": vision.integer("sam.head_count"),
        "window_size": window,
        "global_attn_indexes": [n for n, table in tables.items() if table and table.shape[0] != 2 * window - 1],
    }


def view_figures(file: Mmproj, most: int) -> dict[str, Any]:
    """The side of a whole, and how many tiles there may be, as a file says. `most`: where it does not."""
    vision = file.vision
    side = vision.integer("preproc_image_size", 1024, maximum=_LARGEST)
    return {
        "size": {"height": side, "width": side},
        "min_patches": vision.integer("preproc_min_tiles", 2, maximum=pixels.MOST_TILES),
        "max_patches": vision.integer("preproc_max_tiles", most, maximum=pixels.MOST_TILES),
    }


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower() | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}  # whatever the file says
    config = {
        "architectures": ["DeepseekOCRForCausalLM"],
        "vision_config": {"sam_config": sam_figures(file), "encoder_config": tower},
        "image_token_id": file.token("<image>"),
    }
    return config, file.processor(**view_figures(file, 9)), {}


_LAYER_NAMES = {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_GGUF_NAMES = SAM_NAMES | {
    f"v.blk.{{n}}.{own}": f"{_FRONT}transformer.layers.{{n}}.{name}" for own, name in _LAYER_NAMES.items()
}
_GGUF_NAMES |= {
    "v.class_embd": f"{_FRONT}embeddings.class_embedding",
    "v.position_embd": f"{_FRONT}embeddings.position_embedding",
    "v.pre_ln": f"{_FRONT}pre_layrnorm",
    "v.image_newline": "model.image_newline",
    "v.view_seperator": "model.view_seperator",
    "mm.model.fc": "model.projector.layers",
}
FAMILY = FamilyFormat(_spec, DeepseekOcr, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
