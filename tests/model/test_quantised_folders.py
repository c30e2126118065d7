"""Models from folders quantised by others: the same answers as from the float32 values that the codes and scales stand
for.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.weights.load import load_model, plan_model
from tests.checkpoints import safetensors_bytes, stored, toy_config, write_safetensors
from tests.model.driver import Driver
from tests.quantised_folders import FORMS, Form, write_folder, write_quantised

PROMPT = [5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61]
# Of the logits' spread: activations rounded to 8 bits, and floats that become blocks of 8 bits. Measured up to 1.6e-2.
BOUND = 3e-2
EXACT = 2e-3  # zero points rounded to float16; nothing else. Measured up to 3e-4.


def logprobs(backend: Backend, folder: Path, **settings: Any) -> FloatArray:
    """Of what follows each token of PROMPT."""
    model = load_model(open_checkpoint(folder), backend, **settings)
    return Driver(model, backend, kv_dtype="f32").prefill(PROMPT)[1]


def plain_folder(folder: Path, config: dict[str, Any], values: dict[str, Any]) -> Path:
    """The same model, its matrices as the float32 values they stand for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", values)
    return folder


@pytest.mark.parametrize("name", FORMS)
def test_answers_are_those_of_the_values(tmp_path: Path, backend: Backend, name: str) -> None:
    values = write_quantised(tmp_path / "quantised", FORMS[name])
    plain = plain_folder(tmp_path / "plain", toy_config(), values)
    found = logprobs(backend, tmp_path / "quantised")
    wanted = logprobs(ReferenceBackend(), plain)
    kept = FORMS[name].keeps
    exact = backend.name == "reference" and kept in ("Q4_0", "Q4_1", "Q8_0")
    assert np.abs(found - wanted).max() < (EXACT if exact else BOUND) * np.ptp(wanted)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "gemma3"])
@pytest.mark.parametrize("name", ["gptq", "awq", "8-bit floats"])
def test_every_architecture(tmp_path: Path, architecture: str, name: str) -> None:
    """Biases, experts and routers beside them."""
    backend = ReferenceBackend()
    values = write_quantised(tmp_path / "quantised", FORMS[name], architecture)
    plain = plain_folder(tmp_path / "plain", toy_config(architecture), values)
    found, wanted = logprobs(backend, tmp_path / "quantised", dtype="float32"), logprobs(backend, plain)
    assert np.abs(found - wanted).max() < (1e-6 if name != "awq" else EXACT) * np.ptp(wanted)


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_experts_of_a_layer_that_are_stored_otherwise_are_kept_alike(
    tmp_path: Path, backend: Backend, kind: str
) -> None:
    """Tools leave some matrices as they were; kernels want those of one kind in one format."""
    values = write_quantised(tmp_path / "quantised", FORMS["gptq"], "qwen3_moe")
    odd = "model.layers.1.mlp.experts.1.up_proj"
    data = (tmp_path / "quantised" / "model.safetensors").read_bytes()
    held = read_safetensors(tmp_path / "quantised" / "model.safetensors")
    tensors = {
        name: (entry.dtype.name, entry.shape, data[entry.offset : entry.offset + entry.nbytes])
        for name, entry in held.items()
        if not name.startswith(odd)
    }
    kept = f"{odd}.weight"
    tensors[kept] = (kind, values[kept].shape, stored(values[kept], kind).tobytes())
    write_folder(tmp_path / "quantised", json.loads((tmp_path / "quantised" / "config.json").read_text()), tensors)
    layout = plan_model(open_checkpoint(tmp_path / "quantised"), backend)
    targets = {m.target for m in layout.matrices if ".layers.1." in m.name and m.name.endswith("up_proj.weight")}
    told = any("as other experts of the layer" in note for note in layout.notes)
    assert len(targets) == 1 and (told or backend.name == "torch")  # which keeps nothing but floats
    plain = plain_folder(tmp_path / "plain", toy_config("qwen3_moe"), values)
    found, wanted = logprobs(backend, tmp_path / "quantised"), logprobs(ReferenceBackend(), plain)
    assert np.abs(found - wanted).max() < BOUND * np.ptp(wanted)


