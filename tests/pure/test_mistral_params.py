"""Mistral's own form of folders: which files count, and what in them cannot be or is not run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint.folder import spec_without_weights
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import unknown_names
from tests.checkpoints import make_gguf, write_safetensors
from tests.mistral_folders import CASES, case_config, case_tensors, own_tensors, params_of, write_both


def changed(folder: Path, name: str, changes: dict[str, Any]) -> Path:
    """The folder of a case with changes to params.json, of tables field by field; None takes a field away."""
    own, _ = write_both(folder, name)
    params = params_of(name, case_config(name))
    for key, value in changes.items():
        params[key] = params.get(key, {}) | value if isinstance(value, dict) and value else value
    whole = {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in params.items()
        if value is not None
    }
    (own / "params.json").write_text(json.dumps(whole))
    return own


def test_config_json_counts_where_both_are_there(tmp_path: Path) -> None:
    own, usual = write_both(tmp_path, "mistral")
    for file in own.iterdir():
        file.rename(usual / file.name)
    (usual / "params.json").write_text("{}")
    files = {entry.file.name for entry in open_checkpoint(usual).tensors.values()}
    assert files == {"model.safetensors"}


def test_several_files_with_an_index_and_without(tmp_path: Path) -> None:
    own, _ = write_both(tmp_path, "mistral")
    whole = open_checkpoint(own)
    config = case_config("mistral")
    tensors = own_tensors(config, case_tensors(config))
    (own / "consolidated.safetensors").unlink()
    weight_map = {}
    for part in range(3):
        file = f"consolidated-0000{part + 1}-of-00003.safetensors"
        held = {name: tensors[name] for name in sorted(tensors)[part::3]}
        write_safetensors(own / file, held)
        weight_map |= dict.fromkeys(held, file)
    found = open_checkpoint(own)
    assert found.spec == whole.spec and found.tensors.keys() == whole.tensors.keys()
    index = own / "consolidated.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert open_checkpoint(own).tensors == found.tensors
    index.write_text(json.dumps({"weight_map": weight_map | {"x.weight": "consolidated-00004-of-00004.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"3 of 4 shards, without consolidated-00004-of-00004\.safetensors"):
        open_checkpoint(own)


def test_params_json_alone_is_no_model(tmp_path: Path) -> None:
    own, _ = write_both(tmp_path, "mistral")
    with pytest.raises(UserError, match=r"one file of a model; give the folder .*mistral instead"):
        open_checkpoint(own / "params.json")
    (own / "consolidated.safetensors").unlink()
    with pytest.raises(UserError, match=r"params\.json with consolidated\*\.safetensors"):
        open_checkpoint(own)
    make_gguf(own / "m.gguf")
    assert open_checkpoint(own).path == own / "m.gguf"


@pytest.mark.parametrize("name", CASES)
def test_figures_without_weights(tmp_path: Path, name: str) -> None:
    own, _ = write_both(tmp_path, name)
    whole = open_checkpoint(own).spec
    (own / "consolidated.safetensors").unlink()
    found = spec_without_weights(own)
    assert found is not None and (found.num_layers, found.rope) == (whole.num_layers, whole.rope)


@pytest.mark.parametrize(
    ("changes", "position", "theta"),
    [
        ({"max_position_embeddings": None, "rope_theta": None}, 32768, 1e6),
        ({"max_position_embeddings": None, "max_seq_len": 77, "rope_theta": None, "sliding_window": 9}, 77, 1e4),
        ({"max_seq_len": 77, "rope_theta": 5e5}, 256, 5e5),
    ],
)
def test_what_older_files_do_not_say(tmp_path: Path, changes: dict[str, Any], position: int, theta: float) -> None:
    spec = open_checkpoint(changed(tmp_path, "mistral", changes)).spec
    assert (spec.max_position, spec.rope.theta) == (position, theta)
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))


def test_fields_that_nobody_knows_are_told(tmp_path: Path) -> None:
    own = changed(tmp_path, "experts", {"shape": 3, "moe": {"kind": "round"}, "dtype": "bfloat16"})
    assert unknown_names(open_checkpoint(own)) == ("params.json: shape", "params.json: moe.kind")


DAMAGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no rows": ("mistral", {"dim": None}, "dim: seen nothing, wanted a whole number from 1"),
    "negative rows": ("mistral", {"dim": -64}, "dim: seen -64"),
    "no heads": ("mistral", {"n_heads": 0}, "n_heads: seen 0"),
    "heads without a length": ("mistral", {"head_dim": None}, "head_dim: seen nothing"),
    "heads that do not go together": ("mistral", {"n_kv_heads": 3}, "key-value heads: seen 3"),
    "no layers": ("mistral", {"n_layers": None}, "n_layers: seen nothing"),
    "very many layers": ("mistral", {"n_layers": 10**9}, "n_layers: seen 1000000000, wanted .* to 10000"),
    "a length of text": ("mistral", {"hidden_dim": "96"}, "hidden_dim: seen '96'"),
    "no vocabulary": ("mistral", {"vocab_size": -1}, "vocab_size: seen -1"),
    "a norm that is none": ("mistral", {"norm_eps": 0}, "norm_eps: seen 0"),
    "a window of no token": ("mistral", {"sliding_window": 0}, "sliding_window: seen 0, wanted a number up to"),
    "a window that is none": ("mistral", {"sliding_window": [None, True]}, "sliding_window: seen"),
    "windows for other layers": ("mistral", {"sliding_window": [6, None, None]}, "that repeats over 2 layers"),
    "no windows": ("mistral", {"sliding_window": []}, "sliding_window: seen"),
    "a rope that is none": ("mistral", {"rope_theta": 0.5}, "rope_theta: seen 0.5"),
    "yarn without a factor": ("queries that grow", {"yarn": {"factor": None}}, r"yarn\.factor: seen nothing"),
    "yarn of a negative length": (
        "queries that grow",
        {"yarn": {"original_max_position_embeddings": -1}},
        r"yarn\.original_max_position_embeddings: seen -1",
    ),
    "growth of no number": (
        "queries that grow",
        {"llama_4_scaling": {"beta": "0.1"}},
        r"llama_4_scaling\.beta: seen '0\.1'",
    ),
    "experts that are no table": ("mistral", {"moe": [4]}, "moe: seen"),
    "no number of experts": ("experts", {"moe": {"num_experts": None}}, r"moe\.num_experts: seen nothing"),
    "more experts for a token than there are": ("experts", {"moe": {"num_experts_per_tok": 5}}, "seen 5"),
    "very many experts": ("experts", {"moe": {"num_experts": 10**6}}, r"moe\.num_experts: seen 1000000"),
    "a negative latent": ("latent attention", {"kv_lora_rank": -1}, "kv_lora_rank: seen -1"),
    "no length of values": ("latent attention", {"v_head_dim": None}, "v_head_dim: seen nothing"),
    "experts without a length": (
        "latent attention",
        {"moe": {"expert_hidden_dim": None}},
        r"moe\.expert_hidden_dim: seen nothing",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_cannot_be_is_said_by_its_own_name(tmp_path: Path, case: str) -> None:
    name, changes, message = DAMAGED[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(changed(tmp_path, name, changes))
    assert "params.json" in caught.value.message


UNSUPPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a model that hears": (
        "mistral",
        {"multimodal": {"whisper_model_args": {"encoder_args": {"dim": 8}}}},
        r"multimodal\.whisper_model_args \(a model that hears\)",
    ),
    "a state model": ("mistral", {"model_type": "mamba"}, "model_type 'mamba'"),
    "an encoder": ("mistral", {"causal": False}, "causal false"),
    "another activation": ("mistral", {"activation": "gelu"}, "activation 'gelu'"),
    "biases": ("mistral", {"use_biases": True}, "use_biases true"),
    "an adapter": ("mistral", {"lora": {"rank": 4}}, "an adapter"),
    "windows of two sizes": ("mistral", {"sliding_window": [6, 7]}, "sliding_window of several sizes"),
    "growth by itself": ("queries that grow", {"yarn": None}, "llama_4_scaling without yarn"),
    "growth of another length": (
        "queries that grow",
        {"llama_4_scaling": {"original_max_position_embeddings": 9}},
        "original_max_position_embeddings other than that of yarn",
    ),
    "experts in some layers": ("experts", {"moe": {"route_every_n": 2}}, r"moe\.route_every_n 2"),
    "shared experts": ("experts", {"moe": {"num_shared_experts": 1}}, r"moe\.num_shared_experts 1"),
    "a bias of the choice": (
        "latent attention",
        {"moe": {"use_load_balancing_bias": True}},
        r"moe\.use_load_balancing_bias true",
    ),
    "groups of experts": ("latent attention", {"moe": {"num_expert_groups": 2}}, r"moe\.num_expert_groups 2"),
    "latent attention alone": ("latent attention", {"moe": None}, "kv_lora_rank without moe"),
    "latent attention with a window": ("latent attention", {"sliding_window": 6}, "sliding_window beside latent"),
    "weights of another kind": ("mistral", {"quantization": {"qformat_weight": "int3"}}, "qformat_weight 'int3'"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_run_is_said_by_its_own_name(tmp_path: Path, case: str) -> None:
    name, changes, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError, match=message) as caught:
        open_checkpoint(changed(tmp_path, name, changes))
    assert "params.json" in caught.value.message and "homenode" in caught.value.message


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("layers.0.attention.wq.weight", lambda values: values[:-2], "self_attn.q_proj.weight: seen .*wanted 4 heads"),
        ("layers.1.attention.wk.weight", lambda values: values[0], "self_attn.k_proj.weight: seen"),
        ("tok_embeddings.weight", lambda values: values[:-1], "embed_tokens"),
    ],
)
def test_tensors_of_other_shapes(tmp_path: Path, tensor: str, change: Any, message: str) -> None:
    own, _ = write_both(tmp_path, "mistral")
    config = case_config("mistral")
    tensors = own_tensors(config, case_tensors(config))
    write_safetensors(
        own / "consolidated.safetensors", tensors | {tensor: np.ascontiguousarray(change(tensors[tensor]))}
    )
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(own)


def test_two_tensors_that_mean_one(tmp_path: Path) -> None:
    own, _ = write_both(tmp_path, "mistral")
    config = case_config("mistral")
    tensors = own_tensors(config, case_tensors(config))
    tensors["model.norm.weight"] = tensors["norm.weight"]
    write_safetensors(own / "consolidated.safetensors", tensors)
    with pytest.raises(CheckpointError, match=re.escape("another one that is model.norm.weight")):
        open_checkpoint(own)
