"""Makers of folders whose matrices are quantised as GPTQ, AWQ, AutoRound, llm-compressor and makers of 8-bit floats
store them: bit by bit, by the formats' definitions.

Every matrix comes with the float32 values it stands for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.checkpoints import bf16_bits, fused, safetensors_bytes, stored, toy_config, toy_tensors

Array = npt.NDArray[Any]
Stored = dict[str, tuple[str, tuple[int, ...], bytes]]

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Form:
    """A way of storing matrices. `keeps`: the format its matrices are read as."""

    method: str
    keeps: str
    bits: int = 4
    group: int = GROUP  # -1: a row
    symmetric: bool = True
    version: str = ""
    packing: str = ""  # what AutoRound calls the way
    shuffled: bool = False  # columns belong to groups in no order
    blocks: tuple[int, int] | None = None  # of 8-bit floats: rows and columns that share a scale

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says of it."""
        if self.packing:
            return {
                "quant_method": "auto-round", "packing_format": self.packing, "bits": self.bits,
                "group_size": self.group, "sym": self.symmetric, "data_type": "int", "autoround_version": "0.9.0",
                "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}},
            }  # fmt: skip
        if self.method == "gptq":
            form = {"checkpoint_format": self.version} if self.version else {}
            return {
                "quant_method": "gptq", "bits": self.bits, "group_size": self.group, "sym": self.symmetric,
                "desc_act": self.shuffled, "damp_percent": 0.1,
            } | form  # fmt: skip
        if self.method == "awq":
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm"}
        if self.method == "fp8":
            sizes = {"weight_block_size": list(self.blocks)} if self.blocks and self.blocks[0] > 1 else {}
            return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"} | sizes
        if self.method == "modelopt":
            return {
                "quant_method": "modelopt",
                "quant_algo": "FP8" if self.bits == 8 else "NVFP4",
                "ignore": ["lm_head"],
                "kv_cache_scheme": None,
            }
        weights = {
            "num_bits": self.bits, "type": "float" if "fp4" in self.version else "int", "symmetric": self.symmetric,
            "strategy": "channel" if self.group < 0 else "group",
            "group_size": None if self.group < 0 else self.group, "block_structure": None, "actorder": None,
        }  # fmt: skip
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        return {
            "quant_method": "compressed-tensors", "format": self.version, "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
            "kv_cache_scheme": None, "quantization_status": "compressed",
        }  # fmt: skip


FORMS = {
    "gptq": Form("gptq", "Q4_0"),
    "gptq of 2 bits": Form("gptq", "Q4_0", bits=2),
    "gptq of 3 bits": Form("gptq", "Q4_1", bits=3, symmetric=False),
    "gptq of 8 bits": Form("gptq", "Q8_0", bits=8),
    "gptq with zero points": Form("gptq", "Q4_1", symmetric=False, version="gptq"),
    "gptq, second version": Form("gptq", "Q4_1", symmetric=False, version="gptq_v2"),
    "gptq, one scale a row": Form("gptq", "Q4_0", group=-1),
    "gptq, columns in any order": Form("gptq", "F32", shuffled=True),
    "gptq of 8 bits with zero points": Form("gptq", "F32", bits=8, symmetric=False),
    "gptq in groups of 16": Form("gptq", "F32", group=16),
    "awq": Form("awq", "Q4_1", symmetric=False),
    "AutoRound": Form("gptq", "Q4_0", packing="auto_round:auto_gptq"),
    "AutoRound of 2 bits": Form("gptq", "Q4_0", bits=2, packing="auto_round:auto_gptq"),
    "AutoRound of 8 bits": Form("gptq", "Q8_0", bits=8, packing="auto_round:auto_gptq"),
    "AutoRound with zero points": Form("gptq", "Q4_1", symmetric=False, packing="auto_round:auto_gptq"),
    "AutoRound for GPTQModel": Form("gptq", "Q4_0", version="gptq_v2", packing="auto_round:gptqmodel"),
    "AutoRound for GPTQModel with zero points": Form(
        "gptq", "Q4_1", symmetric=False, version="gptq_v2", packing="auto_round:gptqmodel"
    ),
    "AutoRound as AWQ": Form("awq", "Q4_0", packing="auto_round:auto_awq"),
    "AutoRound as AWQ with zero points": Form("awq", "Q4_1", symmetric=False, packing="auto_round:auto_awq"),
    "packed": Form("compressed", "Q4_0", version="pack-quantized"),
    "packed with zero points": Form("compressed", "Q4_1", version="pack-quantized", symmetric=False),
    "packed 6 bits": Form("compressed", "Q8_0", bits=6, version="pack-quantized"),
    "packed, columns in any order": Form("compressed", "F32", version="pack-quantized", shuffled=True),
    "bytes": Form("compressed", "Q8_0", bits=8, group=-1, version="int-quantized"),
    "bytes with zero points": Form("compressed", "F32", bits=8, group=-1, version="int-quantized", symmetric=False),
    "8-bit floats": Form("fp8", "F8_E4M3", 8, blocks=(48, 64)),
    "8-bit floats, one scale a row": Form("fp8", "F8_E4M3", 8, blocks=(1, 1 << 20)),
    "8-bit floats, one scale": Form("fp8", "F8_E4M3", 8),
    "8-bit floats by ModelOpt": Form("modelopt", "F8_E4M3", 8),
    "4-bit floats": Form("compressed", "F32", group=16, version="nvfp4-pack-quantized"),
    "4-bit floats by ModelOpt": Form("modelopt", "F32", group=16),
    "4-bit floats, powers of two": Form("compressed", "MXFP4", version="mxfp4-pack-quantized"),
}


