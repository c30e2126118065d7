"""Every storage format comes out of a file with the values it stands for; those without a kernel are converted, saying
so.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.dtypes import BY_NAME, DType
from homenode.model.architectures.rope import rope_of
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.fallback_decode import decode_rows
from homenode.model.weights.load import load_model
from tests.checkpoints import TOYS, interleave_heads, make_folder, make_gguf
from tests.model.driver import Driver, rounds_activations
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

PROMPT = [5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61]
DOWN = "model.layers.1.mlp.down_proj.weight"
HALF = struct.pack("<e", 0.01)
BF16_ACTIVATIONS = 3e-3  # activations of one matrix rounded to 8 significant bits; measured up to 1.2e-3
# Where a block keeps its scales, and sane values for them: all other bytes of a block may be anything.
SCALES = {
    "F16": {}, "BF16": {}, "F32": {}, "F64": {}, "I8": {}, "I16": {}, "I32": {}, "F8_E4M3": {}, "F8_E5M2": {},
    "F8_E8M0": {},
    "Q1_0": {0: HALF}, "Q2_0": {0: HALF}, "Q4_0": {0: HALF}, "Q4_1": {0: HALF * 2}, "Q5_0": {0: HALF},
    "Q5_1": {0: HALF * 2},
    "Q8_0": {0: HALF}, "Q8_1": {0: HALF * 2},
    "Q2_K": {80: HALF * 2}, "Q3_K": {108: HALF}, "Q4_K": {0: HALF * 2}, "Q5_K": {0: HALF * 2}, "Q6_K": {208: HALF},
    "Q8_K": {0: struct.pack("<f", 0.01)}, "IQ2_XXS": {0: HALF}, "IQ2_XS": {0: HALF}, "IQ2_S": {0: HALF},
    "IQ3_XXS": {0: HALF},
    "IQ3_S": {0: HALF}, "IQ1_S": {0: HALF}, "IQ1_M": {49: b"\x0f", 51: b"\x0f", 53: b"\x4f", 55: b"\x2f"},
    "IQ4_NL": {0: HALF},
    "IQ4_XS": {0: HALF}, "TQ1_0": {52: HALF}, "TQ2_0": {64: HALF}, "MXFP4": {0: bytes([122])},
    "NVFP4": {0: bytes([40, 41, 42, 43])},
}  # fmt: skip


class FewKernels(ReferenceBackend):
    """A backend that only computes with these formats."""

    def __init__(self, *types: str) -> None:
        super().__init__()
        self._types = frozenset(types)

    def weight_types(self) -> frozenset[str]:
        return self._types


def random_rows(dtype: DType, rows: int, columns: int) -> bytes:
    """Valid bytes of a matrix: random, but for scales, and small where every number is one of its own."""
    random = np.random.default_rng(3)
    values = random.standard_normal((rows, columns))
    match dtype.name:
        case "F32" | "F64" | "F16":
            return values.astype({"F32": "<f4", "F64": "<f8", "F16": "<f2"}[dtype.name]).tobytes()
        case "BF16":
            return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        case "I8" | "I16" | "I32":
            return random.integers(-100, 100, values.shape).astype(f"<i{dtype.bytes}").tobytes()
        case "F8_E4M3" | "F8_E5M2":
            return (
                (random.integers(0, 64, values.shape) | random.integers(0, 2, values.shape) << 7)
                .astype(np.uint8)
                .tobytes()
            )
        case "F8_E8M0":
            return random.integers(119, 124, values.shape, np.uint8).tobytes()
    blocks = random.integers(0, 256, (rows * columns // dtype.block, dtype.bytes), np.uint8)
    for offset, value in SCALES[dtype.name].items():
        blocks[:, offset : offset + len(value)] = np.frombuffer(value, np.uint8)
    return blocks.tobytes()


def logprobs(backend: Backend, path: Path, dtype: DType, stored: bytes) -> tuple[FloatArray, str]:
    """Log-probabilities of a toy model whose DOWN is stored like this, and the format it was kept in."""
    spec = toy_spec(intermediate_size=256)
    arrays = toy_arrays(spec)
    checkpoint = array_checkpoint(path, spec, arrays)
    checkpoint.add(DOWN, stored, dtype, arrays[DOWN].shape)
    model = load_model(checkpoint, backend)
    kept = next(m.target for m in model.layout.matrices if m.name == DOWN)
    return Driver(model, backend, kv_dtype="f32").prefill(PROMPT)[1], kept


@pytest.mark.parametrize("name", ["Q4_K", "NVFP4", "F16", "IQ3_XXS"])
def test_a_scale_beside_a_matrix(tmp_path: Path, backend: Backend, name: str) -> None:
    """As GGUF files have it for what was NVFP4: every value is multiplied with it."""
    dtype = BY_NAME[name]
    stored = random_rows(dtype, 64, 256)
    spec = toy_spec(intermediate_size=256)
    arrays = toy_arrays(spec)
    checkpoint = array_checkpoint(tmp_path / "scaled", spec, arrays)
    checkpoint.add(DOWN, stored, dtype, arrays[DOWN].shape)
    checkpoint.tensors[DOWN] = replace(checkpoint.tensors[DOWN], times=0.25)
    model = load_model(checkpoint, backend)
    (kept,) = (m for m in model.layout.matrices if m.name == DOWN)
    assert kept.target != "Q4_K" and (name == "F16" or "scale beside it" in kept.reason)
    decoded = decode_rows(stored, dtype, (64, 256)) * np.float32(0.25)
    wanted, _ = logprobs(ReferenceBackend(), tmp_path / "decoded", BY_NAME["F32"], decoded.tobytes())
    found = Driver(model, backend, kv_dtype="f32").prefill(PROMPT)[1]
    assert np.abs(found - wanted).max() <= 0.03 * (wanted.max() - wanted.min())


@pytest.mark.parametrize("name", list(SCALES))
def test_every_format(tmp_path: Path, backend: Backend, name: str) -> None:
    """Against the same model with the decoded values in float32. Kernels may round activations (to eight bits for
    blocks), and conversions round.
    """
    stored = random_rows(BY_NAME[name], 64, 256)
    decoded = decode_rows(stored, BY_NAME[name], (64, 256))
    assert np.isfinite(decoded).all() and decoded.std() > 0
    found, kept = logprobs(backend, tmp_path / "stored", BY_NAME[name], stored)
    wanted, _ = logprobs(ReferenceBackend(), tmp_path / "decoded", BY_NAME["F32"], decoded.tobytes())
    assert kept in backend.weight_types()
    if backend.name == "reference" and kept == name:
        assert np.array_equal(found, wanted)
    else:
        bound = (
            BF16_ACTIVATIONS
            if kept == "BF16" and rounds_activations(backend)
            else 1e-5
            if BY_NAME[kept].block == 1
            else 0.03
        )
        assert np.abs(found - wanted).max() < bound * np.ptp(wanted)


def test_every_format_is_tested() -> None:
    others = {"I64", "U8", "U16", "U32", "U64", "BOOL"}  # plain numbers, read as I8 to I32 are
    assert set(SCALES) | others == set(BY_NAME)


@pytest.mark.parametrize(
    ("source", "kernels", "kept", "reason"),
    [
        ("IQ2_XS", ("F32", "BF16", "Q8_0"), "Q8_0", "IQ2_XS has no kernel here"),
        ("Q4_K", ("F32", "BF16", "Q8_0"), "Q8_0", "1/254"),
        ("Q4_K", ("F32", "BF16"), "BF16", "8 significant bits"),
        ("F64", ("F32", "BF16", "Q8_0"), "F32", "rounded to float32"),
        ("F8_E4M3", ("F32", "BF16", "Q8_0"), "BF16", "no value changes"),
        ("F16", ("F32", "Q8_0"), "F32", "no value changes"),
        ("Q6_K", ("F32", "Q6_K", "Q8_0"), "Q6_K", ""),
    ],
)
def test_conversions_are_said(tmp_path: Path, source: str, kernels: tuple[str, ...], kept: str, reason: str) -> None:
    spec = toy_spec(intermediate_size=256)
    arrays = toy_arrays(spec)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, arrays)
    checkpoint.add(DOWN, random_rows(BY_NAME[source], 64, 256), BY_NAME[source], (64, 256))
    layout = load_model(checkpoint, FewKernels(*kernels)).layout
    matrix = next(m for m in layout.matrices if m.name == DOWN)
    assert (matrix.source, matrix.target) == (source, kept) and reason in matrix.reason
    notes = [n for n in layout.notes if f"{source} -> {kept}" in n]
    assert len(notes) == (source != kept)


@pytest.mark.parametrize(
    ("architecture", "matrix_type"),
    [
        pytest.param(
            name, kind, marks=() if name == "llama" or kind in ("F32", "Q8_0") else pytest.mark.slow
        )  # what a type becomes is no matter of the family
        for name in TOYS
        for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
        if name not in ("mistral", "olmo2", "granite")
    ],
)
def test_gguf_files_hold_the_folder_s_model(
    tmp_path: Path, backend: Backend, architecture: str, matrix_type: str
) -> None:
    """Interleaved heads are put back in order: the GGUF file of a model answers like its folder, up to the rounding of
    its format.

    Those that norm or scale what a layer adds make more of a rounding: their own tests compare files of F32.
    """
    folder = make_folder(tmp_path / "folder", architecture, head_dim=32)
    file = make_gguf(tmp_path / "model.gguf", architecture, matrix_type=matrix_type, head_dim=32)
    rows = []
    for path in (folder, file):
        model = load_model(open_checkpoint(path), backend)
        rows.append(Driver(model, backend, kv_dtype="f32").prefill(PROMPT)[1])
    bounds = {"F32": 0.0, "F16": 2e-3, "BF16": 1e-2, "Q8_0": 3e-2, "Q5_0": 0.12, "Q5_1": 0.12}
    errors = np.abs(rows[0] - rows[1]).max(axis=1)
    # A rounded router's input may choose another expert: of a mixture only the usual row is near, within twice the
    # bound.
    moe = model.spec.moe is not None and matrix_type not in ("F32", "F16")
    error = np.median(errors) / 2 if moe else errors.max()
    assert error <= bounds.get(matrix_type, 0.25) * np.ptp(rows[0])


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_interleaved_heads_of_matrices_and_biases(tmp_path: Path, backend: Backend, dtype: str) -> None:
    """F32 is read by the backend, F64 in Python, and biases are vectors: all are put back in order."""
    spec = toy_spec(attention_bias=True)
    arrays = toy_arrays(spec)
    plain = array_checkpoint(tmp_path / "plain", spec, arrays)
    interleaved = array_checkpoint(tmp_path / "interleaved", spec, arrays)
    for name, array in arrays.items():
        heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}.get(name.split(".")[-2], 0)
        if heads:
            stored = interleave_heads(array, heads).astype({"F32": "<f4", "F64": "<f8"}[dtype])
            interleaved.add(name, stored.tobytes(), BY_NAME[dtype], array.shape, heads)
    rows = [Driver(load_model(c, backend), backend).prefill(PROMPT)[1] for c in (plain, interleaved)]
    assert np.array_equal(rows[0], rows[1])


def test_models_in_several_files(tmp_path: Path, backend: Backend) -> None:
    paths = [
        make_folder(tmp_path / "one"),
        make_folder(tmp_path / "three", shards=3),
        make_gguf(tmp_path / "split.gguf", split_max_tensors=5),
    ]
    assert len(list(tmp_path.glob("split-*.gguf"))) > 2
    rows = [Driver(load_model(open_checkpoint(path), backend), backend).prefill(PROMPT)[1] for path in paths]
    assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[0], rows[2])


def test_llama3_scaling_in_both_formats(tmp_path: Path, backend: Backend) -> None:
    """A folder names the scaling, a GGUF file holds the divisors it amounts to."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    plain, scaled = (
        open_checkpoint(make_folder(tmp_path / n, rope_scaling=s)) for n, s in (("plain", None), ("scaled", scaling))
    )
    divisors = rope_of(plain.spec).inverse_frequencies / rope_of(scaled.spec).inverse_frequencies
    file = open_checkpoint(make_gguf(tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors}))
    rows = [Driver(load_model(c, backend), backend).prefill(PROMPT * 5)[1] for c in (plain, scaled, file)]
    assert np.abs(rows[1] - rows[2]).max() < 1e-5 * np.ptp(rows[1])
    assert np.abs(rows[0] - rows[1]).max() > 1e-2 * np.ptp(rows[1])
