"""Towers whose files hold blocks: their matrices are kept as they are, and multiplied as those of a text model are,
with
activations of eight bits. Rows are near those of the same values as floats, and the same whatever else is encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from homenode.compute.ops import FloatArray
from homenode.dtypes import BY_NAME
from homenode.engine.encoder.picture_tower import tower_tensors
from homenode.model.pictures import pixels
from homenode.model.pictures.gguf_files import read_gguf_pictures
from homenode.model.pictures.registry import family_named
from homenode.model.pictures.tower import Tower
from tests.model.test_mmproj import text_file, write
from tests.model.test_picture_towers import pictures

NAMES = ("Qwen3VLForConditionalGeneration", "SmolVLMForConditionalGeneration", "Gemma3ForConditionalGeneration",
         "Mistral3ForConditionalGeneration")  # fmt: skip
Q8_0 = gguf.GGMLQuantizationType.Q8_0
# Of the largest value: what eight bits of activations leave of it through the toys' two or three layers
NEAR, EXACT = 0.03, 1e-4


def has_blocks(tensor: str, values: FloatArray) -> bool:
    """As converters have it."""
    return values.ndim == 2 and values.shape[1] % 32 == 0 and "embd" not in tensor and "input_projection" not in tensor


def as_blocks(writer: gguf.GGUFWriter, tensor: str, values: FloatArray) -> None:
    if has_blocks(tensor, values):
        writer.add_tensor(tensor, gguf.quants.quantize(values, Q8_0), raw_dtype=Q8_0)
    else:
        writer.add_tensor(tensor, values)


def as_floats(writer: gguf.GGUFWriter, tensor: str, values: FloatArray) -> None:
    """The values of the blocks."""
    if has_blocks(tensor, values):
        values = gguf.quants.dequantize(gguf.quants.quantize(values, Q8_0), Q8_0)
    writer.add_tensor(tensor, values)


def tower_of(folder: Path, name: str, add: Callable[..., None], storage: str | None = None) -> tuple[Any, Tower]:
    backend = pytest.importorskip("homenode.compute.native").NativeBackend([-1])
    file = write(folder, name, add)
    model = text_file(folder, name)
    family, config = read_gguf_pictures(file, model)
    made = family_named(family).make(config)
    tower = Tower(backend, tower_tensors(backend, config, model, storage), made.form.heads, made.form.head_dim)
    made.load(tower)
    return made, tower


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_blocks_are_near_those_of_their_values(tmp_path: Path, name: str) -> None:
    made, blocks = tower_of(tmp_path / "blocks", name, as_blocks)
    _, floats = tower_of(tmp_path / "floats", name, as_floats)
    for picture in pictures():
        prepared = made.prepare(picture, True)
        found, wanted = made.encode(blocks, prepared).rows, made.encode(floats, prepared).rows
        apart = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert EXACT < apart < NEAR  # nearer: its activations were floats


@pytest.mark.parametrize("storage", [None, "F32", "BF16"])
def test_blocks_are_kept_whatever_floats_are_kept_as(tmp_path: Path, storage: str | None) -> None:
    name = "SmolVLMForConditionalGeneration"
    _, tower = tower_of(tmp_path / "blocks", name, as_blocks, storage)
    tensors = tower.tensors
    blocks = [each.name for each in tensors.used if each.dtype.name == "Q8_0"]
    assert len(blocks) >= 10
    assert {tensors.matrix(each).format for each in blocks} == {BY_NAME["Q8_0"].gguf_id}


def test_a_tile_has_the_same_rows_beside_others(tmp_path: Path) -> None:
    made, tower = tower_of(tmp_path / "blocks", "SmolVLMForConditionalGeneration", as_blocks)
    prepared = made.prepare(next(pictures()), True)
    tiles = [made.normalisation.of(tile) for tile in prepared.tiles]
    assert len(tiles) > 2
    (together,) = made.tower.hidden(tower, tiles, pixels.nearest_table)
    apart = np.concatenate([made.tower.hidden(tower, [tile], pixels.nearest_table)[0] for tile in tiles])
    assert np.array_equal(together, apart)
