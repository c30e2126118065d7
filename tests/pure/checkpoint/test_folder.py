"""Hugging Face folders: what configurations mean, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, RopeSpec
from tests.checkpoints import make_folder, spec_of, toy_config, toy_tensors, write_safetensors
from tests.memory import memory_headroom


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def test_the_figures_of_a_folder(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.spec == ModelSpec(
        architecture="llama", hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, vocab_size=128,
        max_position=256, norm_eps=1e-5, rope=RopeSpec(), tie_word_embeddings=False, bos_token_id=1,
        eos_token_ids=(2,),
    )  # fmt: skip
    assert checkpoint.path == folder and checkpoint.metadata["config.json"] == json.loads(
        (folder / "config.json").read_text()
    )
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {
        n: v.shape for n, v in toy_tensors(toy_config()).items()
    }


@pytest.mark.parametrize(
    ("architecture", "biases"),
    [("llama", (False, False)), ("mistral", (False, False)), ("qwen2", (True, False)), ("qwen3", (False, False))],
)
def test_architectures_and_their_biases(architecture: str, biases: tuple[bool, bool], folder: Path) -> None:
    spec = spec_of(folder, architecture)
    assert (spec.architecture, (spec.attention_bias, spec.output_bias)) == (architecture, biases)


def test_attention_bias_of_llama_and_qwen3_includes_the_output(folder: Path) -> None:
    for architecture in ("llama", "qwen3"):
        spec = spec_of(folder, architecture, attention_bias=True)
        assert spec.attention_bias and spec.output_bias
    assert spec_of(folder, "llama", mlp_bias=True).mlp_bias and not spec_of(folder, "qwen3", mlp_bias=True).mlp_bias


def test_missing_keys_mean_what_transformers_takes_them_to_mean(folder: Path) -> None:
    absent = dict.fromkeys(
        ("num_key_value_heads", "rope_theta", "rms_norm_eps", "max_position_embeddings", "head_dim", "bos_token_id"),
        "absent",
    )
    spec = spec_of(folder, **absent)
    assert (
        spec.num_kv_heads,
        spec.rope.theta,
        spec.norm_eps,
        spec.max_position,
        spec.head_dim,
        spec.bos_token_id,
    ) == (
        4,
        1e4,
        1e-6,
        2048,
        16,
        1,
    )
    assert spec_of(folder, "qwen2", head_dim="absent").head_dim == 16
    assert spec_of(folder, "qwen3", head_dim="absent").head_dim == 128
    assert spec_of(folder, "mistral", sliding_window="absent").sliding_window == 4096
    assert spec_of(folder, architectures="absent").architecture == "llama"
    assert not spec_of(folder, tie_word_embeddings="absent").tie_word_embeddings


def test_absent_tying_follows_the_weights(folder: Path) -> None:
    tensors = toy_tensors(toy_config())
    del tensors["lm_head.weight"]
    write_safetensors(folder / "model.safetensors", tensors)
    assert spec_of(folder, tie_word_embeddings="absent").tie_word_embeddings
    assert not spec_of(folder, tie_word_embeddings=False).tie_word_embeddings


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 256}
ROPES: dict[str, tuple[dict[str, Any], RopeSpec, int]] = {
    "plain": ({"rope_theta": 5e5}, RopeSpec(theta=5e5), 256),
    "null scaling": ({"rope_scaling": None, "rope_theta": 1000000}, RopeSpec(theta=1e6), 256),
    "newer spelling": ({"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        RopeSpec(theta=5e5), 256),
    "linear, older spelling": ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeSpec(kind="linear", factor=2.0),
        256),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        RopeSpec(kind="dynamic", factor=2.0, original_max_position=256), 256),
    "llama3": ({"rope_scaling": LLAMA3}, RopeSpec(kind="llama3", factor=8.0, original_max_position=128), 256),
    "llama3, newer spelling": (
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        RopeSpec(theta=5e5, kind="llama3", factor=8.0, original_max_position=128), 256,
    ),
    "yarn extends": ({"rope_scaling": {"type": "yarn"} | YARN},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=256), 1024),
    "yarn without a factor": (
        {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64}},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=64), 256,
    ),
    "yarn with everything": (
        {"rope_scaling": {"rope_type": "yarn", "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2} | YARN},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=256, attention_factor=1.5, beta_fast=16.0,
            beta_slow=2.0), 1024,
    ),
    "yarn with mscales": (
        {"rope_scaling": {"rope_type": "yarn", "mscale": 2.0, "mscale_all_dim": 1.0} | YARN},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=256,
            attention_factor=(0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)), 1024,
    ),
    "both spellings": (
        {"rope_scaling": {"type": "linear", "factor": 2},
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        RopeSpec(kind="linear", factor=2.0), 256,
    ),
    "original length beside the table, which wins": (
        {"rope_scaling": {"type": "yarn"} | YARN, "original_max_position_embeddings": 128},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=128), 512,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROPES)
def test_rope(case: str, folder: Path) -> None:
    changes, rope, position = ROPES[case]
    spec = spec_of(folder, **changes)
    assert (spec.rope, spec.max_position) == (rope, position)


def test_sliding_windows(folder: Path) -> None:
    assert spec_of(folder, "mistral", sliding_window=32).sliding_window == 32
    assert spec_of(folder, "mistral", sliding_window=None).sliding_window is None
    assert spec_of(folder, "llama", sliding_window=32).sliding_window is None
    off = spec_of(folder, "qwen2", sliding_window=32, use_sliding_window=False, max_window_layers=0)
    assert (off.sliding_window, off.sliding_layers) == (None, ())
    upper = spec_of(folder, "qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    assert (upper.sliding_window, upper.sliding_layers) == (32, (False, True))
    named = spec_of(
        folder, "qwen3", sliding_window=32, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"]
    )
    assert (named.sliding_window, named.sliding_layers) == (32, (True, False))
    none = spec_of(folder, "qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=2)
    assert (none.sliding_window, none.sliding_layers) == (None, ())


def test_what_generation_config_says(folder: Path) -> None:
    spec = spec_of(
        folder,
        generation={
            "eos_token_id": [5, 7, 5],
            "bos_token_id": 3,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.9,
            "do_sample": True,
        },
    )
    assert (spec.eos_token_ids, spec.bos_token_id, spec.generation) == (
        (5, 7, 2),
        3,
        {"temperature": 0.6, "top_p": 0.9, "top_k": 20},
    )
    assert spec_of(folder, generation={"eos_token_id": None}).eos_token_ids == (2,)
    assert spec_of(folder, generation={"eos_token_id": 9}).eos_token_ids == (9, 2)
    # 4000 and -1 are no tokens of this model.
    assert spec_of(folder, generation={}, eos_token_id=[4, 6, 4000, -1]).eos_token_ids == (4, 6)
    assert spec_of(folder, generation={}, eos_token_id=None, bos_token_id=None).eos_token_ids == ()


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": (
        {"architectures": ["Llama9ForCausalLM"]},
        "'Llama9ForCausalLM' is not supported; homenode runs .*LlamaForCausalLM",
    ),
    "an architecture of a million letters": ({"architectures": ["x" * 10**6]}, "is not supported"),
    "another head": ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    "no architecture": ({"architectures": "absent", "model_type": "absent"}, "'none' is not supported"),
    "quantised weights": ({"quantization_config": {"quant_method": "hqq", "bits": 4}}, "quantised by 'hqq'"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    "another rope": ({"rope_scaling": {"rope_type": "spiral", "factor": 4}}, "rope scaling 'spiral'"),
    "ropes by layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "differ between kinds of layers",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case: str, folder: Path) -> None:
    changes, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedError, match=message) as caught:
        spec_of(folder, **changes)
    assert "config.json" in caught.value.message and len(caught.value.message) < 1000


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no hidden size": ({"hidden_size": "absent"}, "hidden_size: seen nothing"),
    "hidden size of text": ({"hidden_size": "64"}, "hidden_size: seen '64'"),
    "hidden size of a truth value": ({"hidden_size": True}, "hidden_size: seen True"),
    "negative hidden size": ({"hidden_size": -64}, "hidden_size: seen -64"),
    "hidden size with a fraction": ({"hidden_size": 64.5}, r"hidden_size: seen 64\.5"),
    "absurd hidden size": ({"hidden_size": 10**9}, "hidden_size: seen 1000000000"),
    "hidden size of a thousand digits": ({"hidden_size": 10**1000}, "hidden_size: seen 10000"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers: seen 0"),
    "too many layers": ({"num_hidden_layers": 10_001}, "from 1 to 10000"),
    "too large a vocabulary": ({"vocab_size": 10**8}, "vocab_size: seen 100000000"),
    "heads that do not divide": ({"num_attention_heads": 5, "head_dim": "absent"}, "attention heads: seen 5"),
    "key-value heads that do not divide": ({"num_key_value_heads": 3}, "key-value heads: seen 3"),
    "more key-value heads than heads": ({"num_key_value_heads": 8}, "key-value heads: seen 8"),
    "odd head": ({"head_dim": 15}, "rotary dimensions: seen 15"),
    "theta NaN": ({"rope_theta": math.nan}, "rope_theta: seen nan"),
    "theta infinite": ({"rope_theta": math.inf}, "rope_theta: seen inf"),
    "theta zero": ({"rope_theta": 0}, "rope_theta: seen 0"),
    "theta of text": ({"rope_theta": "1e4"}, "rope_theta: seen '1e4'"),
    "epsilon negative": ({"rms_norm_eps": -1e-5}, "rms_norm_eps: seen -1e-05"),
    "epsilon NaN": ({"rms_norm_eps": math.nan}, "rms_norm_eps: seen nan"),
    "tying of text": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: seen 'yes', wanted true or false"),
    "architectures of a string": ({"architectures": "LlamaForCausalLM"}, "architectures: seen 'LlamaForCausalLM'"),
    "rope scaling of a list": ({"rope_scaling": [1]}, r"rope_scaling: seen \[1\]"),
    "rope scaling without a factor": ({"rope_scaling": {"rope_type": "linear"}}, r"rope_scaling\.factor: seen nothing"),
    "rope factor zero": ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, r"rope_scaling\.factor: seen 0"),
    "rope bands crossed": ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "the low one below the high one"),
    "rope of no length": (
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
        "original_max_position_embeddings: seen 0",
    ),
    "end id of text": ({"eos_token_id": "</s>"}, "eos_token_id: seen '</s>'"),
    "end ids of truth values": ({"eos_token_id": [True]}, r"eos_token_id: seen \[True\]"),
    "vocabulary other than the embedding": (
        {"vocab_size": 129},
        r"shape of model.embed_tokens.weight: seen \[128, 64\], wanted \[129, 64\]",
    ),
    "hidden size other than the embedding": ({"hidden_size": 128}, r"wanted \[128, 128\]"),
}


@pytest.mark.parametrize("case", INVALID)
def test_figures_that_cannot_be(case: str, folder: Path) -> None:
    changes, message = INVALID[case]
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match=message) as caught:
        spec_of(folder, **changes)
    assert len(caught.value.message) < 1000


def test_layer_kinds_that_cannot_be(folder: Path) -> None:
    for kinds in (["full_attention"], ["full_attention", "other"]):
        with pytest.raises(CheckpointError, match="layer_types"):
            spec_of(folder, "qwen2", use_sliding_window=True, layer_types=kinds)


def test_the_end_token_of_the_class_counts_where_no_file_names_one(folder: Path) -> None:
    assert spec_of(folder, generation={}, eos_token_id="absent").eos_token_ids == (2,)
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    assert spec_of(folder, generation={}, eos_token_id="absent").eos_token_ids == ()
    assert spec_of(folder, generation={"eos_token_id": 7}, eos_token_id="absent").eos_token_ids == (7,)


def test_what_is_refused_is_told_of_its_folder(folder: Path) -> None:
    make_folder(folder, architectures=["Gemma4ForConditionalGeneration"], text_config={"model_type": "other"})
    with pytest.raises(UnsupportedError, match=f"^{folder}: the text of a Gemma4"):
        open_checkpoint(folder)


def test_a_rope_of_windows_that_cannot_be(folder: Path) -> None:
    make_folder(folder)
    spec = spec_of(folder)
    for rotary in (1, 3, spec.head_dim + 2):
        with pytest.raises(
            CheckpointError, match=rf"{folder}: rotary dimensions: seen {rotary}, wanted an even number"
        ):
            limits.check_spec(replace(spec, local_rope=RopeSpec(theta=1e4, rotary_dim=rotary)), folder)
