"""Hugging Face folders of mixtures, Gemmas and Phis: what is special in their configurations and tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.spec import MoeSpec, RopeSpec
from tests.checkpoints import fused, make_folder, spec_of, toy_config, toy_tensors, write_safetensors
from tests.memory import memory_headroom
from tests.quantised_folders import FORMS, quantised, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


MIXTURES = {
    "mixtral": MoeSpec(4, 2, 96, True),
    "qwen2_moe": MoeSpec(4, 3, 64, False, shared_intermediate_size=32),
    "qwen3_moe": MoeSpec(6, 2, 32, True, dense_layers=(0,)),
}


@pytest.mark.parametrize("architecture", MIXTURES)
def test_mixtures(architecture: str, folder: Path) -> None:
    spec = spec_of(folder, architecture)
    assert (spec.architecture, spec.moe) == (architecture, MIXTURES[architecture])
    assert (spec.attention_bias, spec.output_bias) == (architecture == "qwen2_moe", False)


def test_missing_keys_of_gemmas_mean_what_transformers_takes_them_to_mean(folder: Path) -> None:
    absent = dict.fromkeys(
        ("sliding_window", "head_dim", "rope_theta", "query_pre_attn_scalar", "hidden_act"), "absent"
    )
    spec = spec_of(folder, "gemma2", **absent)
    assert (spec.sliding_window, spec.sliding_layers, spec.head_dim, spec.rope.theta, spec.local_rope) == (
        4096,
        (True, False),
        256,
        1e4,
        None,
    )
    assert (spec.embedding_scale, spec.attention_scale, spec.attention_softcap, spec.logits_softcap) == (
        8.0,
        1 / 16,
        50.0,
        30.0,
    )
    spec = spec_of(folder, "gemma3", num_hidden_layers=7, **absent)
    assert (spec.sliding_window, spec.sliding_layers) == (4096, (True, True, True, True, True, False, True))
    assert (spec.rope, spec.local_rope, spec.attention_softcap, spec.logits_softcap) == (
        RopeSpec(theta=1e6),
        RopeSpec(theta=1e4),
        None,
        None,
    )
    assert (
        spec_of(folder, architectures="absent", model_type="gemma3_text", hidden_act="absent").architecture == "gemma3"
    )


def test_both_spellings_of_gemma_s_ropes_and_windows(folder: Path) -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    older = {"rope_theta": 5e5, "rope_local_base_freq": 2e3, "rope_scaling": linear, "sliding_window_pattern": 2}
    parameters = {
        "full_attention": linear | {"rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
    }
    newer = {
        "rope_parameters": parameters,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": "absent",
    }
    spec = spec_of(folder, "gemma3", **older)
    assert spec == spec_of(folder, "gemma3", **newer)
    assert (spec.rope, spec.local_rope) == (RopeSpec(theta=5e5, kind="linear", factor=8.0), RopeSpec(theta=2e3))
    assert spec_of(folder, "gemma2", final_logit_softcapping=None, attn_logit_softcapping=20).attention_softcap == 20
    assert spec_of(folder, "gemma2", final_logit_softcapping=None).logits_softcap is None
    assert spec_of(folder, "llama", final_logit_softcapping=30.0).logits_softcap is None


def test_norms_of_gemmas_are_stored_less_one(tmp_path: Path) -> None:
    tensors = open_checkpoint(make_folder(tmp_path, "gemma3")).tensors
    assert {name for name, entry in tensors.items() if entry.plus} == {name for name in tensors if "norm" in name}


@pytest.mark.parametrize("front", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_model_that_sees_pictures(tmp_path: Path, front: str) -> None:
    """Its configuration holds what differs from the class's own figures; what is said of the whole counts
    for the text.
    """
    config = toy_config("gemma3", head_dim=256, num_attention_heads=8, num_key_value_heads=4)
    tensors = {front + name.removeprefix("model."): values for name, values in toy_tensors(config).items()}
    pictures = {
        "vision_tower.embeddings.weight": np.ones((4, 4)),
        "multi_modal_projector.mm_soft_emb_norm.weight": np.ones(4),
    }
    write_safetensors(tmp_path / "model.safetensors", tensors | pictures)
    text = {
        key: config[key]
        for key in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "vocab_size",
            "sliding_window",
            "rms_norm_eps",
        )
    }
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": text,
        "vision_config": {"hidden_size": 9},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    checkpoint = open_checkpoint(tmp_path)
    spec = checkpoint.spec
    assert (spec.architecture, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.eos_token_ids) == (
        "gemma3",
        8,
        4,
        256,
        (1, 106),
    )
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {
        n: v.shape for n, v in toy_tensors(config).items()
    }
    assert all(entry.name == name for name, entry in checkpoint.tensors.items())
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": [1]}))
    with pytest.raises(CheckpointError, match=r"text_config: seen \[1\], wanted an object"):
        open_checkpoint(tmp_path)


def test_matrices_of_phi3_that_lie_in_one_are_taken_apart(tmp_path: Path) -> None:
    config = toy_config("phi3")
    checkpoint = open_checkpoint(make_folder(tmp_path, "phi3"))
    tensors = toy_tensors(config)
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {
        name: values.shape for name, values in tensors.items()
    }
    for name, entry in checkpoint.tensors.items():
        assert np.array_equal(np.concatenate(list(iter_decoded_rows(entry))).reshape(entry.shape), tensors[name]), name
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 1}))
    with pytest.raises(
        CheckpointError, match=r"qkv_proj\.weight: seen \[128, 64\], wanted 96 rows, of q_proj, k_proj, v_proj"
    ):
        open_checkpoint(tmp_path)


def test_parts_beside_what_they_are_parts_of(tmp_path: Path) -> None:
    tensors = fused(config := toy_config("phi3"), toy_tensors(toy_config("phi3")))
    tensors["model.layers.1.mlp.up_proj.weight"] = np.ones((96, 64), np.float32)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight, too, wanted every matrix once"):
        open_checkpoint(tmp_path)


def test_quantised_matrices_in_one_have_as_many_rows_as_all_of_them(tmp_path: Path) -> None:
    tensors, _ = quantised(FORMS["gptq"], "model.layers.0.self_attn.qkv_proj", np.ones((96, 64), np.float32))
    whole = {
        name: ("F32", value.shape, value.tobytes())
        for name, value in toy_tensors(toy_config("phi3")).items()
        if "embed" in name
    }
    write_folder(tmp_path, toy_config("phi3") | {"quantization_config": FORMS["gptq"].config}, tensors | whole)
    with pytest.raises(
        CheckpointError, match=r"qkv_proj\.weight: seen \[96, 64\], wanted 128 rows, of q_proj, k_proj, v_proj"
    ):
        open_checkpoint(tmp_path)


def test_longrope(folder: Path) -> None:
    short, long = [1.0] * 8, [2.0] * 8
    scaling = {"type": "su", "short_factor": short, "long_factor": long}
    spec = spec_of(folder, rope_scaling=scaling, original_max_position_embeddings=64)
    assert spec.rope == RopeSpec(
        kind="longrope", factor=4.0, original_max_position=64, short_factors=tuple(short), long_factors=tuple(long)
    ) and spec.max_position == 256  # fmt: skip
    for change, message in (
        ({"short_factor": short[1:]}, "rope frequency factors: seen 7 of them, wanted 8"),
        ({"long_factor": None}, "rope frequency factors: seen 0 of them"),
        ({"long_factor": [0.0] * 8}, "long_factor: seen .* wanted a list of numbers above 0"),
        ({"long_factor": 3}, "long_factor: seen 3"),
    ):
        with pytest.raises(CheckpointError, match=message):
            spec_of(folder, rope_scaling=scaling | change)


def test_gemmas_of_other_kinds_are_refused(folder: Path) -> None:
    for changes, message in (
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported; homenode runs 'gelu_pytorch_tanh'"),
        ({"use_bidirectional_attention": True}, "attention to what comes later"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            spec_of(folder, "gemma3", **changes)


def test_missing_keys_of_mixtures_mean_what_transformers_takes_them_to_mean(folder: Path) -> None:
    absent = dict.fromkeys(
        ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
            "shared_expert_intermediate_size", "norm_topk_prob",
         "mlp_only_layers", "sliding_window"), "absent",
    )  # fmt: skip
    assert spec_of(folder, "mixtral", **absent).moe == MoeSpec(8, 2, 96, True)
    assert spec_of(folder, "mixtral", **absent).sliding_window is None
    assert spec_of(folder, "qwen2_moe", **absent).moe == MoeSpec(60, 4, 1408, False, shared_intermediate_size=5632)
    assert spec_of(folder, "qwen3_moe", **absent).moe == MoeSpec(128, 8, 768, False)


def test_layers_without_experts(folder: Path) -> None:
    def dense(**changes: Any) -> tuple[int, ...] | None:
        moe = spec_of(folder, "qwen3_moe", num_hidden_layers=6, **changes).moe
        return None if moe is None else moe.dense_layers

    assert dense(mlp_only_layers=[]) == ()
    assert dense(mlp_only_layers=[4, 1], decoder_sparse_step=2) == (0, 1, 2, 4)
    assert dense(mlp_only_layers=[0, 1, 2, 3, 4, 5]) is None and dense(num_experts=0) is None


def test_windows_of_mixtures(folder: Path) -> None:
    used = {"use_sliding_window": True, "sliding_window": 32, "num_hidden_layers": 5}
    alternating = spec_of(folder, "qwen2_moe", **used, max_window_layers=3)
    assert (alternating.sliding_window, alternating.sliding_layers) == (32, (True, False, True, False, False))
    assert (
        spec_of(folder, "qwen3_moe", **used).sliding_window,
        spec_of(folder, "qwen3_moe", **used).sliding_layers,
    ) == (32, ())
    assert spec_of(folder, "mixtral", sliding_window=32).sliding_window == 32


IMPOSSIBLE_MIXTURES: dict[str, tuple[dict[str, Any], str]] = {
    "more experts of a token than there are": ({"num_experts_per_tok": 7},
        "experts of a token: seen 7, wanted at most the 6 there are"),
    "no experts of a token": ({"num_experts_per_tok": 0}, "num_experts_per_tok: seen 0"),
    "experts of text": ({"num_experts": "6"}, "num_experts: seen '6'"),
    "too many experts": ({"num_experts": 5000}, "num_experts: seen 5000"),
    "too many experts in all": ({"num_experts": 4096, "num_hidden_layers": 100}, "4096 in each of 100 layers"),
    "layers of text": ({"mlp_only_layers": ["0"]}, "mlp_only_layers: seen"),
    "negative layers": ({"mlp_only_layers": [-1]}, "mlp_only_layers: seen"),
    "every zeroth layer": ({"decoder_sparse_step": 0}, "decoder_sparse_step: seen 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE_MIXTURES)
def test_mixtures_that_cannot_be(case: str, folder: Path) -> None:
    changes, message = IMPOSSIBLE_MIXTURES[case]
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match=message):
        spec_of(folder, "qwen3_moe", **changes)
