"""Hugging Face folders: what configurations mean, which weight files count, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint import ModelSpec, RopeSpec, open_checkpoint
from homenode.model.checkpoint.fallback_decode import iter_decoded_rows
from homenode.model.checkpoint.spec import MixtureSpec
from tests.checkpoints import CLASSES, fused, make_folder, make_gguf, safetensors_bytes, toy_config, toy_tensors, write_safetensors
from tests.memory import memory_headroom
from tests.paths import STORIES, STORIES_MIXTURE, needs_data
from tests.quantised_folders import FORMS, quantised, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def spec_of(folder: Path, architecture: str = "llama", generation: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    """The spec after config.json of the folder is replaced by the toy one with `changes` (the weights stay)."""
    config = toy_config(architecture) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return open_checkpoint(folder).spec


def test_the_figures_of_a_folder(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.spec == ModelSpec(
        architecture="llama", hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=128,
        max_position=256, rms_norm_eps=1e-5, rope=RopeSpec(), tie_word_embeddings=False, bos_token_id=1, eos_token_ids=(2,),
    )  # fmt: skip
    assert checkpoint.path == folder and checkpoint.metadata["config.json"] == json.loads((folder / "config.json").read_text())
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {n: v.shape for n, v in toy_tensors(toy_config()).items()}


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


MIXTURES = {
    "mixtral": MixtureSpec(4, 2, 96, True),
    "qwen2_moe": MixtureSpec(4, 3, 64, False, shared_intermediate_size=32),
    "qwen3_moe": MixtureSpec(6, 2, 32, True, dense_layers=(0,)),
}


@pytest.mark.parametrize("architecture", MIXTURES)
def test_mixtures(architecture: str, folder: Path) -> None:
    spec = spec_of(folder, architecture)
    assert (spec.architecture, spec.mixture) == (architecture, MIXTURES[architecture])
    assert (spec.attention_bias, spec.output_bias) == (architecture == "qwen2_moe", False)


def test_missing_keys_of_gemmas_mean_what_transformers_takes_them_to_mean(folder: Path) -> None:
    absent = dict.fromkeys(("sliding_window", "head_dim", "rope_theta", "query_pre_attn_scalar", "hidden_act"), "absent")
    spec = spec_of(folder, "gemma2", **absent)
    assert (spec.sliding_window, spec.sliding_layers, spec.head_dim, spec.rope.theta, spec.local_rope) == (
        4096,
        (True, False),
        256,
        1e4,
        None,
    )
    assert (spec.embedding_scale, spec.attention_scale, spec.attention_softcap, spec.logits_softcap) == (8.0, 1 / 16, 50.0, 30.0)
    spec = spec_of(folder, "gemma3", num_hidden_layers=7, **absent)
    assert (spec.sliding_window, spec.sliding_layers) == (4096, (True, True, True, True, True, False, True))
    assert (spec.rope, spec.local_rope, spec.attention_softcap, spec.logits_softcap) == (
        RopeSpec(theta=1e6),
        RopeSpec(theta=1e4),
        None,
        None,
    )
    assert spec_of(folder, architectures="absent", model_type="gemma3_text", hidden_act="absent").architecture == "gemma3"


def test_both_spellings_of_gemma_s_ropes_and_windows(folder: Path) -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    older = {"rope_theta": 5e5, "rope_local_base_freq": 2e3, "rope_scaling": linear, "sliding_window_pattern": 2}
    parameters = {"full_attention": linear | {"rope_theta": 5e5}, "sliding_attention": {"rope_type": "default", "rope_theta": 2e3}}
    newer = {"rope_parameters": parameters, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": "absent"}
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
    """Its configuration holds what differs from the class's own figures; what is said of the whole counts for the text."""
    config = toy_config("gemma3", head_dim=256, num_attention_heads=8, num_key_value_heads=4)
    tensors = {front + name.removeprefix("model."): values for name, values in toy_tensors(config).items()}
    pictures = {"vision_tower.embeddings.weight": np.ones((4, 4)), "multi_modal_projector.mm_soft_emb_norm.weight": np.ones(4)}
    write_safetensors(tmp_path / "model.safetensors", tensors | pictures)
    text = {
        key: config[key]
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "sliding_window", "rms_norm_eps")
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
    assert (spec.architecture, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.eos_token_ids) == ("gemma3", 8, 4, 256, (1, 106))
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {n: v.shape for n, v in toy_tensors(config).items()}
    assert all(entry.name == name for name, entry in checkpoint.tensors.items())
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": [1]}))
    with pytest.raises(CheckpointError, match="hidden_size: seen nothing"):
        open_checkpoint(tmp_path)


