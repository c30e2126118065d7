"""Experts that a folder stacks in one tensor: the very values of each come out, whichever way they lie there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError
from homenode.model.formats.coded_matrices import with_coded_matrices
from homenode.model.formats.coded_rows import decoded
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.formats.fields import Fields
from homenode.model.formats.quantisation import quantisation_of
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.formats.tensor_parts import columns_of, rows_of, transposed
from homenode.model.spec import TensorEntry
from tests.checkpoints import bf16_bits, safetensors_bytes
from tests.pure.test_quantised_folders import blocks_of
from tests.quantised_folders import FLOAT4, Stored, float8_values

EXPERTS, INNER, HIDDEN = 3, 96, 64
LAYER = "model.layers.0."
SPEC: Any = SimpleNamespace(moe=SimpleNamespace(num_experts=EXPERTS))
Array = np.ndarray[Any, Any]
PLAIN = StackedExperts()


@dataclass(frozen=True)
class Stack:
    """A way of storing the experts of a layer."""

    form: StackedExperts = PLAIN
    method: str = ""  # of quantization_config
    kept: str = "BF16"


STACKS = {
    "halves": Stack(),
    "turned halves": Stack(StackedExperts(turned=True)),
    "turned, alternating": Stack(StackedExperts(turned=True, alternating=True)),
    "alternating": Stack(StackedExperts(alternating=True)),
    "names of their own": Stack(StackedExperts("moe.input_linear", "moe.output_linear", "moe.{expert}")),
    "MXFP4, alternating": Stack(StackedExperts(turned=True, alternating=True), "mxfp4", "MXFP4"),
    "8-bit floats": Stack(PLAIN, "fp8", "F8_E4M3"),
    "8-bit floats, powers of two": Stack(PLAIN, "fp8 of E8M0", "F8_E4M3"),
    "8-bit floats, one scale": Stack(PLAIN, "fp8 of whole matrices", "F8_E4M3"),
    "8-bit floats, one scale of gate and of up": Stack(PLAIN, "fp8 of halves", "F8_E4M3"),
}


def rows(both: Array, stack: Stack) -> tuple[Array, Array]:
    """Gate and up of the rows of both."""
    return (both[::2], both[1::2]) if stack.form.alternating else (both[:INNER], both[INNER:])


def store(stack: Stack, name: str, shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Stored, Array]:
    """Tensors of a random stack [experts, rows, columns], and what they stand for."""
    if stack.method == "mxfp4":
        codes, powers = (
            rng.integers(0, 16, shape, np.uint8),
            rng.integers(120, 130, (*shape[:2], shape[2] // 32), np.uint8),
        )
        blocks = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(*shape[:2], -1, 16)
        tensors: Stored = {
            f"{name}_blocks": ("U8", blocks.shape, blocks.tobytes()),
            f"{name}_scales": ("U8", powers.shape, powers.tobytes()),
        }
        return tensors, FLOAT4[codes] * np.repeat(2.0 ** (powers.astype(np.float32) - 127), 32, axis=2)
    if stack.method.startswith("fp8"):
        codes = rng.integers(0, 120, shape, np.uint8)
        high, wide = 32, 48
        if stack.method.endswith(("halves", "matrices")):
            halves = stack.method.endswith("halves") and name.endswith(stack.form.gate_up)
            high, wide = shape[1] // (2 if halves else 1), shape[2]
        blocks = (shape[0], -(-shape[1] // high), -(-shape[2] // wide))
        if stack.method != "fp8 of E8M0":
            scales = rng.uniform(0.5, 2, blocks).astype(np.float32)
            held = ("F32", blocks, scales.tobytes())
        else:
            powers = rng.integers(120, 130, blocks, np.uint8)
            scales, held = 2.0 ** (powers.astype(np.float32) - 127), ("F8_E8M0", blocks, powers.tobytes())
        each = np.repeat(np.repeat(scales, high, axis=1)[:, : shape[1]], wide, axis=2)[:, :, : shape[2]]
        return {name: ("F8_E4M3", shape, codes.tobytes()), f"{name}_scale_inv": held}, float8_values()[codes] * each
    bits = bf16_bits(rng.standard_normal(shape).astype(np.float32))
    lies = bits.swapaxes(1, 2) if stack.form.turned else bits
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    return {name: ("BF16", lies.shape, np.ascontiguousarray(lies).tobytes())}, values


def opened(folder: Path, tensors: Stored, method: str) -> dict[str, TensorEntry]:
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    found = read_safetensors(folder / "model.safetensors")
    if not method:
        return found
    config = {"quant_method": method.split()[0], "weight_block_size": [32, 48]}
    if method.endswith(("halves", "matrices")):
        config = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}
    quantisation = quantisation_of(Fields(folder / "config.json", {"quantization_config": config}))
    assert quantisation is not None
    return with_coded_matrices(found, quantisation)


def read(entry: TensorEntry) -> Array:
    if entry.coded is None:
        return np.concatenate(list(iter_decoded_rows(entry))).reshape(entry.shape)
    whole = (0, entry.shape[0]), (0, entry.shape[-1])
    if len(entry.shape) == 1:
        return decoded(TensorEntry(**{**vars(entry), "shape": (*entry.shape, 1)}), (0, entry.shape[0]), (0, 1))[:, 0]
    return decoded(entry, *whole) if entry.dtype.block == 1 else blocks_of(entry, *whole)


@pytest.mark.parametrize("case", STACKS)
def test_every_expert_has_its_own_values(case: str, tmp_path: Path) -> None:
    stack, rng = STACKS[case], np.random.default_rng(1)
    form = stack.form
    tensors, both = store(stack, LAYER + form.gate_up, (EXPERTS, 2 * INNER, HIDDEN), rng)
    more, down = store(stack, LAYER + form.down, (EXPERTS, HIDDEN, INNER), rng)
    bias = rng.standard_normal((EXPERTS, 2 * INNER)).astype(np.float32)
    tensors |= more | {f"{LAYER}{form.gate_up}_bias": ("F32", bias.shape, bias.tobytes())}
    rounding = {f"{LAYER}{name}_activation_scale": ("F32", (EXPERTS,), bytes(4 * EXPERTS)) for name in ("a", "b")}
    held = tensors | (rounding if stack.method.startswith("fp8") else {})
    found = form.split(opened(tmp_path, held, stack.method), SPEC)
    assert len(found) == EXPERTS * 5
    for expert in range(EXPERTS):
        own = LAYER + form.expert.format(expert=expert)
        names = [f"{own}.{part}_proj" for part in ("gate", "up", "down")]
        for name, wanted in zip(names, (*rows(both[expert], stack), down[expert]), strict=True):
            entry = found[f"{name}.weight"]
            assert (entry.name, entry.shape, entry.dtype.name) == (f"{name}.weight", wanted.shape, stack.kept)
            assert np.array_equal(read(entry), wanted)
            assert entry.nbytes == entry.shape[0] * entry.dtype.row_bytes(entry.shape[1])
        for name, wanted in zip(names, rows(bias[expert], stack), strict=False):
            assert np.array_equal(read(found[f"{name}.bias"]), wanted)
    stored = sum(len(data) for name, (_, _, data) in tensors.items() if "_bias" not in name)
    assert sum(entry.stored_bytes for name, entry in found.items() if name.endswith("weight")) == stored


def test_parts_of_rows_and_columns(tmp_path: Path) -> None:
    """As ranks read them, and as the matrices of heads lie one below the other in one that is read turned."""
    values = np.arange(24 * 40, dtype=np.float32).reshape(24, 40)
    entry = opened(tmp_path, {"a": ("F32", values.shape, values.tobytes())}, "")["a"]
    turned = columns_of(transposed(rows_of(entry, "b", 0, 24), "b"), "b", 6, 12)
    assert turned.shape == (40, 12) and np.array_equal(decoded(turned, (3, 30), (2, 9)), values[6:18].T[3:30, 2:9])
    every = rows_of(rows_of(entry, "c", 1, 12, 2), "c", 2, 4, 3)
    assert np.array_equal(decoded(every, (1, 4), (5, 40)), values[[5, 11, 17, 23]][1:4, 5:])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((EXPERTS + 1, 4, 32), r"seen \[4, 4, 32\], wanted 3 dimensions, 3 experts first"),
        ((EXPERTS, 4), "wanted 3 dimensions"),
        ((EXPERTS, 5, 32), "seen 5, wanted as many of gate as of up"),
    ],
)
def test_stacks_of_another_shape(shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    data = np.ones(shape, np.float32)
    tensors = opened(tmp_path, {f"{LAYER}mlp.experts.gate_up_proj": ("F32", shape, data.tobytes())}, "")
    with pytest.raises(CheckpointError, match=message):
        StackedExperts().split(tensors, SPEC)


def test_blocks_whose_scales_do_not_fit(tmp_path: Path) -> None:
    name, blocks = f"{LAYER}mlp.experts.down_proj", np.ones((2, 4, 2, 16), np.uint8)
    held = ("U8", (2, 4, 3), bytes(24))
    with pytest.raises(CheckpointError, match=r"down_proj_scales: seen \[2, 4, 3\], wanted \[2, 4, 2\]"):
        opened(tmp_path, {f"{name}_blocks": ("U8", blocks.shape, blocks.tobytes()), f"{name}_scales": held}, "mxfp4")
    with pytest.raises(CheckpointError, match="down_proj_scales: seen none"):
        opened(tmp_path, {f"{name}_blocks": ("U8", blocks.shape, blocks.tobytes())}, "mxfp4")
