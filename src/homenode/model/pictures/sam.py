"""The tower of SAM as DeepSeek-OCR has it: patches that see those of their window, in some layers all; scores get the
distance by rows and by columns besides; then convolutions that make one row of 16 patches.

What a query makes of a distance is added to its scores by further columns of its heads: one for each row and column of
the window, of which a key has one in its own row and column.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, ScoreRule, Tensor
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, inner, normed, product
from homenode.model.pictures.tower import Forward, Tower
from homenode.model.pictures.vision_config import activation_of, layers_of

FRONT = "model.sam_model."
PATCHES_OF_ROW = 4  # in each direction
_PUBLISHED = {"width": "hidden_size", "heads": "num_attention_heads", "layers": "num_hidden_layers"}
_GLOBAL = (2, 5, 8, 11)
_WINDOW = 14
_MOST_WINDOW = 64
_MOST_PATCHES = 256  # of a side of a picture
_NORM = BlockForm(1, 1)  # of norms
_LAYER = {"norm1": "norm1", "qkv": "attn.qkv", "o": "attn.proj", "norm2": "norm2", "up": "mlp.lin1", "down": "mlp.lin2"}
GGUF_NAMES = {
    "v.sam.pos_embd.weight": f"{FRONT}pos_embed",
    "v.sam.patch_embd": f"{FRONT}patch_embed.proj",
    "v.sam.net_2": f"{FRONT}net_2",
    "v.sam.net_3": f"{FRONT}net_3",
    **{f"v.sam.neck.{number}": f"{FRONT}neck.{number}" for number in range(4)},
    **{
        f"v.sam.blk.{{n}}.{own}": f"{FRONT}blocks.{{n}}.{name}"
        for own, name in {
            "pre_ln": "norm1",
            "post_ln": "norm2",
            "attn.qkv": "attn.qkv",
            "attn.out": "attn.proj",
            "attn.pos_h.weight": "attn.rel_pos_h",
            "attn.pos_w.weight": "attn.rel_pos_w",
            "mlp.lin1": "mlp.lin1",
            "mlp.lin2": "mlp.lin2",
        }.items()
    },
}


class _Distances(NamedTuple):
    """What queries of a layer are multiplied with for each distance by rows, and by columns; what a patch outside the
    picture has for query, key and value.
    """

    rows: FloatArray
    columns: FloatArray
    outside: FloatArray


class SamTower:
    """The figures of such a tower, and its programs. `vision`: as config.json has it, in the words of its maker or of
    transformers.
    """

    def __init__(self, vision: Fields) -> None:
        published = vision.table("width") if vision.value("sam_config") is None else None
        found = vision.table("sam_config") if published is None else published.table("sam_vit_b")
        sam = (found or Fields(vision.path, {})).respelled(_PUBLISHED)
        self.width, heads = sam.integer("hidden_size", 768), sam.integer("num_attention_heads", 12)
        if self.width % heads:
            raise sam.wrong("hidden_size", self.width, f"a multiple of its {heads} heads")
        eps, activation = sam.number("layer_norm_eps", 1e-6), activation_of(sam, "gelu")
        self.form = BlockForm(heads, self.width // heads, eps, activation=activation)
        self.layers = layers_of(sam, 12)
        self.window = sam.integer("window_size", _WINDOW, maximum=_MOST_WINDOW)
        said = sam.has("global_attn_indexes")
        self.sees_all = frozenset(sam.integers("global_attn_indexes") if said else _GLOBAL)
        self.patch = sam.integer("patch_size", 16, maximum=limits.MOST_HIDDEN)
        self._table: FloatArray | None = None
        self._distances: list[_Distances] = []

    def check_side(self, side: int) -> None:
        """UnsupportedError for a side of a picture that makes no patch, or more than memory is there for."""
        if not 1 <= side // self.patch <= _MOST_PATCHES:
            text = f"images of {side} pixels a side in patches of {self.patch} are not supported"
            raise UnsupportedError(f"{text}; 1 to {_MOST_PATCHES} patches a side are")

    def side_rows(self, side: int) -> int:
        """The rows of a side of a square picture, and as many columns."""
        return math.ceil(side // self.patch / PATCHES_OF_ROW)

    def load(self, tower: Tower) -> None:
        """Make the programs."""
        tensors, form = tower.tensors, self.form
        first = tensors.layer(FRONT, {"patch": "patch_embed.proj"})
        table = tensors.array(f"{FRONT}pos_embed")
        side = math.isqrt(table.size // self.width)
        self._table = table.reshape(side, side, self.width)
        columns = 3 * self.patch**2

        def placed(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            patches, places = ops.split(rows, (columns, self.width))
            return product(ops, patches, first, "patch", residual=places)

        tower.add("sam patches", columns + self.width, placed, attends=False)
        for number in range(self.layers):
            self._load_layer(tower, number)
        neck = tensors.layer(FRONT, {"first": "neck.0", "norm1": "neck.1", "second": "neck.2", "norm2": "neck.3"})
        neck |= tensors.layer(FRONT, {"third": "net_2", "fourth": "net_3"})
        counts = [len(tensors.array(f"{FRONT}{name}.weight")) for name in ("neck.0", "neck.2", "net_2")]
        taps = [9 * count for count in counts]

        def convolved(key: str, norm: str = "") -> Forward:
            def forward(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
                made = product(ops, rows, neck, key)
                return normed(ops, _NORM, made, neck, norm) if norm else made

            return forward

        tower.add("sam neck 1", self.width, convolved("first", "norm1"), attends=False)
        tower.add("sam neck 2", taps[0], convolved("second", "norm2"), attends=False)
        tower.add("sam smaller 1", taps[1], convolved("third"), attends=False)
        tower.add("sam smaller 2", taps[2], convolved("fourth"), attends=False)
        heads = (form.heads, form.head_dim + 2 * self.window)
        tower.add("sam windows", 3 * heads[0] * heads[1], _seen(heads[0] * heads[1]), heads=heads)

    def _load_layer(self, tower: Tower, number: int) -> None:
        tensors, form, front = tower.tensors, self.form, f"{FRONT}blocks.{number}."
        layer = tensors.layer(front, _LAYER)
        tables = (tensors.array(f"{front}attn.{name}") for name in ("rel_pos_h", "rel_pos_w"))
        down, across = (table.reshape(-1, form.head_dim) for table in tables)
        bias = f"{front}attn.qkv.bias"
        outside = tensors.array(bias).reshape(-1) if bias in tensors else np.zeros(3 * self.width, np.float32)
        self._distances.append(_Distances(down, across, outside))

        def asked(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            return product(ops, normed(ops, form, rows, layer, "norm1"), layer, "qkv")

        def answered(ops: Ops, rows: Tensor, _cache: KvCache) -> Tensor:
            seen, x = ops.split(rows, (self.width, self.width))
            x = product(ops, seen, layer, "o", residual=x)
            return product(ops, inner(ops, form, normed(ops, form, x, layer, "norm2"), layer), layer, "down", x)

        tower.add(f"sam asks {number}", self.width, asked, attends=False)
        tower.add(f"sam answers {number}", 2 * self.width, answered, attends=False)

    def load_side(self, tower: Tower, side: int) -> None:
        """Make the programs for square pictures of this side."""
        patches = side // self.patch
        heads = (self.form.heads, self.form.head_dim + 2 * patches)
        tower.add(_whole(patches), 3 * heads[0] * heads[1], _seen(heads[0] * heads[1]), heads=heads)

    def rows(self, tower: Tower, picture: FloatArray) -> FloatArray:
        """The rows [down, across, columns] of a square picture [3, height, width], normalised."""
        patches = pixels.block_patches(picture, self.patch, 1)
        side = picture.shape[1] // self.patch
        assert self._table is not None
        places = pixels.cubic_table(self._table, side, side).reshape(len(patches), -1)
        x = tower.run("sam patches", np.concatenate([patches, places], axis=1), [len(patches)])
        for number, distances in enumerate(self._distances):
            qkv = tower.run(f"sam asks {number}", x, [len(x)]).reshape(side, side, -1)
            window = side if number in self.sees_all else self.window
            seen = self._attention(tower, qkv, distances, window)
            x = tower.run(f"sam answers {number}", np.concatenate([seen, x], axis=1), [len(x)])
        x = tower.run("sam neck 1", x, [len(x)]).reshape(side, side, -1)
        for name, step in (("sam neck 2", 1), ("sam smaller 1", 2), ("sam smaller 2", 2)):
            taps, (high, wide) = _taps(x, step)
            x = tower.run(name, taps, [len(taps)]).reshape(high, wide, -1)
        return x

    def _attention(self, tower: Tower, qkv: FloatArray, distances: _Distances, window: int) -> FloatArray:
        """Return what each patch sees of its window: [patches, width]."""
        side, form = len(qkv), self.form
        count = -(-side // window)
        whole = count * window
        padded = np.broadcast_to(distances.outside, (whole, whole, qkv.shape[2])).copy()
        padded[:side, :side] = qkv
        cut = padded.reshape(count, window, count, window, 3, form.heads, form.head_dim).swapaxes(1, 2)
        rows = self._with_distances(cut.reshape(-1, window, window, 3, form.heads, form.head_dim), distances)
        lengths = [window * window] * (count * count)
        seen = tower.run(_whole(side) if window == side else "sam windows", rows, lengths)
        wide = form.head_dim + 2 * window
        found = seen.reshape(count, count, window, window, form.heads, wide)[..., : form.head_dim]
        back = found.swapaxes(1, 2).reshape(whole, whole, self.width)[:side, :side]
        return np.ascontiguousarray(back).reshape(side * side, self.width)

    def _with_distances(self, cut: FloatArray, distances: _Distances) -> FloatArray:
        """Queries, keys and values [windows, rows, columns, 3, heads, width] with the columns for rows and columns of
        the window: [patches, columns].
        """
        windows, side, _, _, heads, wide = cut.shape
        longer = np.zeros((windows, side, side, 3, heads, wide + 2 * side), np.float32)
        longer[..., :wide] = cut
        longer[..., 0, :, :wide] *= np.float32(wide**-0.5)
        query = cut[..., 0, :, :]
        down = _by_distance(query, distances.rows)
        across = _by_distance(query.swapaxes(1, 2), distances.columns).swapaxes(1, 2)
        longer[..., 0, :, wide : wide + side], longer[..., 0, :, wide + side :] = down, across
        for number in range(side):
            longer[:, number, :, 1, :, wide + number] = 1
            longer[:, :, number, 1, :, wide + side + number] = 1
        return longer.reshape(windows * side * side, -1)


def _whole(patches: int) -> str:
    return f"sam of {patches}"


def _seen(columns: int) -> Forward:
    def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
        q, k, v = ops.split(rows, (columns,) * 3)
        return ops.attention(q, k, v, cache, 0, ScoreRule(1.0, mask="all"))

    return forward


def _by_distance(query: FloatArray, table: FloatArray) -> FloatArray:
    """The products of queries [windows, lines, others, heads, width] with the row of `table` for the distance of their
    line to each line of the window: [windows, lines, others, heads, lines].
    """
    windows, side, others, heads, wide = query.shape
    scaled = pixels.read_between(table[:, None], 2 * side - 1, 1)[:, 0]
    if scaled.shape[1] != wide:
        raise CheckpointError(f"distances of {scaled.shape[1]} columns for heads of {wide}")
    lines = np.arange(side)
    of_lines = scaled[lines[:, None] - lines + side - 1]  # [lines, lines, width]
    flat = query.reshape(windows, side, others * heads, wide)
    found: FloatArray = np.matmul(flat, of_lines.swapaxes(1, 2)).reshape(windows, side, others, heads, side)
    return found


def _taps(x: FloatArray, step: int) -> tuple[FloatArray, tuple[int, int]]:
    """What a convolution of 3 x 3 is given at each place [height, width, columns], with zeros outside: a row for each
    place, and how many these are down and across.
    """
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    cut = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))[::step, ::step]
    return np.ascontiguousarray(cut).reshape(cut.shape[0] * cut.shape[1], -1), (cut.shape[0], cut.shape[1])