def test_matrices_of_phi3_that_lie_in_one_are_taken_apart(tmp_path: Path) -> None:
    config = toy_config("phi3")
    checkpoint = open_checkpoint(make_folder(tmp_path, "phi3"))
    tensors = toy_tensors(config)
    assert {name: entry.shape for name, entry in checkpoint.tensors.items()} == {name: values.shape for name, values in tensors.items()}
    for name, entry in checkpoint.tensors.items():
        assert np.array_equal(np.concatenate(list(iter_decoded_rows(entry))).reshape(entry.shape), tensors[name]), name
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 1}))
    with pytest.raises(CheckpointError, match=r"qkv_proj\.weight: seen \[128, 64\], wanted 96 rows, of q_proj, k_proj, v_proj"):
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
    whole = {name: ("F32", value.shape, value.tobytes()) for name, value in toy_tensors(toy_config("phi3")).items() if "embed" in name}
    write_folder(tmp_path, toy_config("phi3") | {"quantization_config": FORMS["gptq"].config}, tensors | whole)
    with pytest.raises(CheckpointError, match=r"qkv_proj\.weight: seen \[96, 64\], wanted 128 rows, of q_proj, k_proj, v_proj"):
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
        ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
         "mlp_only_layers", "sliding_window"), "absent",
    )  # fmt: skip
    assert spec_of(folder, "mixtral", **absent).mixture == MixtureSpec(8, 2, 96, True)
    assert spec_of(folder, "mixtral", **absent).sliding_window is None
    assert spec_of(folder, "qwen2_moe", **absent).mixture == MixtureSpec(60, 4, 1408, False, shared_intermediate_size=5632)
    assert spec_of(folder, "qwen3_moe", **absent).mixture == MixtureSpec(128, 8, 768, False)


def test_layers_without_experts(folder: Path) -> None:
    def dense(**changes: Any) -> tuple[int, ...] | None:
        mixture = spec_of(folder, "qwen3_moe", num_hidden_layers=6, **changes).mixture
        return None if mixture is None else mixture.dense_layers

    assert dense(mlp_only_layers=[]) == ()
    assert dense(mlp_only_layers=[4, 1], decoder_sparse_step=2) == (0, 1, 2, 4)
    assert dense(mlp_only_layers=[0, 1, 2, 3, 4, 5]) is None and dense(num_experts=0) is None


def test_windows_of_mixtures(folder: Path) -> None:
    used = {"use_sliding_window": True, "sliding_window": 32, "num_hidden_layers": 5}
    alternating = spec_of(folder, "qwen2_moe", **used, max_window_layers=3)
    assert (alternating.sliding_window, alternating.sliding_layers) == (32, (True, False, True, False, False))
    assert (spec_of(folder, "qwen3_moe", **used).sliding_window, spec_of(folder, "qwen3_moe", **used).sliding_layers) == (32, ())
    assert spec_of(folder, "mixtral", sliding_window=32).sliding_window == 32


