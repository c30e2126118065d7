"""Qwen 3 VL, Qwen 3.5 and their mixtures: pictures of any size in blocks of patches, learned positions read between
their places, and of some layers further rows for the first layers of the text (deepstack).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.model.formats.fields import Fields
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
from homenode.model.pictures.vision_config import activation_of, layers_of, rope_theta, text_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_LAYER = {
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "o": "attn.proj",
    "norm2": "norm2",
    "up": "mlp.linear_fc1",
    "down": "mlp.linear_fc2",
}
_MERGER = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
_AREAS = (56 * 56, 28 * 28 * 1280)  # of the class
_SECTIONS = (24, 20, 20)
_FEWEST_BLOCKS = 8  # of a picture, where a GGUF file does not say: smaller ones are enlarged, as llama.cpp does


class QwenSizes:
    """The part that all of Qwen's families, and GLM's, have in common: sizes of pictures, and the rows in a prompt."""

    placeholder: int
    form: BlockForm
    theta: float

    def __init__(
        self,
        config: PictureConfig,
        patch: int,
        usual: pixels.Usual,
        frames: int = 1,
        areas: tuple[int, int] = _AREAS,
    ) -> None:
        """`patch`, `areas`: where the processor does not say. `frames`: by which areas are counted."""
        processor, size = config.processor, config.processor.get("size")
        self.patch, self.merge = int(processor.get("patch_size", patch)), int(processor.get("merge_size", 2))
        self.factor = self.patch * self.merge
        least, most = processor.get("min_pixels"), processor.get("max_pixels")
        self.least = int(least or pixels.fields_of(size, ("shortest_edge", "min_pixels"), areas[0])) / frames
        self.most = int(most or pixels.fields_of(size, ("longest_edge", "max_pixels"), areas[1])) / frames
        self.resample = int(processor.get("resample", pixels.BICUBIC))
        self.normalisation = pixels.Normalisation.read(processor, usual)

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        high, wide = self.sized(picture.height, picture.width)
        found = pixels.pixels_of(pixels.resized(picture, high, wide, self.resample))
        layout = PictureLayout((1, 1), (high, wide), (picture.height, picture.width), alone)
        return PreparedPicture([found], layout)

    def sized(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that a picture is scaled to. ValueError for one that cannot be."""
        return pixels.area_size(height, width, self.factor, self.least, self.most)

    def grid(self, layout: PictureLayout) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return layout.size[0] // self.factor, layout.size[1] // self.factor

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows, columns = self.grid(layout)
        return names(self.placeholder) * (rows * columns)

    def patches(self, picture: PreparedPicture) -> tuple[FloatArray, int, int]:
        """The patches of a picture, and how many rows and columns of them there are."""
        high, wide = picture.layout.size
        channels = self.normalisation.of(picture.tiles[0])
        return pixels.block_patches(channels, self.patch, self.merge), high // self.patch, wide // self.patch

    def angles(self, rows: int, columns: int) -> FloatArray:
        """cos and sin by which the heads of each patch turn: by its row, and by its column."""
        places = pixels.block_places(rows, columns, self.merge)
        return pixels.rope_columns(places, self.form.head_dim, self.theta)


