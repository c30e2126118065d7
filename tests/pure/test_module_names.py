"""Names of modules that classes have of their own, fields that they spell otherwise, and rows in another order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homenode.dtypes import BY_NAME
from homenode.errors import CheckpointError
from homenode.model.formats import coded_rows
from homenode.model.formats.fields import Fields
from homenode.model.formats.module_names import renamed_modules
from homenode.model.formats.tensor_parts import runs_of, transposed
from homenode.model.spec import TensorEntry

MODULES = {"wte": "model.embed_tokens", "h.{layer}.attn.c_proj": "model.layers.{layer}.self_attn.o_proj"}


def entry_of(name: str, path: Path, values: np.ndarray) -> TensorEntry:
    path.write_bytes(values.astype("<f4").tobytes())
    return TensorEntry(name, BY_NAME["F32"], values.shape, path, 0, values.nbytes)


def test_modules_are_renamed_with_or_without_their_front(tmp_path: Path) -> None:
    values = np.zeros((2, 2), np.float32)
    names = ("wte.weight", "transformer.h.12.attn.c_proj.bias", "h.0.attn.bias", "model.embed.weight")
    found = renamed_modules({name: entry_of(name, tmp_path / "x", values) for name in names}, MODULES)
    assert list(found) == [
        "model.embed_tokens.weight",
        "model.layers.12.self_attn.o_proj.bias",
        "h.0.attn.bias",
        "model.embed.weight",
    ]
    assert all(entry.name == name for name, entry in found.items())
    twice = {name: entry_of(name, tmp_path / "x", values) for name in ("wte.weight", "transformer.wte.weight")}
    with pytest.raises(CheckpointError, match=r"another one that is model\.embed_tokens\.weight"):
        renamed_modules(twice, MODULES)


def test_fields_of_another_spelling_are_named_as_the_file_has_them() -> None:
    fields = Fields(Path("config.json"), {"n_embd": 8, "n_head": "x", "hidden_size": 4}).respelled(
        {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    )
    assert fields.integer("hidden_size") == 8 and not fields.has("num_hidden_layers")
    with pytest.raises(CheckpointError, match="n_head"):
        fields.integer("num_attention_heads")


def test_rows_in_runs(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    whole = entry_of("x", tmp_path / "x", rows)
    part = runs_of(whole, "part", 2, 6, 2, 5)
    wanted = rows[[2, 3, 7, 8, 12, 13]]
    assert part.shape == (6, 3)
    assert np.array_equal(coded_rows.decoded(part, (0, 6), (0, 3)), wanted)
    assert np.array_equal(coded_rows.decoded(part, (1, 4), (1, 3)), wanted[1:4, 1:3])
    one = runs_of(whole, "one", 4, 3, 3, 5)  # a single run is rows beside each other
    assert one.coded is None and one.offset == 4 * 3 * 4 and one.nbytes == 3 * 3 * 4
    with pytest.raises(CheckpointError, match="as its rows are put in another order"):
        runs_of(transposed(whole, "y"), "y", 0, 2, 1, 2)