IMPOSSIBLE_MIXTURES: dict[str, tuple[dict[str, Any], str]] = {
    "more experts of a token than there are": ({"num_experts_per_tok": 7}, "experts of a token: seen 7, wanted at most the 6 there are"),
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


def test_missing_keys_mean_what_transformers_takes_them_to_mean(folder: Path) -> None:
    absent = dict.fromkeys(
        ("num_key_value_heads", "rope_theta", "rms_norm_eps", "max_position_embeddings", "head_dim", "bos_token_id"), "absent"
    )
    spec = spec_of(folder, **absent)
    assert (spec.num_kv_heads, spec.rope.theta, spec.rms_norm_eps, spec.max_position, spec.head_dim, spec.bos_token_id) == (
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


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
YARN = {"factor": 4.0, "original_max_position_embeddings": 256}
ROPES: dict[str, tuple[dict[str, Any], RopeSpec, int]] = {
    "plain": ({"rope_theta": 5e5}, RopeSpec(theta=5e5), 256),
    "null scaling": ({"rope_scaling": None, "rope_theta": 1000000}, RopeSpec(theta=1e6), 256),
    "newer spelling": ({"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeSpec(theta=5e5), 256),
    "linear, older spelling": ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeSpec(kind="linear", factor=2.0), 256),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, RopeSpec(kind="dynamic", factor=2.0, original_max_position=256), 256),
    "llama3": ({"rope_scaling": LLAMA3}, RopeSpec(kind="llama3", factor=8.0, original_max_position=128), 256),
    "llama3, newer spelling": (
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, RopeSpec(theta=5e5, kind="llama3", factor=8.0, original_max_position=128), 256,
    ),
    "yarn extends": ({"rope_scaling": {"type": "yarn"} | YARN}, RopeSpec(kind="yarn", factor=4.0, original_max_position=256), 1024),
    "yarn without a factor": (
        {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64}}, RopeSpec(kind="yarn", factor=4.0, original_max_position=64), 256,
    ),
    "yarn with everything": (
        {"rope_scaling": {"rope_type": "yarn", "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2} | YARN},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=256, attention_factor=1.5, beta_fast=16.0, beta_slow=2.0), 1024,
    ),
    "yarn with mscales": (
        {"rope_scaling": {"rope_type": "yarn", "mscale": 2.0, "mscale_all_dim": 1.0} | YARN},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=256, attention_factor=(0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)), 1024,
    ),
    "part of the head": ({"partial_rotary_factor": 0.5}, RopeSpec(rotary_dim=8), 256),
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
    named = spec_of(folder, "qwen3", sliding_window=32, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])
    assert (named.sliding_window, named.sliding_layers) == (32, (True, False))
    none = spec_of(folder, "qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=2)
    assert (none.sliding_window, none.sliding_layers) == (None, ())


def test_generation_config_wins(folder: Path) -> None:
    spec = spec_of(
        folder, generation={"eos_token_id": [5, 7, 5], "bos_token_id": 3, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "do_sample": True}
    )
    assert (spec.eos_token_ids, spec.bos_token_id, spec.generation) == ((5, 7), 3, {"temperature": 0.6, "top_p": 0.9, "top_k": 20})
    assert spec_of(folder, generation={"eos_token_id": None}).eos_token_ids == (2,)
    assert spec_of(folder, generation={"eos_token_id": 9}).eos_token_ids == (9,)
    assert spec_of(folder, generation={}, eos_token_id=[4, 6, 4000, -1]).eos_token_ids == (4, 6)  # 4000 and -1 are no tokens of this model
    assert spec_of(folder, generation={}, eos_token_id=None, bos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize("shards", [2, 5])
def test_shards(shards: int, tmp_path: Path) -> None:
    one, many = open_checkpoint(make_folder(tmp_path / "a")), open_checkpoint(make_folder(tmp_path / "b", shards=shards))
    assert one.spec == many.spec and {n: e.shape for n, e in one.tensors.items()} == {n: e.shape for n, e in many.tensors.items()}
    (tmp_path / "b" / "model.safetensors.index.json").unlink()  # then every .safetensors file counts
    assert open_checkpoint(tmp_path / "b").tensors == many.tensors


def test_shards_behind_links_as_in_the_hub_cache(tmp_path: Path) -> None:
    make_folder(tmp_path / "blobs", shards=2)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(Path("..") / "blobs" / file.name)
    assert len(open_checkpoint(tmp_path / "snapshot").tensors) == len(toy_tensors(toy_config()))


def test_consolidated_files_beside_the_shards_do_not_count(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, shards=2)
    (folder / "model.safetensors.index.json").unlink()
    write_safetensors(folder / "consolidated.safetensors", toy_tensors(toy_config()))
    assert all(not entry.file.name.startswith("consolidated") for entry in open_checkpoint(folder).tensors.values())


def test_storage_is_what_most_bytes_are_in(tmp_path: Path) -> None:
    assert [open_checkpoint(make_folder(tmp_path / d, dtype=d)).spec.storage for d in ("F32", "F16", "BF16", "F64")] == [
        "F32",
        "F16",
        "BF16",
        "F64",
    ]


def test_a_folder_of_both_kinds_is_read_as_a_folder(folder: Path) -> None:
    make_gguf(folder / "model.gguf")
    assert open_checkpoint(folder).path == folder
    (folder / "model.safetensors").unlink()
    assert open_checkpoint(folder).path == folder / "model.gguf"


@needs_data
def test_real_folders() -> None:
    checkpoint = open_checkpoint(STORIES)
    assert checkpoint.spec.architecture == "llama" and len(checkpoint.tensors) == 47 and checkpoint.spec.tie_word_embeddings
    assert "tokenizer_config.json" in checkpoint.metadata
    mixture = open_checkpoint(STORIES_MIXTURE).spec.mixture
    assert mixture == MixtureSpec(num_experts=4, experts_per_token=2, intermediate_size=172, normalise=True)


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported; homenode runs LlamaForCausalLM"),
    "an architecture of a million letters": ({"architectures": ["x" * 10**6]}, "is not supported"),
    "mixture of experts": ({"architectures": ["DeepseekV3ForCausalLM"]}, "DeepseekV3ForCausalLM"),
    "another head": ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    "no architecture": ({"architectures": "absent", "model_type": "absent"}, "'none' is not supported"),
    "quantised weights": ({"quantization_config": {"quant_method": "hqq", "bits": 4}}, "quantised by 'hqq'"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    "another rope": ({"rope_scaling": {"rope_type": "proportional", "factor": 4}}, "rope scaling 'proportional'"),
    "ropes by layer": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between kinds of layers"),
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
    "rope of no length": ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}}, "original_max_position_embeddings: seen 0"),
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"", "no valid JSON"),
        ("config.json", b"[1]", "a JSON list"),
        ("config.json", b"\xff\xfe", "no valid JSON"),
        ("config.json", b"[" * 100_000, "nested too deeply"),
        ("config.json", b'{"hidden_size":' + b"[" * 900 + b"]" * 900 + b"}", "architecture"),
        ("config.json", b'{"a":"' + b"x" * 2**24 + b'"}', "at most 16MiB of JSON"),
        ("generation_config.json", b"{", "no valid JSON"),
        ("generation_config.json", b'{"eos_token_id": "x"}', "eos_token_id"),
        ("generation_config.json", b'{"temperature": -1}', "temperature"),
        ("generation_config.json", b'{"top_k": 1.5}', "top_k"),
        ("tokenizer_config.json", b"{", "no valid JSON"),
    ],
)
def test_json_files_that_cannot_be(name: str, content: bytes, message: str, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises((CheckpointError, UnsupportedError), match=message) as caught:
        open_checkpoint(folder)
    assert name in caught.value.message


def index_of(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(change(index["weight_map"])))


INDEXES: dict[str, tuple[Any, str]] = {
    "no map": (lambda m: {}, "weight_map: seen NoneType"),
    "an empty map": (lambda m: {"weight_map": {}}, "weight_map: seen dict"),
    "a list": (lambda m: [m], "a JSON list"),
    "a number for a file": (lambda m: {"weight_map": m | {"lm_head.weight": 3}}, "none of that name in 3"),
    "a missing shard": (lambda m: {"weight_map": m | {"lm_head.weight": "model-3.safetensors"}}, r"2 of 3 shards, without model-3\.safetensors"),
    "a tensor no shard holds": (lambda m: {"weight_map": m | {"more": "model-00001-of-00002.safetensors"}}, "tensor 'more'"),
    "a tensor in another shard": (
        lambda m: {"weight_map": {k: v.replace("00001-", "0000x-").replace("00002-", "00001-").replace("0000x-", "00002-") for k, v in m.items()}},
        "wanted it in the file the index names",
    ),
    "the folder above": (lambda m: {"weight_map": m | {"more": "../model/model-00001-of-00002.safetensors"}}, "file name: seen '../model/"),
    "hidden dots": (lambda m: {"weight_map": m | {"more": "a/../../b.safetensors"}}, "file name"),
    "an absolute path": (lambda m: {"weight_map": m | {"more": "/etc/passwd"}}, "file name: seen '/etc/passwd'"),
    "an empty name": (lambda m: {"weight_map": m | {"more": ""}}, "file name: seen ''"),
    "a NUL": (lambda m: {"weight_map": m | {"more": "a\0b"}}, "file name"),
    "half a surrogate": (lambda m: {"weight_map": m | {"more": "\ud800"}}, "file name"),
    "a name of 10000 letters": (lambda m: {"weight_map": m | {"more": "x" * 10_000}}, "file name"),
    "the index itself": (lambda m: {"weight_map": m | {"more": "model.safetensors.index.json"}}, "header length"),
    "the folder itself": (lambda m: {"weight_map": m | {"more": "."}}, "file name|regular file"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_indexes_that_cannot_be(case: str, tmp_path: Path) -> None:
    change, message = INDEXES[case]
    folder = make_folder(tmp_path / "model", shards=2)
    index_of(folder, change)
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(folder)
    assert len(caught.value.message) < 1000


def test_a_shard_in_a_loop_of_links(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(shard.name)
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        open_checkpoint(folder)


def test_tensors_twice_without_an_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    write_safetensors(folder / "b.safetensors", toy_tensors(toy_config()))
    with pytest.raises(CheckpointError, match=r"seen it also in a\.safetensors"):
        open_checkpoint(folder)


def test_a_model_without_an_embedding(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"x": ("F32", [1], bytes(4))}))
    with pytest.raises(CheckpointError, match="token embedding: seen none among 1 tensors"):
        open_checkpoint(folder)


def test_paths_that_are_no_model(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no model in this folder"):
        open_checkpoint(tmp_path / "empty")
    with pytest.raises(UserError, match="give the folder"):
        open_checkpoint(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="no pickled files"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        open_checkpoint(folder)


def test_the_classes_of_the_makers_are_ours() -> None:
    from homenode.model.checkpoint.folder_spec import FAMILIES

    assert {name: family.architecture for name, family in FAMILIES.items()} == {name: key for key, name in CLASSES.items()}
