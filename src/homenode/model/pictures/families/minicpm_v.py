"""MiniCPM-V 2.6, 4.0 and 4.5: a picture in slices, each of its own size; SigLIP, and learned queries that look at its
rows, so that every slice is as many rows of the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, normed, product
from homenode.model.pictures.family import FamilyFormat, Names, PictureConfig, PictureLayout, PictureRows
from homenode.model.pictures.mmproj import GgufTower, Mmproj
from homenode.model.pictures.siglip import FRONTS, GGUF_NAMES, SquareTower, TakenLayers
from homenode.model.pictures.slices import SlicedPictures
from homenode.model.pictures.tower import Tower, TowerTensors
from homenode.model.pictures.vision_config import text_of, vision_of
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

    from homenode.model.pictures.family import PreparedPicture

PLACE = "<unk>"  # the token that stands for a row, which config.json does not name
_VERSIONS = ("2.6", "4.0", "4.5")
_OF_FILES = {3: "2.6", 5: "4.0", 6: "4.5"}  # `clip.minicpmv_version`
_FRONT, _HEAD = "resampler.", 128
_FORM = BlockForm(1, 1)  # of norms
_THETA = 10000.0


class MiniCpmV:
    """See `PictureFamily`. Marks of slices are tokens by their names."""

    marker_token: int | str | None = ""  # its templates are given texts alone

    def __init__(self, config: PictureConfig) -> None:
        fields, processor = config.config, config.processor
        version = str(fields.value("version"))
        if version not in _VERSIONS and f"{version}.0" not in _VERSIONS:
            known = ", ".join(_VERSIONS)
            raise UnsupportedError(f"images of MiniCPM-V {version} are not supported; homenode runs those of {known}")
        tokens = config.whole.get("tokens")
        self.placeholder = int(tokens.get(PLACE, 0)) if isinstance(tokens, dict) else 0
        self.tower = SquareTower(vision_of(config), clip=False, usual_activation="gelu_pytorch_tanh")
        self.form = self.tower.form
        self._last = self.tower.layers - fields.boolean("drop_vision_last_layer", False)
        self._queries, self._width = fields.integer("query_num", 64), text_of(config).integer("hidden_size")
        if self._width % _HEAD:
            raise fields.wrong("hidden_size", self._width, f"a multiple of {_HEAD}")
        self._slices = SlicedPictures(processor, int(processor.get("patch_size") or self.tower.patch))
        said = {"image_mean": processor.get("norm_mean"), "image_std": processor.get("norm_std")}
        self.normalisation = pixels.Normalisation.read({**said, **processor}, pixels.HALF)
        self._query: FloatArray | None = None

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """See `PictureFamily`."""
        return self._slices.prepare(picture, alone)

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """See `PictureFamily`."""
        rows = names(self.placeholder) * self._queries
        return self._slices.text(layout, lambda _: rows, number)

    def load(self, tower: Tower) -> None:
        """See `PictureFamily`."""
        tensors = tower.tensors
        self.tower.load(tower, TakenLayers((self._last,), normed=False))
        front = tensors.front("embeddings.patch_embedding.weight", FRONTS)
        ends = tensors.layer(front, {"norm": "post_layernorm"})
        first = tensors.layer(_FRONT, {"kv": "kv_proj", "norm": "ln_kv"})
        parts = self._attention(tensors)

        def placed(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return normed(
                ops, _FORM, product(ops, normed(ops, self.form, rows, ends, "norm"), first, "kv"), first, "norm"
            )

        def keys(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            x, places = ops.split(rows, (self._width, self._width))
            return product(ops, ops.add(x, places), parts, "k")

        tower.add("placed", self.tower.width, placed, attends=False)
        tower.add("keys", 2 * self._width, keys, attends=False)
        tower.add("values", self._width, lambda ops, rows, _: product(ops, rows, parts, "v"), attends=False)
        last = tensors.layer(_FRONT, {"o": "attn.out_proj", "norm": "ln_post"})
        last["proj"] = tensors.of_array(self._projection(tensors))
        tower.add(
            "resampled",
            self._width,
            lambda ops, rows, _: product(
                ops, normed(ops, _FORM, product(ops, rows, last, "o"), last, "norm"), last, "proj"
            ),
            attends=False,
        )

    def _attention(self, tensors: TowerTensors) -> dict[str, Any]:
        """The matrices of keys and values. What the queries are is the same for all pictures."""
        names = [f"{_FRONT}attn.{part}" for part in ("in_proj_weight", "in_proj_bias")]
        if names[0] in tensors:
            matrices, biases = (np.split(tensors.array(name), 3) for name in names)
        else:
            matrices, biases = (
                [tensors.array(f"{_FRONT}attn.{key}.{end}") for key in "qkv"] for end in ("weight", "bias")
            )
        query = tensors.array(f"{_FRONT}query").reshape(self._queries, self._width)
        query = query - query.mean(axis=1, keepdims=True)
        query /= np.sqrt((query * query).mean(axis=1, keepdims=True) + np.float32(_FORM.eps))
        query = query * tensors.array(f"{_FRONT}ln_q.weight") + tensors.array(f"{_FRONT}ln_q.bias")
        query = (query @ matrices[0].T + biases[0]) * np.float32(_HEAD**-0.5)
        self._query = query.reshape(self._queries, -1, _HEAD).transpose(1, 0, 2)
        found: dict[str, Any] = {}
        for number, key in enumerate("kv", 1):
            found[key] = tensors.of_array(matrices[number])
            found[f"{key}_bias"] = tensors.constant(biases[number])
        return found

    def _projection(self, tensors: TowerTensors) -> FloatArray:
        """The matrix behind the queries, which folders keep with its rows for columns."""
        if f"{_FRONT}proj" in tensors:
            return np.ascontiguousarray(tensors.array(f"{_FRONT}proj").T)
        return tensors.array(f"{_FRONT}proj.weight")

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """See `PictureFamily`."""
        tiles = [self.normalisation.of(tile) for tile in picture.tiles]
        x, lengths = self.tower.placed(tower, tiles, pixels.nearest_table_of_quotients)
        x = tower.run("placed", self.tower.through(tower, self._last, x, lengths), [len(x)])
        places = [self._places(tile.shape[1] // self.tower.patch, tile.shape[2] // self.tower.patch) for tile in tiles]
        keys = tower.run("keys", np.concatenate([x, np.concatenate(places)], axis=1), [len(x)])
        values = tower.run("values", x, [len(x)])
        ends = np.cumsum(lengths)[:-1]
        seen = [self._seen(*pair) for pair in zip(np.split(keys, ends), np.split(values, ends), strict=True)]
        rows = np.concatenate(seen)
        return PictureRows(tower.run("resampled", rows, [len(rows)]))

    def _seen(self, keys: FloatArray, values: FloatArray) -> FloatArray:
        """Return what the queries see of the rows of a slice."""
        assert self._query is not None
        k, v = (each.reshape(len(each), -1, _HEAD).transpose(1, 0, 2) for each in (keys, values))
        scores = self._query @ k.swapaxes(1, 2)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return np.ascontiguousarray((shares @ v).transpose(1, 0, 2)).reshape(self._queries, -1)

    def _places(self, down: int, across: int) -> FloatArray:
        """Sines and cosines of the column, then of the row, of each patch: [down * across, width]."""
        count = self._width // 4
        steps = 1 / _THETA ** (np.arange(count, dtype=np.float32) / np.float32(count))
        parts = (np.arange(length, dtype=np.float32)[:, None] * steps for length in (across, down))
        columns, rows = (np.concatenate([np.sin(angles), np.cos(angles)], axis=1) for angles in parts)
        wide = np.broadcast_to(columns[None], (down, across, 2 * count))
        high = np.broadcast_to(rows[:, None], (down, across, 2 * count))
        return np.concatenate([wide, high], axis=2).reshape(down * across, -1).astype(np.float32)


def _spec(_config: PictureConfig) -> PictureSpec:
    return PictureSpec("minicpm_v")


def _gguf_config(file: Mmproj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    version = file.metadata.get("clip.minicpmv_version")
    queries = file.metadata.get("clip.minicpmv_query_num")
    config = {
        "architectures": ["MiniCPMV"],
        "version": _OF_FILES.get(version, f"of the kind {version}") if isinstance(version, int) else "2.5",
        "vision_config": file.tower() | {"hidden_act": "gelu_pytorch_tanh"},
        "text_config": {"hidden_size": file.figures.integer("embedding_length")},
        "query_num": queries if isinstance(queries, int) else 64,
    }
    return config, file.processor(), {"tokens": {PLACE: file.token(PLACE)}}


_GGUF_NAMES = GGUF_NAMES | {"resampler.kv": "resampler.kv_proj", "resampler.attn.out": "resampler.attn.out_proj"}
_GGUF_NAMES |= {name: name for name in ("resampler.query", "resampler.proj", "resampler.ln_q", "resampler.ln_kv")}
_GGUF_NAMES |= {name: name for name in ("resampler.ln_post", *(f"resampler.attn.{key}" for key in "qkv"))}
FAMILY = FamilyFormat(_spec, MiniCpmV, GgufTower(_gguf_config, lambda _: _GGUF_NAMES))