def quantised(form: Form, name: str, values: Array, seed: int = 0) -> tuple[Stored, Array]:
    """The tensors of the module `name` with this matrix, and the float32 values they stand for."""
    if form.method == "fp8" or (form.method == "modelopt" and form.bits == 8):
        return _float8(form, name, values)
    if form.method == "modelopt" or "fp4" in form.version:
        return _float4(form, name, values)
    rows, columns = values.shape
    random = np.random.default_rng(seed)
    size = columns if form.group < 0 else form.group
    group = np.arange(columns) // size
    if form.shuffled:
        random.shuffle(group)
    groups = -(-columns // size)
    middle, most = 1 << (form.bits - 1), (1 << form.bits) - 1
    largest = np.array([np.abs(values[:, group == g]).max(axis=1) for g in range(groups)]).T
    scales = (largest / max(middle - 1, 1)).astype(np.float16)
    if form.method == "compressed":
        scales = (bf16_bits(scales.astype(np.float32)).astype(np.uint32) << 16).view(np.float32)
    zeros = (
        np.full((rows, groups), middle)
        if form.symmetric
        else random.integers(max(middle - 2, 1), middle + 2, (rows, groups))
    )
    wide = scales.astype(np.float32)
    codes = np.clip(np.round(values / wide[:, group]) + zeros[:, group], 0, most).astype(np.int64)
    decoded = (codes - zeros[:, group]).astype(np.float32) * wide[:, group]
    store = {"gptq": _gptq, "awq": _awq, "compressed": _compressed}[form.method]
    return store(form, name, codes, scales, zeros, group), decoded


def words(codes: Array, bits: int) -> Array:
    """Codes [n, codes] as 32-bit words [n, words], the first code in the lowest bits, the last word filled up with
    zeros.
    """
    lines = []
    for row in codes:
        whole = sum(int(code) << (bits * i) for i, code in enumerate(row))
        lines.append(np.frombuffer(whole.to_bytes(-(-len(row) * bits // 32) * 4, "little"), "<i4"))
    return np.array(lines)


def _gptq(form: Form, name: str, codes: Array, scales: Array, zeros: Array, group: Array) -> Stored:
    less = 0 if form.version == "gptq_v2" else 1
    return _tensors(
        name,
        qweight=words(codes, form.bits).T,
        qzeros=words(zeros.T - less, form.bits),
        scales=scales.T,
        g_idx=group.astype(np.int32),
    )


def _awq(form: Form, name: str, codes: Array, scales: Array, zeros: Array, group: Array) -> Stored:
    def packed(by_rows: Array) -> Array:
        """[rows, n] -> [n, words of eight rows]."""
        return words(by_rows.T.reshape(by_rows.shape[1], -1, 8)[..., AWQ_ORDER].reshape(by_rows.shape[1], -1), 4)

    return _tensors(name, qweight=packed(codes), qzeros=packed(zeros), scales=scales.T)


def _compressed(form: Form, name: str, codes: Array, scales: Array, zeros: Array, group: Array) -> Stored:
    if form.version == "int-quantized":
        zero = {} if form.symmetric else {"weight_zero_point": (zeros - 128).astype(np.int8)}
        return _tensors(name, weight=(codes - 128).astype(np.int8), weight_scale=bf16_bits(scales), **zero)
    zero = {} if form.symmetric else {"weight_zero_point": words(zeros.T, form.bits).T}
    order = {"weight_g_idx": group.astype(np.int32)} if form.shuffled else {}
    shape = np.array(codes.shape, np.int64)
    return _tensors(
        name, weight_packed=words(codes, form.bits), weight_scale=bf16_bits(scales), weight_shape=shape, **zero, **order
    )


def _float8(form: Form, name: str, values: Array) -> tuple[Stored, Array]:
    rows, columns = values.shape
    r, c = (min(form.blocks[0], rows), min(form.blocks[1], columns)) if form.blocks else (rows, columns)
    pairs = [(i, j) for i in range(0, rows, r) for j in range(0, columns, c)]
    scales = np.array([np.abs(values[i : i + r, j : j + c]).max() / 448 for i, j in pairs], np.float32).reshape(
        -(-rows // r), -1
    )
    wide = scales[np.arange(rows) // r][:, np.arange(columns) // c]
    known = float8_values()
    codes = (
        np.abs((values / wide)[..., None] - np.where(np.isnan(known), np.inf, known)).argmin(axis=2).astype(np.uint8)
    )
    part = "weight_scale_inv" if form.blocks and form.blocks[0] > 1 else "weight_scale"
    tensors = _tensors(name, **{part: scales if form.blocks else scales[0]})
    tensors[f"{name}.weight"] = ("F8_E4M3", codes.shape, codes.tobytes())
    return tensors, known[codes] * wide


def _float4(form: Form, name: str, values: Array) -> tuple[Stored, Array]:
    whole = np.float32(37.0)
    largest = np.abs(values).reshape(len(values), -1, form.group).max(axis=2)
    if form.group == 32:
        held = (np.ceil(np.log2(largest / 6)) + 127).astype(np.uint8)
        scales = 2.0 ** (held.astype(np.float32) - 127)
    else:
        known = float8_values()[:127]
        held = np.abs((largest / 6 * whole)[..., None] - known).argmin(axis=2).astype(np.uint8)
        scales = known[held] / whole if form.method == "compressed" else known[held] * (1 / whole)
    wide = np.repeat(scales.astype(np.float32), form.group, axis=1)
    codes = np.abs((values / wide)[..., None] - FLOAT4).argmin(axis=2).astype(np.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    if form.method == "modelopt":
        tensors = _tensors(name, weight=packed, weight_scale_2=1 / whole, input_scale=np.float32(1))
    elif form.group == 16:
        tensors = _tensors(
            name, weight_packed=packed, weight_global_scale=np.array([whole]), input_global_scale=np.array([whole])
        )
    else:
        tensors = _tensors(name, weight_packed=packed)
    tensors[f"{name}.weight_scale"] = ("U8" if form.group == 32 else "F8_E4M3", held.shape, held.tobytes())
    return tensors, FLOAT4[codes] * wide


# What each E2M1 code stands for.
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def float8_values() -> npt.NDArray[np.float32]:
    """What each byte of E4M3 stands for."""
    values = [(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)]
    values[-1] = np.nan
    return np.array(values + [-value for value in values], np.float32)


def _tensors(name: str, **parts: Array) -> Stored:
    types = {
        "int32": "I32",
        "int64": "I64",
        "int8": "I8",
        "uint8": "U8",
        "float16": "F16",
        "float32": "F32",
        "uint16": "BF16",
    }
    return {
        f"{name}.{part}": (types[values.dtype.name], values.shape, np.ascontiguousarray(values).tobytes())
        for part, values in parts.items()
    }


def is_quantised(name: str) -> bool:
    """The linear matrices of the layers, but for routers; not the embedding and the output."""
    return ".layers." in name and name.endswith("proj.weight")


def write_quantised(folder: Path, form: Form, architecture: str = "llama", **changes: Any) -> dict[str, Array]:
    """A folder of a random toy model with these matrices; returns the values they stand for, by name, and those of all
    other tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = toy_config(architecture, **changes)
    tensors: Stored = {}
    values = fused(config, toy_tensors(config))
    for seed, (name, value) in enumerate(values.items()):
        if is_quantised(name):
            parts, values[name] = quantised(form, name.removesuffix(".weight"), value, seed)
            tensors |= parts
        else:
            tensors[name] = ("F32", value.shape, stored(value, "F32").tobytes())
    write_folder(folder, config | {"quantization_config": form.config}, tensors)
    return values


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Stored) -> None:
    """Any config and tensors."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
