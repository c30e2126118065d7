"""DeepSeek-OCR 2: the views of DeepSeek-OCR, in larger tiles; behind SAM are the layers of a small Qwen 2, in which its
rows see each other, and learned queries behind them, as many as there are rows for a view, see these and the queries
before. What becomes of the queries are the rows of a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.model.formats.fields import Fields
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, block, normed, product
from homenode.model.pictures.families.deepseek_ocr import PLACEHOLDER, TiledViews, sam_figures, view_figures
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
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_FRONT = "model.qwen2_model."
_LAYERS = f"{_FRONT}model.model."
_QUERIES = ("query_768", "query_1024")  # of the fewer rows first
_LAYER = {
    "norm1": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# The figures of the layers in published folders, which do not say them.
_PUBLISHED = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": 24}


class DeepseekOcr2:
    """See `PictureFamily`."""

    marker_token: int | str | None = ""

    def __init__(self, config: PictureConfig) -> None:
        self.placeholder = config.config.integer("image_token_id", PLACEHOLDER, minimum=0)
        vision = vision_of(config)
        self.sam = SamTower(vision)
        layers = vision.table("encoder_config") or _published(vision)
        self.width, heads = layers.integer("hidden_size", 4096), layers.integer("num_attention_heads", 32)
        self.form = BlockForm(
            heads,
            self.width // heads,
            layers.number("rms_norm_eps", 1e-6),
            "rms",
            activation_of(layers, "silu"),
            gated=True,
            kv_heads=layers.integer("num_key_value_heads", heads),
            mask="spans",
        )
        self.layers, self.theta = layers_of(layers, 32), rope_theta(layers, 1e6)
        processor = {**config.whole, **config.processor}
        self.views = TiledViews(processor, 768, 6)
        for side in (self.views.side, self.views.tile):
            self.sam.check_side(side)
        self.normalisation = pixels.Normalisation.read(processor, pixels.HALF)
        self._queries: list[FloatArray] = []
        self._end: FloatArray | None = None

    @property
    def _side(self) -> int:
        return self.views.side if self.views.cuts else self.views.tile

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        return self.views.prepare(picture, self._side, alone)

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        whole, tile = (self.sam.side_rows(side) ** 2 for side in (layout.size[0], self.views.tile))
        return names(self.placeholder) * (whole + tile * layout.tiles[0] * layout.tiles[1] + 1)

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors, form = tower.tensors, self.form
        self.sam.load(tower)
        for side in {self._side, self.views.tile}:
            self.sam.load_side(tower, side)
        self._queries = [tensors.array(f"{_FRONT}{name}.weight") for name in _QUERIES]
        layers = [tensors.layer(f"{_LAYERS}layers.{number}.", _LAYER) for number in range(self.layers)]
        last = tensors.layer(_LAYERS, {"norm": "norm"}) | tensors.layer("model.projector.", {"made": "layers"})
        self._end = tensors.array("model.view_seperator").reshape(1, -1)

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            x, angles = ops.split(rows, (self.width, form.head_dim))
            for layer in layers:
                x = block(ops, form, x, layer, cache, angles)
            return product(ops, normed(ops, form, x, last, "norm"), last, "made")

        heads = (form.kv_heads, form.head_dim)
        tower.add("queries", self.width + form.head_dim, forward, heads=heads)

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        whole, *tiles = (self._view(tower, tile) for tile in picture.tiles)
        assert self._end is not None
        return PictureRows(np.concatenate([*tiles, whole, self._end]))

    def _view(self, tower: Tower, tile: Pixels) -> FloatArray:
        """The rows of a square."""
        made = self.sam.rows(tower, self.normalisation.of(tile)).reshape(-1, self.width)
        fewer, more = self._queries
        rows = np.concatenate([made, fewer if len(made) <= len(fewer) else more])
        places = np.arange(len(rows), dtype=np.float32)
        angles = pixels.rope_of_line(places, self.form.head_dim, self.theta)
        found = tower.run("queries", np.concatenate([rows, angles], axis=1), [len(rows)], seen=len(made))
        return found[len(made) :]


def _published(vision: Fields) -> Fields:
    """The figures of the layers in the words of makers, who leave most of them out."""
    width = vision.table("width")
    named = None if width is None else width.table("qwen2-0-5b")
    said = {
        "hidden_size": None if named is None else named.optional_integer("dim"),
        "num_hidden_layers": vision.optional_integer("layers"),
        "num_attention_heads": vision.optional_integer("num_attention_heads"),
    }
    return Fields(vision.path, {**_PUBLISHED, **{key: value for key, value in said.items() if value is not None}})


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("deepseek_ocr2")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    heads = file.vision.integer("attention.head_count_kv", _PUBLISHED["num_key_value_heads"])
    layers = file.tower() | {"hidden_act": "silu", "num_key_value_heads": heads}
    layers["rms_norm_eps"] = layers.pop("layer_norm_eps", 1e-6)
    config = {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "vision_config": {"sam_config": sam_figures(file), "encoder_config": layers},
        "image_token_id": file.token("<image>"),
    }
    return config, file.processor(**view_figures(file, 6)), {}


_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAMES = SAM_NAMES | {f"v.blk.{{n}}.{own}": f"{_LAYERS}layers.{{n}}.{name}" for own, name in _LAYER_NAMES.items()}
_GGUF_NAMES |= {
    "v.post_ln": f"{_LAYERS}norm",
    "v.resample_query_768": f"{_FRONT}query_768",
    "v.resample_query_1024": f"{_FRONT}query_1024",
    "v.view_seperator": "model.view_seperator",
    "mm.model.fc": "model.projector.layers",
}
FAMILY = FamilyFormat(_spec, DeepseekOcr2, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
