"""What stands where a model was meant to be is called by its name: pointers and pages, embedding models, other
architectures, quantised folders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.quantisation import QUANTISATION_FILES
from homenode.model.tokenizer import load_model_tokenizer
from tests.checkpoints import make_folder, toy_config, toy_tensors, write_safetensors
from tests.quantised_folders import FORMS, Form, write_quantised

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 4976698672\n"
STAND_INS = {
    "Git LFS pointer": POINTER,
    "old Git LFS pointer": POINTER.replace(b"git-lfs.github", b"hawser.github"),
    "web page": b"\n<!DOCTYPE html>\n<html><body>not found</body></html>",
    "zip archive": b"PK\x03\x04\x00\x00\x08\x08" + bytes(100),
}
FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors", "tokenizer.json", "chat_template.jinja", "modules.json", "hf_quant_config.json",
    "only.gguf",
)  # fmt: skip


def open_all(folder: Path) -> None:
    open_checkpoint(folder)
    load_model_tokenizer(folder)


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("name", FILES)
def test_what_stands_in_the_place_of_any_file_is_called_by_its_name(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "model"
    if name == "only.gguf":
        folder.mkdir()
    elif name == "hf_quant_config.json":
        write_quantised(folder, FORMS["8-bit floats by ModelOpt"])
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    else:
        make_folder(folder, shards=2 if "00001" in name or name.endswith("index.json") else 1)
    if name == "chat_template.jinja":
        tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(folder / "tokenizer.json"))
    (folder / name).write_bytes(STAND_INS[kind])
    with pytest.raises(CheckpointError, match=kind.removeprefix("old ")) as caught:
        open_all(folder)
    assert name in caught.value.message and ("git lfs pull" in caught.value.message) == ("LFS" in kind)


def test_the_folder_of_an_adapter_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    write_safetensors(tmp_path / "adapter_model.safetensors", toy_tensors(toy_config()))
    with pytest.raises(UnsupportedError, match=r"an adapter \(LoRA"):
        load_model_tokenizer(tmp_path)


@pytest.mark.parametrize("file_name", ["model.safetensors", None])
def test_a_model_that_is_not_run_is_told_before_its_tokenizer_is_missed(tmp_path: Path, file_name: str | None) -> None:
    folder = make_folder(tmp_path / "model", architectures=["T5ForConditionalGeneration"], model_type="t5")
    if file_name is None:
        (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedError, match="'T5ForConditionalGeneration' is not supported"):
        load_model_tokenizer(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json"):
        load_model_tokenizer(folder)


@pytest.mark.parametrize(
    ("named", "reason"), [("JambaForCausalLM", "Mamba 1"), ("BaichuanForCausalLM", "output matrix")]
)
def test_a_family_that_people_ask_for_is_refused_with_the_reason(tmp_path: Path, named: str, reason: str) -> None:
    folder = make_folder(tmp_path / "model", architectures=[named], model_type="x")
    with pytest.raises(UnsupportedError, match=f"'{named}' is not supported; .*{reason}.*homenode runs"):
        open_checkpoint(folder)


def test_of_a_model_that_is_run_the_missing_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_model_tokenizer(make_folder(tmp_path / "model"))


# The name of the file that the tool wrote, the form of the weights, and what it holds.
GPTQ, AWQ = FORMS["gptq with zero points"], FORMS["awq"]
AWQ_FILE = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
FLOAT8, FLOAT4 = FORMS["8-bit floats by ModelOpt"], FORMS["4-bit floats by ModelOpt"]
BESIDE: dict[str, tuple[str, Form, dict[str, Any]]] = {
    "AutoGPTQ": ("quantize_config.json", GPTQ,
        {"bits": 4, "group_size": 32, "desc_act": False, "sym": False, "damp_percent": 0.01}),
    "GPTQModel": ("quantize_config.json", FORMS["gptq"], FORMS["gptq"].config),
    "AutoAWQ": ("quant_config.json", AWQ, AWQ_FILE),
    "AutoAWQ of TheBloke": ("quantize_config.json", AWQ, AWQ_FILE | {"modules_to_not_convert": None}),
    "AWQ named in capitals": ("quantize_config.json", AWQ,
        {"quant_method": "AWQ", "bits": 4, "group_size": 32, "zero_point": True}),
    "ModelOpt": ("hf_quant_config.json", FLOAT8,
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}),
    "ModelOpt, 4 bits": ("hf_quant_config.json", FLOAT4,
        {"producer": {}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}),
}  # fmt: skip


# Only files of their own lack the name of the method; ModelOpt's key for the algorithm is as good as one.
INSIDE = [name for name, (_, _, told) in BESIDE.items() if "quant_method" in told or "quantization" in told]


@pytest.mark.parametrize(
    ("name", "place"), [*((n, "a file of its own") for n in BESIDE), *((n, "config.json") for n in INSIDE)]
)
def test_descriptions_of_a_quantisation(tmp_path: Path, name: str, place: str) -> None:
    file, form, description = BESIDE[name]
    write_quantised(tmp_path, form)
    usual = open_checkpoint(tmp_path).tensors
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    if place == "config.json":
        config["quantization_config"] = description
    else:
        (tmp_path / file).write_text(json.dumps(description))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).tensors == usual


def test_the_description_in_config_json_wins(tmp_path: Path) -> None:
    write_quantised(tmp_path, FORMS["gptq"])
    usual = open_checkpoint(tmp_path).tensors
    for file in QUANTISATION_FILES:
        (tmp_path / file).write_text(json.dumps({"quant_method": "gptq", "bits": 8, "group_size": 64}))
    assert open_checkpoint(tmp_path).tensors == usual


def test_a_description_left_in_a_folder_of_floats_is_no_matter(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "quantize_config.json").write_text(json.dumps({"quant_method": "unheard-of"}))
    assert open_checkpoint(folder).spec.storage == "F32"


@pytest.mark.parametrize("name", ["gptq", "awq", "packed", "8-bit floats", "4-bit floats by ModelOpt"])
def test_quantised_weights_without_a_description_are_called_that(tmp_path: Path, name: str) -> None:
    write_quantised(tmp_path, FORMS[name])
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="nothing that says how, wanted quantization_config"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}},
            "quantised by MLX"),
        ({"quantization_config": {"bits": 4, "group_size": 32}}, "'unnamed'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "is_marlin_format": True}}, "'marlin'"),
    ],
)  # fmt: skip
def test_other_quantisations_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_quantised(tmp_path, FORMS["gptq"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(tmp_path)