class Qwen3Vl(QwenSizes):
    """See `PictureFamily`."""

    marker_token: int | None = None

    def __init__(self, config: PictureConfig) -> None:
        super().__init__(config, 16, pixels.CLIP)
        self.placeholder = config.config.integer("image_token_id", 151655, minimum=0)
        vision = vision_of(config)
        self.width, heads = vision.integer("hidden_size", 1152), vision.integer("num_heads", 16)
        self.form = BlockForm(heads, self.width // heads, activation=activation_of(vision, "gelu_pytorch_tanh"))
        self.depth = layers_of(vision, 27, "depth")
        self.theta = rope_theta(vision, 10000.0)
        self.deep = deep_layers(vision) if _has_deep(config) else ()
        self._places: FloatArray | None = None

    def load(self, tower: Tower) -> None:
        """Make the programs: a run of blocks up to each layer that something is made of, and the mergers."""
        tensors = tower.tensors
        front = "model.visual." if "model.visual.pos_embed.weight" in tensors else "visual."
        whole = tensors.of_array(tensors.still(f"{front}patch_embed.proj.weight"))
        bias = tensors.vector(f"{front}patch_embed.proj.bias")
        self._places = tensors.array(f"{front}pos_embed.weight")
        layers = [tensors.layer(f"{front}blocks.{number}.", _LAYER) for number in range(self.depth)]
        taken = 3 * self.patch**2
        ends = self._ends
        for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            first = (whole, bias, taken) if number == 0 else None
            columns = (taken + self.width if first else self.width) + self.form.head_dim
            if begin < end:
                tower.add(f"blocks {number}", columns, self._run(layers[begin:end], first))
        for number in range(len(self.deep)):
            merger = tensors.layer(f"{front}deepstack_merger_list.{number}.", _MERGER)
            tower.add(f"deep {number}", 4 * self.width, _merger(merger, behind=True), attends=False)
        merger = tensors.layer(f"{front}merger.", _MERGER)
        tower.add("norm", self.width, lambda ops, x, _: normed(ops, BlockForm(1, 1), x, merger, "norm"), attends=False)
        tower.add("merger", 4 * self.width, _merger(merger, behind=False), attends=False)

    @property
    def _ends(self) -> list[int]:
        """Behind which layers a run of blocks ends."""
        return [*(layer + 1 for layer in self.deep), self.depth]

    def _run(self, layers: list[dict[str, Any]], first: tuple[Any, Tensor, int] | None) -> Any:
        """The program of some blocks. `first`: the matrix and bias of patches, and the columns of a patch."""

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            if first is None:
                x, angles = ops.split(rows, (self.width, self.form.head_dim))
            else:
                weight, bias, columns = first
                patches, places, angles = ops.split(rows, (columns, self.width, self.form.head_dim))
                x = ops.linear(patches, (weight,), (bias,), residual=places, precision="fine")
            for layer in layers:
                x = block(ops, self.form, x, layer, cache, angles)
            return x

        return forward

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        patches, rows, columns = self.patches(picture)
        angles = self.angles(rows, columns)
        assert self._places is not None
        places = pixels.bilinear_table(self._places, rows, columns).transpose(2, 0, 1)
        x = np.concatenate([patches, pixels.block_patches(places, 1, self.merge)], axis=1)
        made = []
        for number in range(len(self.deep) + 1):
            if number == 0 or self._ends[number] > self._ends[number - 1]:
                x = tower.run(f"blocks {number}", np.concatenate([x, angles], axis=1), [len(x)])
            if number < len(self.deep):
                made.append(tower.run(f"deep {number}", x.reshape(-1, 4 * self.width), [len(x) // 4]))
        merged = tower.run("norm", x, [len(x)]).reshape(-1, 4 * self.width)
        made.insert(0, tower.run("merger", merged, [len(merged)]))
        return PictureRows(np.concatenate(made, axis=1), self.grid(picture.layout))


def _merger(layer: dict[str, Any], *, behind: bool) -> Any:
    """The program that makes a row of four patches; `behind`: the norm is over the four together."""

    def forward(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
        x = normed(ops, BlockForm(1, 1), rows, layer, "norm") if behind else rows
        return product(ops, activated(ops, product(ops, x, layer, "up"), "gelu_erf"), layer, "down")

    return forward


def deep_layers(vision: Fields) -> tuple[int, ...]:
    """The layers of the tower after which a row is made for a layer of the text, in order."""
    return vision.integers("deepstack_visual_indexes") if vision.has("deepstack_visual_indexes") else (8, 16, 24)


def _has_deep(config: PictureConfig) -> bool:
    return "Qwen3VL" in str(config.config.value("architectures"))


def sections_of(config: PictureConfig, usual: tuple[int, ...]) -> tuple[int, ...]:
    """The number of frequencies that turn by each axis."""
    text = text_of(config)
    for table in (text.table("rope_parameters"), text.table("rope_scaling")):
        if table is not None and table.has("mrope_section"):
            return table.integers("mrope_section")
    return usual


def _spec(config: PictureConfig) -> PictureSpec:
    deep = len(deep_layers(vision_of(config))) if _has_deep(config) else 0
    usual = _SECTIONS if _has_deep(config) else (11, 11, 10)
    return PictureSpec("qwen3_vl", deep_layers=deep, sections=sections_of(config, usual), interleaved=True)


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tower = file.tower(num_hidden_layers="depth", num_attention_heads="num_heads")
    tower |= {"hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": _marked(file)}
    _check_deep(file, len(tower["deepstack_visual_indexes"]))
    kind = "Qwen3VLForConditionalGeneration"
    if "qwen35" in str(file.text.get("general.architecture")):
        kind = "Qwen3_5ForConditionalGeneration"
    config = {"architectures": [kind], "vision_config": tower, "image_token_id": file.token("<|image_pad|>")}
    merge = file.vision.integer("spatial_merge_size", 2)
    fewest = _FEWEST_BLOCKS * (merge * tower["patch_size"]) ** 2
    sizes = {
        "shortest_edge": file.vision.integer("image_min_pixels", fewest),
        "longest_edge": file.vision.integer("image_max_pixels", 4096 * 4096),
    }
    return config, file.processor(patch_size=tower["patch_size"], merge_size=merge, size=sizes), {}


def _marked(file: Mmproj) -> list[int]:
    """The layers after which a row is made for a layer of the text."""
    marks = file.metadata.get("clip.vision.is_deepstack_layers")
    return [number for number, marked in enumerate(marks) if marked] if isinstance(marks, list) else []


def _check_deep(file: Mmproj, deep: int) -> None:
    """CheckpointError where rows are made for more layers than the text has."""
    layers = file.figures.integer("block_count", deep) if deep else 0
    if deep > layers:
        raise file.vision.wrong("is_deepstack_layers", f"{deep} marks", f"at most {layers}, as the text has layers")


def _gguf_names(file: Mmproj) -> dict[str, str]:
    layer = {
        "attn_qkv": "attn.qkv",
        "attn_out": "attn.proj",
        "ln1": "norm1",
        "ln2": "norm2",
        "ffn_up": "mlp.linear_fc1",
        "ffn_down": "mlp.linear_fc2",
    }
    names = {f"v.blk.{{n}}.{own}": f"visual.blocks.{{n}}.{name}" for own, name in layer.items()}
    for number, marked in enumerate(_marked(file)):
        front = f"visual.deepstack_merger_list.{number}"
        for own, name in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2")):
            names[f"v.deepstack.{marked}.{own}"] = f"{front}.{name}"
    return names | {
        "v.patch_embd": "visual.patch_embed.proj",
        "v.position_embd": "visual.pos_embed",
        "v.post_ln": "visual.merger.norm",
        "mm.0": "visual.merger.linear_fc1",
        "mm.2": "visual.merger.linear_fc2",
    }


FAMILY = FamilyFormat(_spec, Qwen3Vl, GgufTower(_gguf_config, _gguf_names))
