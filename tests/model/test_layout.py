"""The layout of weights: decided before a byte moves, printable, and what loading then does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend
from homenode.compute.reference.formats import DECODABLE
from homenode.dtypes import BY_NAME
from homenode.errors import UserError
from homenode.model.weights.layout import READ_BY_BACKENDS
from homenode.model.weights.load import load_model, plan_model
from tests.model.driver import Driver
from tests.model.toys import ArrayCheckpoint, array_checkpoint, toy_arrays, toy_spec

PROMPT = [5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61]


@pytest.fixture
def checkpoint(tmp_path: Path) -> ArrayCheckpoint:
    spec = toy_spec()
    return array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))


def needs_format(backend: Backend, name: str) -> None:
    if name not in backend.weight_types():
        pytest.skip(f"{backend.name} keeps no matrices as {name}")


def test_planning_reads_no_weights(checkpoint: ArrayCheckpoint, backend: Backend) -> None:
    needs_format(backend, "Q4_0")
    checkpoint.path.unlink()
    layout = plan_model(checkpoint, backend, quantize="q4_0")
    kept = {m.name: m.target for m in layout.matrices}
    assert kept.pop("model.embed_tokens.weight") == kept.pop("lm_head.weight") == "Q8_0"
    assert set(kept.values()) == {"Q4_0"} and len(kept) == 2 * 7


def test_sizes(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    layout = plan_model(checkpoint, reference, quantize="q8_0")
    elements = sum(m.rows * m.columns for m in layout.matrices)
    assert layout.source_bytes == 4 * elements
    assert layout.vector_bytes == 4 * 64 * 5
    assert layout.target_bytes == elements // 32 * 34 + layout.vector_bytes  # every width is a multiple of 32


def test_rows_are_filled_up_to_whole_blocks(tmp_path: Path, reference: Backend) -> None:
    spec = toy_spec(intermediate_size=100)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    layout = plan_model(checkpoint, reference, quantize="q8_0")
    down = next(m for m in layout.matrices if m.name.endswith("layers.0.mlp.down_proj.weight"))
    assert (down.columns, down.target_bytes) == (100, 64 * 4 * 34)


def test_json_and_table_say_the_same(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    layout = plan_model(checkpoint, reference, quantize="q4_0")
    plain = json.loads(json.dumps(layout.to_json()))
    assert plain["target_bytes"] == layout.target_bytes
    assert [m["target"] for m in plain["matrices"]] == [m.target for m in layout.matrices]
    lines = layout.table().splitlines()
    assert lines[0].split() == ["matrix", "count", "shape", "stored", "kept", "size", "why"]
    assert len(lines) == 1 + 2 + 7 + 1, "the layers' matrices of one kind share a line"
    assert lines[3].split()[:5] == ["model.layers.*.self_attn.q_proj.weight", "2", "96x64", "F32", "Q4_0"]
    assert layout.notes == (
        "2 matrices F32 -> Q8_0: quantised at load; embedding and output keep 8 bits, as every token depends on them",
        "14 matrices F32 -> Q4_0: quantised at load (--quantize q4_0)",
    )


@pytest.mark.parametrize(
    ("dtype", "kept", "bound"), [("float32", "F32", 0.0), ("float16", "F16", 2e-3), ("bfloat16", "BF16", 1e-2)]
)
def test_dtype(checkpoint: ArrayCheckpoint, backend: Backend, dtype: str, kept: str, bound: float) -> None:
    """Bounds are shares of the spread of the log-probabilities."""
    needs_format(backend, kept)
    exact = load_model(checkpoint, backend)
    model = load_model(checkpoint, backend, dtype=dtype)
    assert {m.target for m in model.layout.matrices} == {kept}
    assert model.kv_geometry(64).dtype == ("f32" if dtype == "float32" else "bf16")
    wanted, found = (Driver(m, backend, kv_dtype="f32").prefill(PROMPT)[1] for m in (exact, model))
    assert np.abs(found - wanted).max() <= bound * np.ptp(wanted)


@pytest.mark.parametrize(("quantize", "bound"), [("q8_0", 0.05), ("q4_0", 0.4)])
def test_quantised_models_stay_near(checkpoint: ArrayCheckpoint, backend: Backend, quantize: str, bound: float) -> None:
    """Mean difference of log-probabilities as a share of their standard deviation: measured 0.03 and 0.29. Random
    matrices lose most.
    """
    needs_format(backend, quantize.upper())
    exact, model = load_model(checkpoint, backend), load_model(checkpoint, backend, quantize=quantize)
    wanted, found = (Driver(m, backend, kv_dtype="f32").prefill(PROMPT)[1] for m in (exact, model))
    assert 0 < np.abs(found - wanted).mean() < bound * wanted.std()


@pytest.mark.parametrize("setting", [{"quantize": "q8_0"}, {"dtype": "float32"}])
def test_a_setting_for_float_matrices_says_which_it_does_nothing_to(
    checkpoint: ArrayCheckpoint, reference: Backend, setting: dict[str, str]
) -> None:
    flag = "--quantize q8_0" if "quantize" in setting else "--dtype float32"

    def told() -> str:
        return " ".join(
            note
            for note in plan_model(checkpoint, reference, **setting).notes
            if flag + " is" in note or "nothing" in note
        )  # type: ignore[arg-type]

    assert told() == ""
    matrices = {name: entry.shape for name, entry in checkpoint.tensors.items() if len(entry.shape) == 2}
    checkpoint.add(first := "model.layers.0.mlp.up_proj.weight", bytes(96 * 2 * 18), BY_NAME["Q4_0"], (96, 64))
    assert told() == (
        f"{flag} is for float matrices: 1 of {len(matrices)} are quantised in the file (Q4_0) and are kept so"
    )
    for name, (rows, columns) in matrices.items():
        if name != first:
            checkpoint.add(name, bytes(rows * columns // 32 * 34), BY_NAME["Q8_0"], (rows, columns))
    assert told() == (
        f"{flag} changes nothing: it is for float matrices, and all {len(matrices)} are quantised in the file "
        f"(Q4_0, Q8_0)"
    )
    assert not any(flag in note for note in plan_model(checkpoint, reference).notes)


def test_block_formats_are_not_quantised_again(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    checkpoint.add(name, bytes(96 * 2 * 34), BY_NAME["Q8_0"], (96, 64))
    layout = plan_model(checkpoint, reference, quantize="q4_0")
    assert next(m for m in layout.matrices if m.name == name).target == "Q8_0"


def test_kv_dtype_is_refused_by_name(checkpoint: ArrayCheckpoint, reference: Backend) -> None:
    with pytest.raises(UserError, match="--kv-cache-dtype fp8 is unknown; choose one of auto, f32, bf16, int8"):
        load_model(checkpoint, reference).kv_geometry(64, "fp8")


def test_kernels_are_for_formats_the_loader_leaves_to_backends(backend: Backend) -> None:
    assert backend.weight_types() <= READ_BY_BACKENDS == DECODABLE
