"""Models with latents and quantised weights: whatever form the matrices come in, a head's are found, kept and packed,
and a second start reads what the first has packed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")
pytest.importorskip("homenode._native", reason="the compiled core is not built; `make build` builds it")

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.weights.load import LoadedModel, load_model, plan_model
from tests.checkpoints import stored
from tests.model.driver import Driver
from tests.model.parity import Case, spread_error, write_stacked_gguf
from tests.model.test_latent_attention import GLM, GLM_5, V2_LITE, V3, V32
from tests.model.transformers_models import make_model, prompts, quiet_and_on_one_thread
from tests.quantised_folders import FORMS, Form, Stored, is_quantised, quantised, write_folder

pytestmark = pytest.mark.torch

# Every length is whole blocks of 32.
LENGTHS = {
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "head_dim": 32,
    "moe_intermediate_size": 64,
}  # fmt: skip
KEYS = {
    "attention.key_length": 96, "attention.value_length": 64, "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "attention.kv_lora_rank": 64, "rope.dimension_count": 32, "expert_feed_forward_length": 64,
}  # fmt: skip
CASES = {"V2 lite": V2_LITE, "V3": V3, "GLM-4.7-Flash": GLM, "V3.2": V32, "GLM-5": GLM_5}
PROMPT = prompts((45,))[0]
BOUND = 0.08  # of the spread of log-probabilities: activations of 8 bits, and routers that hesitate
FLOATS = Form("fp8", "F8_E4M3", 8, blocks=(48, 16))  # heads and blocks of scales begin at unlike rows


def wide(name: str) -> Case:
    """A toy whose matrices can be blocks."""
    case, rank = CASES[name], {} if name == "V2 lite" else {"q_lora_rank": 64}
    indexer = {"index_head_dim": 32} if "index_head_dim" in case.changes else {}
    keys = {f"attention.{key}": value for key, value in rank.items()}
    keys |= {"attention.indexer.key_length": 32} if indexer else {}
    return replace(
        case, changes={**case.changes, **LENGTHS, **rank, **indexer}, gguf_keys={**case.gguf_keys, **KEYS, **keys}
    )


def made(name: str, folder: Path) -> Case:
    case = wide(name)
    with quiet_and_on_one_thread():
        make_model(case.kind, case.changes, folder)
    return case


def started(path: Path, packed: Path | None, threads: int = 2, **settings: Any) -> tuple[LoadedModel, FloatArray]:
    """The model, and log-probabilities after every token of PROMPT."""
    backend = NativeBackend([-1] * threads, spin_us=20)
    model = load_model(open_checkpoint(path), backend, packed_cache=packed, **settings)
    return model, Driver(model, backend, kv_dtype="f32").prefill(PROMPT, chunk=20)[1]


def check_starts(path: Path, packed: Path, **settings: Any) -> FloatArray:
    """Without a packed file, with one that is written, and with one that is read: the same bits."""
    _, wanted = started(path, None, **settings)
    first, found = started(path, packed, **settings)
    assert "written" in first.notes[-1] and np.array_equal(found, wanted)
    for threads in (1, 3):
        again, found = started(path, packed, threads, **settings)
        assert not [note for note in again.notes if "packed" in note] and np.array_equal(found, wanted)
    return wanted


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
@pytest.mark.parametrize("name", CASES)
def test_matrices_of_heads_are_quantised_at_load_and_packed(name: str, quantize: str, tmp_path: Path) -> None:
    made(name, tmp_path / "model")
    found = check_starts(tmp_path / "model", tmp_path / "packed", quantize=quantize)
    layout = plan_model(open_checkpoint(tmp_path / "model"), NativeBackend([-1]), quantize=quantize)
    heads = [matrix for matrix in layout.matrices if ".k_b." in matrix.name or ".v_b." in matrix.name]
    assert len(heads) == 3 * 2 * 4 and {matrix.target for matrix in heads} == {quantize.upper()}
    if quantize == "q8_0":
        _, exact = started(tmp_path / "model", None)
        errors = [spread_error(one, other) for one, other in zip(found[:20], exact[:20], strict=True)]
        assert np.median(errors) < BOUND  # of longer contexts rounded scores choose other tokens


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["V2 lite", "V3.2", "GLM-5"])
def test_files_of_blocks_are_packed(name: str, kind: str, tmp_path: Path) -> None:
    import gguf

    case = made(name, tmp_path / "model")

    def store(tensor: str, values: FloatArray) -> tuple[Any, str]:
        if values.ndim < 2 or "gate_inp" in tensor or "indexer.proj" in tensor:
            return values, "F32"
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]), kind

    file = write_stacked_gguf(case, tmp_path / "model", tmp_path / "model.gguf", store)
    check_starts(file, tmp_path / "packed")


def quantise_folder(folder: Path, target: Path, form: Form) -> dict[str, FloatArray]:
    """The folder with its linear matrices in this form; what they stand for, by name."""
    tensors, values = Stored(), {}
    config = json.loads((folder / "config.json").read_text())
    for seed, (name, entry) in enumerate(read_safetensors(folder / "model.safetensors").items()):
        raw = entry.file.read_bytes()[entry.offset : entry.offset + entry.nbytes]
        values[name] = np.frombuffer(raw, "<f4").reshape(entry.shape)
        if is_quantised(name) and "weights_proj" not in name:
            parts, values[name] = quantised(form, name.removesuffix(".weight"), values[name], seed)
            tensors |= parts
        else:
            tensors[name] = ("F32", entry.shape, raw)
    target.mkdir()
    write_folder(target, config | {"quantization_config": form.config}, tensors)
    return values


def check_values(folder: Path, form: Form) -> None:
    """`floats`, with matrices in this form, answers as `plain`, with the values that these stand for."""
    values = quantise_folder(folder / "model", folder / "floats", form)
    (folder / "plain").mkdir()
    config = json.loads((folder / "model" / "config.json").read_text())
    plain = {key: ("F32", value.shape, stored(value, "F32").tobytes()) for key, value in values.items()}
    write_folder(folder / "plain", config, plain)
    reference = ReferenceBackend()
    found, wanted = (
        Driver(load_model(open_checkpoint(folder / of), reference, dtype="float32"), reference, kv_dtype="f32")
        for of in ("floats", "plain")
    )
    rounded = form.keeps == "Q4_1"  # zero points times scales, to float16: measured up to 2.6e-3
    assert spread_error(found.prefill(PROMPT)[1], wanted.prefill(PROMPT)[1]) < (1e-2 if rounded else 1e-5)


@pytest.mark.parametrize("name", ["V3", "V3.2", "GLM-5"])
def test_folders_of_8_bit_floats_are_packed(name: str, tmp_path: Path) -> None:
    """As the published ones are: of a matrix with the keys and values of all heads each head's scales are found."""
    made(name, tmp_path / "model")
    check_values(tmp_path, FLOATS)
    check_starts(tmp_path / "floats", tmp_path / "packed")
    check_starts(tmp_path / "floats", tmp_path / "packed", quantize="q8_0")


@pytest.mark.parametrize("form", ["gptq, columns in any order", "awq", "packed"])
def test_heads_are_found_in_matrices_of_codes(form: str, tmp_path: Path) -> None:
    made("V3", tmp_path / "model")
    check_values(tmp_path, FORMS[form])
    check_starts(tmp_path / "floats", tmp_path / "packed")


def test_each_rank_packs_its_heads(tmp_path: Path) -> None:
    made("V3.2", tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    for part in plan_parts(checkpoint.spec, {}, PartitionSpec(ranks=2)):
        rows: list[list[FloatArray]] = []
        for folder in (None, tmp_path / "packed", tmp_path / "packed"):
            model = load_model(checkpoint, NativeBackend([-1]), quantize="q8_0", packed_cache=folder, part=part)
            heads = [matrix for layer in model.parameters.layers for matrix in (*layer["k_b"], *layer["v_b"])]
            assert len(heads) == 3 * 2 * 2
            rows.append([matrix.unpack_row(row) for matrix in heads for row in (0, matrix.rows - 1)])
        assert all(np.array_equal(*pair) for other in rows[1:] for pair in zip(rows[0], other, strict=True))
    assert len(list((tmp_path / "packed").glob("*.packed"))) == 2