@pytest.mark.parametrize("name", FORMS)
def test_matrices_quantised_in_one(tmp_path: Path, name: str) -> None:
    """Phi 3: blocks of rows and words of eight rows may be of two matrices."""
    backend = ReferenceBackend()
    values = write_quantised(tmp_path / "quantised", FORMS[name], "phi3")
    plain = plain_folder(tmp_path / "plain", toy_config("phi3"), values)
    found, wanted = logprobs(backend, tmp_path / "quantised", dtype="float32"), logprobs(backend, plain)
    assert np.abs(found - wanted).max() < (EXACT if FORMS[name].keeps == "Q4_1" else 1e-6) * np.ptp(wanted)
    checkpoint = open_checkpoint(tmp_path / "quantised")
    assert (
        plan_model(checkpoint, backend).source_bytes
        < 1.1 * (tmp_path / "quantised" / "model.safetensors").stat().st_size
    )


@pytest.mark.parametrize("name", ["gptq", "awq", "packed with zero points", "8-bit floats"])
def test_ranks_of_matrices_quantised_in_one(tmp_path: Path, name: str) -> None:
    from homenode.model.parts import PartitionSpec
    from tests.model.split import plan

    write_quantised(tmp_path, FORMS[name], "phi3")
    checkpoint, backend = open_checkpoint(tmp_path), ReferenceBackend()
    whole = load_model(checkpoint, backend).parameters.layers[1]
    parts = [
        load_model(checkpoint, backend, part=part).parameters.layers[1]
        for part in plan(checkpoint, PartitionSpec(ranks=2))
    ]
    for matrix in ("q", "k", "v", "gate", "up"):
        assert np.array_equal(np.concatenate([part[matrix] for part in parts]), whole[matrix]), matrix


@pytest.mark.parametrize(
    ("name", "settings", "kept", "reason"),
    [
        ("gptq", {}, "Q4_0", "GPTQ 4-bit -> Q4_0: the same codes"),
        ("gptq", {"dtype": "bfloat16"}, "Q4_0", "GPTQ 4-bit -> Q4_0: the same codes"),
        ("awq", {}, "Q4_1", "AWQ 4-bit -> Q4_1: the same codes; zero points as minimums, rounded to float16"),
        ("bytes", {}, "Q8_0", "compressed-tensors 8-bit -> Q8_0: the same codes"),
        ("8-bit floats", {}, "BF16", "FP8 -> BF16: times its scale, rounded to 8 significant bits; --quantize q8_0 "
                                     "takes half the memory"),
        ("8-bit floats", {"quantize": "q8_0"}, "Q8_0", "FP8 -> Q8_0: quantised at load (--quantize q8_0)"),
        ("8-bit floats", {"dtype": "bfloat16"}, "BF16", "FP8 -> BF16: converted at load (--dtype bfloat16)"),
        ("8-bit floats", {"quantize": "q4_0"}, "Q4_0", "FP8 -> Q4_0: quantised at load (--quantize q4_0)"),
        ("gptq, columns in any order", {"dtype": "float32"}, "F32",
            "GPTQ 4-bit -> F32: converted at load (--dtype float32)"),
        ("gptq, columns in any order", {}, "Q8_0", "GPTQ 4-bit -> Q8_0: no block format holds these codes: converted"),
    ],
)  # fmt: skip
def test_what_becomes_of_them_is_said(
    tmp_path: Path, name: str, settings: dict[str, str], kept: str, reason: str
) -> None:
    from tests.model.test_weight_formats import FewKernels

    write_quantised(tmp_path, FORMS[name])
    layout = plan_model(open_checkpoint(tmp_path), FewKernels("F32", "BF16", "Q4_0", "Q4_1", "Q8_0"), **settings)
    targets = {m.target for m in layout.matrices if "proj" in m.name}
    assert targets == {kept} and any(reason in note for note in layout.notes), layout.notes
    assert layout.source_bytes < 1.1 * (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("architecture", "module", "rows", "refused"),
    [("llama", "q_proj", 64, "q_proj"), ("phi3", "qkv_proj", 128, "q_proj")],
)
def test_a_bias_of_zeros_beside_a_matrix_adds_nothing(
    tmp_path: Path, architecture: str, module: str, rows: int, refused: str
) -> None:
    """Older versions of AutoGPTQ wrote one everywhere, for models that have none."""
    write_quantised(tmp_path, FORMS["gptq"], architecture)
    config = json.loads((tmp_path / "config.json").read_text())
    data = (tmp_path / "model.safetensors").read_bytes()
    held = read_safetensors(tmp_path / "model.safetensors")
    tensors = {
        name: (entry.dtype.name, entry.shape, data[entry.offset : entry.offset + entry.nbytes])
        for name, entry in held.items()
    }
    for number in (0.0, 0.5):
        bias = {
            f"model.layers.0.self_attn.{module}.bias": ("F16", (rows,), np.full(rows, number, np.float16).tobytes())
        }
        write_folder(tmp_path, config, tensors | bias)
        if number:
            with pytest.raises(CheckpointError, match=rf"{refused}\.bias.* not part"):
                load_model(open_checkpoint(tmp_path), ReferenceBackend())
        else:
            load_model(open_checkpoint(tmp_path), ReferenceBackend())


