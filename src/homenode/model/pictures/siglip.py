"""Towers of SigLIP and CLIP: learned positions of a square of patches, LayerNorms with biases, an MLP without a gate.

Each tile is a sequence of its own. CLIP has a class token before the patches, and a norm before the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from homenode.compute.ops import FloatArray, KvCache, Ops, Tensor, Weight
from homenode.model.formats.fields import Fields
from homenode.model.pictures import pixels
from homenode.model.pictures.blocks import BlockForm, block, normed
from homenode.model.pictures.tower import Tower
from homenode.model.pictures.vision_config import activation_of, layers_of

_LARGEST = 1 << 16  # pixels
_LAYER = {
    "norm1": "layer_norm1",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "norm2": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
GGUF_NAMES = {
    "v.patch_embd": "vision_tower.embeddings.patch_embedding",
    "v.position_embd": "vision_tower.embeddings.position_embedding",
    "v.post_ln": "vision_tower.post_layernorm",
    "v.blk.{n}.ln1": "vision_tower.encoder.layers.{n}.layer_norm1",
    "v.blk.{n}.ln2": "vision_tower.encoder.layers.{n}.layer_norm2",
    "v.blk.{n}.attn_q": "vision_tower.encoder.layers.{n}.self_attn.q_proj",
    "v.blk.{n}.attn_k": "vision_tower.encoder.layers.{n}.self_attn.k_proj",
    "v.blk.{n}.attn_v": "vision_tower.encoder.layers.{n}.self_attn.v_proj",
    "v.blk.{n}.attn_out": "vision_tower.encoder.layers.{n}.self_attn.out_proj",
    "v.blk.{n}.ffn_up": "vision_tower.encoder.layers.{n}.mlp.fc1",
    "v.blk.{n}.ffn_down": "vision_tower.encoder.layers.{n}.mlp.fc2",
}
FRONTS = ("model.vision_tower.vision_model.", "model.vision_tower.", "vision_tower.vision_model.", "vision_tower.",
           "model.vision_model.", "vision_model.", "vpm.")  # fmt: skip
Places = Callable[[FloatArray, int, int], FloatArray]  # a table of positions for a tile of so many rows and columns


@dataclass(frozen=True)
class TakenLayers:
    """What is taken from a tower: after which of its layers, counted from 1, and whether through its last norm."""

    layers: Sequence[int]
    normed: bool


class SquareTower:
    """The figures of such a tower, and its programs."""

    def __init__(self, vision: Fields, *, clip: bool, usual_activation: str, of_any_size: bool = False) -> None:
        """`of_any_size`: SigLIP 2, whose patches are rows of a product, their values pixel by pixel."""
        self.clip, self._of_any_size = clip, of_any_size
        self.width, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12)
        eps = vision.number("layer_norm_eps", 1e-5 if clip else 1e-6)
        self.form = BlockForm(heads, self.width // heads, eps, activation=activation_of(vision, usual_activation))
        self.layers = layers_of(vision, 12)
        self.image, self.patch = side_of(vision, "image_size", 224), side_of(vision, "patch_size", 32 if clip else 16)
        self._table: FloatArray | None = None
        self._first: FloatArray | None = None
        self._taken = TakenLayers((self.layers,), normed=True)

    @property
    def side(self) -> int:
        """Patches of a side of a whole tile."""
        return self.image // self.patch

    def layer_number(self, layer: int) -> int:
        """The layer that a config means, -1 the last one, counted from 1; 0 is what goes into the first."""
        return layer if layer >= 0 else self.layers + 1 + layer

    def load(self, tower: Tower, taken: TakenLayers) -> None:
        """Make the programs up to the last layer that something is taken from."""
        tensors, self._taken = tower.tensors, taken
        front = tensors.front("embeddings.patch_embedding.weight", FRONTS)
        weight = self._patch_matrix(tower, f"{front}embeddings.patch_embedding.weight")
        bias = tensors.vector(f"{front}embeddings.patch_embedding.bias") if not self.clip else None
        self._table = tensors.array(f"{front}embeddings.position_embedding.weight")
        if self.clip:
            self._first = tensors.array(f"{front}embeddings.class_embedding").reshape(-1)
        ends = {"norm": tensors.layer(front, {"norm": "post_layernorm"})} if taken.normed else {}
        before = tensors.layer(front, {"norm": "pre_layrnorm"}) if self.clip else None
        layers = [tensors.layer(f"{front}encoder.layers.{n}.", _LAYER) for n in range(max(taken.layers))]
        columns = 3 * self.patch**2

        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            patches, places = ops.split(rows, (columns, self.width))
            x = ops.linear(patches, (weight,), (bias,), residual=places, precision="fine")
            return x if before is None else normed(ops, self.form, x, before, "norm")

        tower.add("patches", columns + self.width, forward)
        begin = 0
        for end in sorted(set(taken.layers)):
            tower.add(f"layers to {end}", self.width, self._run(layers[begin:end], ends if end == self.layers else {}))
            begin = end

    def _patch_matrix(self, tower: Tower, name: str) -> Weight:
        """The matrix that patches are multiplied by, their values channel by channel."""
        values = tower.tensors.array(name)
        if not self._of_any_size or values.ndim == 4:
            return tower.tensors.matrix(name)
        pixel_by_pixel = values.reshape(len(values), self.patch, self.patch, 3)
        return tower.tensors.of_array(pixel_by_pixel.transpose(0, 3, 1, 2).reshape(len(values), -1))

    def _run(self, layers: Sequence[dict[str, object]], ends: dict[str, dict[str, object]]) -> Callable[..., Tensor]:
        def forward(ops: Ops, rows: Tensor, cache: KvCache) -> Tensor:
            x = rows
            for layer in layers:
                x = block(ops, self.form, x, layer, cache)
            return normed(ops, self.form, x, ends["norm"], "norm") if ends else x

        return forward

    def hidden(self, tower: Tower, tiles: Sequence[FloatArray], places: Places | None = None) -> list[FloatArray]:
        """For each layer that something is taken from, the rows of all tiles one after the other, class tokens among
        them. `tiles`: [3, height, width], normalised. `places`: of tiles that are no whole squares.
        """
        x, lengths = self.placed(tower, tiles, places)
        made = {}
        for end in sorted(set(self._taken.layers)):
            x = made[end] = self.through(tower, end, x, lengths)
        return [made[layer] for layer in self._taken.layers]

    def placed(
        self, tower: Tower, tiles: Sequence[FloatArray], places: Places | None = None
    ) -> tuple[FloatArray, list[int]]:
        """The rows that go into the first layer, and how many each tile has."""
        rows, lengths = [], []
        for tile in tiles:
            patches = pixels.block_patches(tile, self.patch, 1)
            down, across = tile.shape[1] // self.patch, tile.shape[2] // self.patch
            assert self._table is not None
            if places is not None:
                table = places(self._table, down, across)
            else:
                table = self._table
            if self._first is not None:
                patches = np.concatenate([np.zeros((1, patches.shape[1]), np.float32), patches])
                table = table.copy()
                table[0] += self._first
            rows.append(np.concatenate([patches, table], axis=1))
            lengths.append(len(patches))
        return tower.run("patches", np.concatenate(rows), lengths), lengths

    def through(self, tower: Tower, end: int, rows: FloatArray, lengths: Sequence[int]) -> FloatArray:
        """Rows through the layers up to `end`, behind those of the layer before that something is taken from."""
        return tower.run(f"layers to {end}", rows, lengths)


def side_of(vision: Fields, key: str, usual: int) -> int:
    """A length that is a number, or two of them."""
    value = vision.value(key)
    if isinstance(value, list) and value and isinstance(value[0], int):
        if not 1 <= value[0] <= _LARGEST:
            raise vision.wrong(key, value, f"lengths from 1 to {_LARGEST}")
        return value[0]
    return vision.integer(key, usual)
