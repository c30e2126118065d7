"""Configurations of every architecture that there is, damaged in every field: a model or one clear error comes out,
before anything large is allocated; and the tensors that the figures ask for are checked against those that are there.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.dtypes import BY_NAME
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.checkpoint.folder_spec import spec_from_config
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import FACTORS, GgufConfig
from homenode.model.config.known_fields import READ as READ_FIELDS
from homenode.model.config.known_keys import READ as READ_KEYS
from homenode.model.formats.fields import Fields
from homenode.model.formats.limits import EMBEDDING
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.model.weights.names import match_tensors
from tests.checkpoints import write_zeros
from tests.examples import MANY, lives
from tests.memory import memory_headroom

HEADROOM = 2**29
# What configurations call the figures of a small model, whichever architecture reads them.
FIGURES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 64, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
    "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "sliding_window": 8,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.0625, "logits_scaling": 8.0,
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 16, "mamba_num_heads": 4,
    "mamba_head_dim": 16, "ssm_state_size": 16,
    "n_groups": 2, "moe_shared_expert_intermediate_size": 32, "conv_L_cache": 3, "num_dense_layers": 1, "num_heads": 4,
    "state_size": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
# What single architectures want in place of that; None: nothing.
OWN: dict[str, dict[str, Any]] = {
    "embedding_gemma": {"use_bidirectional_attention": True},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {"hybrid_override_pattern": "M*-E"},
    "gemma4": {
        "rope_theta": None, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 1,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "enable_moe_block": True,
        "top_k_experts": 2,
    },
    "gemma3n": {
        "rope_theta": None, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64, "laurel_rank": 8, "activation_sparsity_pattern": [0.5, 0.95, 0.0, 0.0],
    },
    "llama4": {"num_experts_per_tok": 1},
    "mimo_v2_flash": {"partial_rotary_factor": 0.5},
    "gptj": {"rotary_dim": 8},
    "opt": {"head_dim": None},
    "kimi_linear": {
        "q_lora_rank": None, "linear_num_heads": 4, "linear_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "longcat_flash": {"num_layers": 2, "zero_expert_num": 2},
    "codegen": {"rotary_dim": 8},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "laguna": {"num_attention_heads_per_layer": [4, 6, 4, 6], "layer_types": ["full_attention",
    "sliding_attention"] * 2},
    "minimax_m3": {
        "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3, "moe_layer_freq": [0, 1, 1, 1],
        "index_n_heads": 2, "index_head_dim": 16,
        "index_block_size": 16, "dense_intermediate_size": 64, "shared_intermediate_size": 32,
    },
    "deepseek_v4": {
        "num_key_value_heads": 1, "compress_rates": {"heavily_compressed_attention": 8}, "num_hash_layers": 1,
        "o_groups": 2, "o_lora_rank": 8,
        "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4, "hc_mult": 2, "compress_ratios": [0, 4, 128, 4],
    },
}  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.sampled_from([-1, 0, 1, 2, 3, 5, 7, 31, 2**31, 2**63]),
    st.floats(), st.sampled_from([-1.0, 0.0, 1e-300, 1e300, 0.5, 2.5]), st.text(max_size=6),
    st.lists(st.one_of(st.integers(-2, 5), st.booleans(), st.text(max_size=3), st.none()), max_size=5),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "full_attention", "rope_theta"]),
        st.one_of(st.integers(-1, 9), st.text(max_size=3)), max_size=3),
)  # fmt: skip
FUZZ = settings(
    max_examples=len(lives(3)),  # of each architecture, of which there are 114
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def config_of(architecture: Architecture) -> dict[str, Any]:
    figures = FIGURES | {"architectures": [architecture.folder.class_name]} | OWN.get(architecture.name, {})
    return {name: value for name, value in figures.items() if value is not None}


def folder_spec(config: dict[str, Any]) -> ModelSpec:
    empty = Fields(Path("generation_config.json"), {})
    return spec_from_config(FolderConfig(Fields(Path("config.json"), config), empty, has_output=True, storage="F32"))


def damaged_fields(architecture: Architecture) -> st.SearchStrategy[dict[str, Any]]:
    names = sorted(READ_FIELDS | architecture.folder.fields - {"architectures"})
    return st.dictionaries(st.sampled_from(names), st.one_of(ODD, st.just("absent")), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_damaged_fields_of_a_folder(name: str) -> None:
    architecture = ARCHITECTURES[name]
    valid = config_of(architecture)
    spec = folder_spec(valid)
    assert spec.architecture == name

    @FUZZ
    @given(damaged_fields(architecture))
    def survive(changes: dict[str, Any]) -> None:
        config = {key: value for key, value in (valid | changes).items() if value != "absent"}
        with memory_headroom(HEADROOM):
            try:
                spec = folder_spec(config)
                assert spec.num_layers > 0 and spec.head_dim > 0
            except (CheckpointError, UnsupportedError) as error:
                assert len(error.message) > 20

    survive()


def write_model(folder: Path, architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """A folder with the tensors that its figures ask for, every matrix by itself; their shapes."""
    config = config_of(architecture)
    (folder / "config.json").write_text(json.dumps(config))
    expected = expected_tensors(architecture.parameters, folder_spec(config))
    shapes = {each.name: tuple(each.shape) for each in expected}
    write_zeros(folder / "model.safetensors", shapes)
    return shapes


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tensors_that_are_missing_or_of_another_shape(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]
    shapes = write_model(tmp_path, architecture)
    match_tensors(architecture, open_checkpoint(tmp_path))
    kinds = {re.sub(r"\d+", "0", each): each for each in shapes}
    first, each_of = (0, 1) if MANY else (list(ARCHITECTURES).index(name) % 3, 3)  # most have names of others as well
    for number, each in list(enumerate(kinds.values()))[first::each_of]:
        shape = shapes[each]
        others = ((*shape[:-1], shape[-1] + 2), (2, *shape), (shape[0] + 1, *shape[1:]), None)
        for changed in others if MANY else (others[number % 4],):
            rest = {key: value for key, value in shapes.items() if key != each}
            write_zeros(tmp_path / "model.safetensors", rest if changed is None else rest | {each: changed})
            with pytest.raises((CheckpointError, UnsupportedError), match=r"\w+.*(seen|missing|shape)"):
                match_tensors(architecture, open_checkpoint(tmp_path))


KEYS: dict[str, Any] = {
    "embedding_length": 32, "feed_forward_length": 64, "block_count": 4, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.key_length": 16,
    "attention.value_length": 16, "context_length": 256, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e4, "expert_count": 4,
    "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32,
}  # fmt: skip
DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "rope.dimension_count": 8,
}
LATENT = {
    "attention.head_count_kv": 1, "attention.key_length": 24, "attention.value_length": 16,
    "attention.key_length_mla": 24, "attention.value_length_mla": 16,
    "attention.kv_lora_rank": 16, "attention.q_lora_rank": 24, "rope.dimension_count": 8,
}  # fmt: skip
INDEXER = {"attention.indexer.head_count": 2, "attention.indexer.key_length": 16, "attention.indexer.top_k": 8}
SCAN = {key: value for key, value in DELTA.items() if key.startswith("ssm.")} | {"attention.head_count_kv": [0, 2] * 2}
OWN_KEYS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("granitemoehybrid", "mamba2"), SCAN),
    "bamba": SCAN | {"expert_count": None},
    "falcon_h1": SCAN | {"attention.head_count_kv": 2},
    "nemotron_h": SCAN | {"attention.head_count_kv": [0, 2, 0, 0], "feed_forward_length": [0, 0, 64, 64]},
    **{key: {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2] * 2} for key in ("lfm2", "lfm2_moe", "lfm3")},
    "llama4": {"expert_used_count": 1},
    "gemma4": {
        "attention.sliding_window": 8, "attention.sliding_window_pattern": [True] * 4, "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.shared_kv_layers": 1, "embedding_length_per_layer_input": 8,
    },
    "gemma3n": {
        "attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False] * 2,
        "attention.shared_kv_layers": 1,
        "embedding_length_per_layer_input": 8, "activation_sparsity_scale": [1.5, 0.5, -math.inf, -math.inf],
    },
    "apertus": {"xielu.alpha_p": [0.5] * 4, "xielu.alpha_n": [-0.5] * 4, "xielu.beta": [0.5] * 4,
        "xielu.eps": [-1e-6] * 4},
    "muse_glimmer": {"logit_scale": 0.5},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "mistral4", "youtu", "longcat_flash"),
    LATENT),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), LATENT | INDEXER),
    "minimax_m3": INDEXER | {"expert_gating_func": 2, "attention.indexer.block_size": 16,
        "attention.indexer.local_blocks": 1},
    "deepseek_v4": INDEXER | {
        "attention.head_count_kv": 1, "attention.compress_ratios": [0, 4, 128, 4],
        "attention.compress_rope_freq_base": 16e4,
        "attention.sliding_window": 8, "rope.dimension_count": 8, "attention.q_lora_rank": 24,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": 8, "hyper_connection.count": 2, "hyper_connection.sinkhorn_iterations": 3,
        "hyper_connection.epsilon": 1e-6, "hash_layer_count": 1, "expert_gating_func": 4,
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), DELTA),
    "mpt": {"attention.max_alibi_bias": 8.0},
    "bailing_moe_v2": {"expert_gating_func": 2},
    "kimi_linear": LATENT | {
        "attention.head_count_kv": [0, 1] * 2, "expert_gating_func": 2, "kda.head_dim": 16, "ssm.conv_kernel": 4,
    },
    "laguna": {"attention.sliding_window": 8, "attention.head_count": [4, 6] * 2, "expert_gating_func": 2},
    "mimo_v2_flash": {
        "attention.sliding_window": 8, "attention.sliding_window_pattern": [False, True] * 2,
        "attention.value_length": 8, "expert_gating_func": 2,
        "attention.head_count_kv": [1, 2] * 2,
    },
}  # fmt: skip


def gguf_spec(architecture: Architecture, keys: dict[str, Any], folder: Path) -> ModelSpec:
    """The figures of a file with these keys and the tensors that tell figures. Gemma 4 has divisors of its
    rope, too.
    """
    (file := folder / "m.gguf").write_bytes(np.ones(8, np.float32).tobytes())
    entry = lambda name, *shape: TensorEntry(name, BY_NAME["F32"], shape, file, 0, 4 * math.prod(shape))  # noqa: E731
    tensors = {EMBEDDING: entry(EMBEDDING, 64, 32)}
    for parameter in architecture.parameters:
        for layer in range(4):
            tensors.setdefault(
                each := parameter.name.format(layer=layer, expert=0, head=0, group=0), entry(each, 32, 32)
            )
    factors = {FACTORS: entry(FACTORS, 8)} if architecture.name == "gemma4" else {}
    metadata = {"tokenizer.ggml.tokens": ["a"]}
    return architecture.gguf.read(GgufConfig(Fields(file, keys), metadata, tensors, factors, architecture.name))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_damaged_keys_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]
    valid = {key: value for key, value in (KEYS | OWN_KEYS.get(name, {})).items() if value is not None}
    assert gguf_spec(architecture, valid, tmp_path).architecture == name
    names = sorted(READ_KEYS | architecture.gguf.keys)

    @FUZZ
    @given(st.dictionaries(st.sampled_from(names), st.one_of(ODD, st.just("absent")), min_size=1, max_size=3))
    def survive(changes: dict[str, Any]) -> None:
        keys = {key: value for key, value in (valid | changes).items() if value != "absent"}
        with memory_headroom(HEADROOM):
            try:
                assert gguf_spec(architecture, keys, tmp_path).num_layers > 0
            except (CheckpointError, UnsupportedError) as error:
                assert len(error.message) > 20

    survive()
