"""Tensors that hold several matrices, and blocks that are no layers: in GGUF files of any architecture, and
in folders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.weights.names import match_tensors
from tests.checkpoints import make_folder, make_gguf, toy_config, toy_tensors, write_safetensors

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]


def values_of(checkpoint: OpenedCheckpoint) -> Tensors:
    return {
        name: np.concatenate(list(iter_decoded_rows(entry))).reshape(entry.shape)
        for name, entry in checkpoint.tensors.items()
    }


def same(first: OpenedCheckpoint, second: OpenedCheckpoint) -> bool:
    here, there = values_of(first), values_of(second)
    return here.keys() == there.keys() and all(np.array_equal(here[name], there[name]) for name in here)


def joined(tensors: Tensors) -> Tensors:
    """q, k and v, their biases, and gate and up of experts as one tensor each."""
    found = {}
    for name, values in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith("attn_q"):
            found[f"{stem}kv.{kind}"] = np.concatenate([tensors[f"{stem[:-1]}{part}.{kind}"] for part in "qkv"])
        elif stem.endswith("ffn_gate_exps"):
            up = tensors[f"{stem.replace('gate', 'up')}.{kind}"]
            found[f"{stem.replace('gate', 'gate_up')}.{kind}"] = np.concatenate([values, up], axis=1)
        elif not stem.endswith(("attn_k", "attn_v", "ffn_up_exps")):
            found[name] = values
    return found


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3_moe", "qwen2_moe", "gemma3"])
def test_matrices_in_one_tensor_of_a_gguf_file(architecture: str, tmp_path: Path) -> None:
    apart = open_checkpoint(make_gguf(tmp_path / "apart.gguf", architecture))
    together = open_checkpoint(make_gguf(tmp_path / "together.gguf", architecture, change=joined))
    assert vars(apart.spec) == vars(together.spec)
    assert same(apart, together)


def test_rows_that_are_not_those_of_the_parts(tmp_path: Path) -> None:
    def short(tensors: Tensors) -> Tensors:
        return joined(tensors) | {"blk.1.attn_qkv.weight": np.ones((120, 64), np.float32)}

    with pytest.raises(CheckpointError, match=r"blk.1.attn_qkv.weight: seen \[120, 64\], wanted 128 rows, of model"):
        open_checkpoint(make_gguf(tmp_path / "m.gguf", "qwen3", change=short))


def with_prediction(tensors: Tensors) -> Tensors:
    """Another block behind the last, which predicts further tokens."""
    block = {name.replace("blk.1.", "blk.2."): values for name, values in tensors.items() if name.startswith("blk.1.")}
    return tensors | block | {"blk.2.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}


def test_blocks_of_a_gguf_file_that_predict_further_tokens(tmp_path: Path) -> None:
    plain = open_checkpoint(make_gguf(tmp_path / "plain.gguf", "qwen3_moe"))
    keys = {"qwen3moe.nextn_predict_layers": 1}
    counted = {"num_hidden_layers": 3, "tensors_of": {"num_hidden_layers": 2}, "keys": keys}
    whole = open_checkpoint(make_gguf(tmp_path / "whole.gguf", "qwen3_moe", change=with_prediction, **counted))
    trunk = open_checkpoint(make_gguf(tmp_path / "trunk.gguf", "qwen3_moe", **counted))
    for checkpoint in (whole, trunk):
        assert vars(checkpoint.spec) == vars(plain.spec) and same(checkpoint, plain)
        match_tensors(architecture_of("qwen3_moe"), checkpoint)
    layer = open_checkpoint(make_gguf(tmp_path / "layer.gguf", "qwen3_moe", num_hidden_layers=3, keys=keys))
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\..*not part of a qwen3_moe model"):
        match_tensors(architecture_of("qwen3_moe"), layer)

    def alone(tensors: Tensors) -> Tensors:
        return {
            name: values for name, values in with_prediction(tensors).items() if not name.startswith(("blk.0", "blk.1"))
        }

    with pytest.raises(
        UnsupportedError, match=r"only the block that predicts further tokens .* give the file of the whole"
    ):
        open_checkpoint(make_gguf(tmp_path / "alone.gguf", "qwen3_moe", change=alone, **counted))


@pytest.mark.parametrize("style", ["mtp.", "model.mtp_layers.0.", "model.layers.2."])
def test_blocks_of_a_folder_that_predict_further_tokens(style: str, tmp_path: Path) -> None:
    plain = open_checkpoint(make_folder(tmp_path / "plain", "qwen3"))
    tensors = toy_tensors(config := toy_config("qwen3"))
    more = {name.replace("model.layers.1.", style): values for name, values in tensors.items() if "layers.1." in name}
    (folder := tmp_path / "more").mkdir()
    write_safetensors(
        folder / "model.safetensors", tensors | more | {f"{style}eh_proj.weight": np.ones((64, 128), np.float32)}
    )
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    checkpoint = open_checkpoint(folder)
    assert vars(checkpoint.spec) == vars(plain.spec) and same(checkpoint, plain)


def test_a_layer_that_the_configuration_does_not_count(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "qwen3", num_hidden_layers=3)
    (folder / "config.json").write_text(json.dumps(toy_config("qwen3")))
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\..*not part of a qwen3 model"):
        match_tensors(architecture_of("qwen3"), open_checkpoint(folder))


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.a.weight", "model.visual.a.weight", "vision_model.a.weight", "mm_projector.a.weight",
        "model.embed_vision.a.weight",
        "model.audio_tower.a.weight", "multi_modal_projector.a.weight", "mtp.fc.weight",
    ],
)  # fmt: skip
def test_tensors_of_a_model_of_more_than_text_that_are_none_of_its_text(name: str, tmp_path: Path) -> None:
    config = toy_config("gemma3")
    text = {name.replace("model.", "model.language_model.", 1): values for name, values in toy_tensors(config).items()}
    write_safetensors(tmp_path / "model.safetensors", text | {name: np.ones((4, 4), np.float32)})
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config | {"model_type": "gemma3_text"}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert open_checkpoint(tmp_path).tensors.keys() == toy_tensors(config).keys()
    whole["text_config"]["model_type"] = "gemma9"  # type: ignore[index]
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(
        UnsupportedError, match=r"Gemma3ForConditionalGeneration is said to be 'gemma9'.*runs gemma3 there"
    ):
        open_checkpoint(tmp_path)


def test_numbers_beside_matrices_of_a_gguf_file(tmp_path: Path) -> None:
    """One for a matrix, one for each expert, and those for activations, which are left unread."""
    times = np.array([2, 0.5, 3, 1, 5, 4], np.float32)
    q, gate, up = "blk.0.attn_q", "blk.1.ffn_gate_exps", "blk.1.ffn_up_exps"

    def with_scales(tensors: Tensors) -> Tensors:
        more = {f"{q}.scale": np.array([3], np.float32), f"{q}.input_scale": np.ones(1, np.float32)}
        return tensors | more | {f"{gate}.scale": times, f"{up}.scale": np.array([7], np.float32)}

    plain = open_checkpoint(make_gguf(tmp_path / "plain.gguf", "qwen3_moe")).tensors
    scaled = open_checkpoint(make_gguf(tmp_path / "scaled.gguf", "qwen3_moe", change=with_scales)).tensors
    assert scaled.keys() == plain.keys()
    expected = {"model.layers.0.self_attn.q_proj.weight": 3.0}
    for expert, value in enumerate(times):
        expected |= {f"model.layers.1.mlp.experts.{expert}.gate_proj.weight": float(value)}
        expected |= {f"model.layers.1.mlp.experts.{expert}.up_proj.weight": 7.0}
    assert {name: entry.times for name, entry in scaled.items() if entry.times != 1.0} == {
        name: value for name, value in expected.items() if value != 1.0
    }
    for wrong, message in (
        (np.array([1, 2], np.float32), "scale of blk.0.attn_q.weight: seen 2 numbers, wanted one"),
        (np.array([np.nan], np.float32), "blk.0.attn_q.scale: seen what is no number"),
    ):
        change = {f"{q}.scale": wrong}
        with pytest.raises(CheckpointError, match=message.replace(".", r"\.")):
            open_checkpoint(make_gguf(tmp_path / "m.gguf", "qwen3_moe", change=lambda t, more=change: t | more))