def test_parts_in_several_files(tmp_path: Path) -> None:
    """Scales may lie in another shard than their codes."""
    values = write_quantised(tmp_path / "one", FORMS["awq"])
    header = open_checkpoint(tmp_path / "one").tensors
    parts = {part.name: part for entry in header.values() for part in (entry.coded.parts if entry.coded else [entry])}
    whole = (tmp_path / "one" / "model.safetensors").read_bytes()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "config.json").write_bytes((tmp_path / "one" / "config.json").read_bytes())
    for shard in (0, 1):
        mine = {
            n: (p.dtype.name, p.shape, whole[p.offset : p.offset + p.nbytes])
            for n, p in parts.items()
            if n.endswith("scales") == shard
        }
        (tmp_path / "two" / f"model-{shard}.safetensors").write_bytes(safetensors_bytes(mine))
    backend = ReferenceBackend()
    assert np.array_equal(logprobs(backend, tmp_path / "one"), logprobs(backend, tmp_path / "two"))
    assert {len(e.files) for n, e in open_checkpoint(tmp_path / "two").tensors.items() if e.coded} == {2} and values


def test_the_packed_cache_knows_every_file_of_a_matrix(tmp_path: Path, backend: Backend) -> None:
    if backend.name != "native":
        pytest.skip("packs nothing")
    test_parts_in_several_files(tmp_path)
    folder = tmp_path / "two"
    first = logprobs(backend, folder, packed_cache=tmp_path)
    (packed,) = tmp_path.glob("*.packed")
    before = packed.stat().st_mtime_ns
    assert (
        np.array_equal(logprobs(backend, folder, packed_cache=tmp_path), first) and packed.stat().st_mtime_ns == before
    )
    scales = folder / "model-1.safetensors"
    scales.write_bytes(scales.read_bytes())  # another time of change
    assert np.array_equal(logprobs(backend, folder, packed_cache=tmp_path), first)
    assert max(p.stat().st_mtime_ns for p in tmp_path.glob("*.packed")) > before


def test_the_packed_cache_knows_how_codes_are_meant(tmp_path: Path, backend: Backend) -> None:
    """Both versions of GPTQ may be the same bytes with other values."""
    if backend.name != "native":
        pytest.skip("packs nothing")
    found = []
    write_quantised(tmp_path / "model", FORMS["gptq with zero points"])
    for version in ("gptq", "gptq_v2"):
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        config["quantization_config"]["checkpoint_format"] = version
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        wanted = logprobs(backend, tmp_path / "model")
        for _ in range(2):
            assert np.array_equal(logprobs(backend, tmp_path / "model", packed_cache=tmp_path), wanted)
        found.append(wanted)
    assert not np.array_equal(*found) and len(list(tmp_path.glob("*.packed"))) == 2


def test_groups_wider_than_a_rank_s_columns(tmp_path: Path) -> None:
    """Ranks cut columns at blocks of 32, whatever the groups are."""
    from homenode.model.parts import PartitionSpec
    from tests.model.split import plan

    form: Form = replace(FORMS["gptq with zero points"], group=-1)
    write_quantised(tmp_path, form)
    checkpoint, backend = open_checkpoint(tmp_path), ReferenceBackend()
    whole = load_model(checkpoint, backend)
    parts = plan(checkpoint, PartitionSpec(ranks=2))
    down = [load_model(checkpoint, backend, part=part).parameters.layers[0]["down"] for part in parts]
    assert np.array_equal(np.concatenate(down, axis=1), whole.parameters.layers[0]["down"])
