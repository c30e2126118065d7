"""Rarer families beside transformers: as folders, and as GGUF files where converters write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray
from homenode.errors import UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from tests.checkpoints import interleave_heads
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_file, check_folder, write_stacked_gguf
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
EPS = {"attention.layer_norm_epsilon": 1e-5}
EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2}
NORTH = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": [FULL, SLIDING, SLIDING, FULL],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "intermediate_size": 40,
    "prefix_dense_intermediate_size": 96,
    "sliding_window": 6,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "expert_selection_fn": "sigmoid",
    "logit_scale": 0.25,
    "rope_theta": 1e4,
    "pad_token_id": 0,
}
COHERE2_MOE = Case(
    "cohere2_moe",
    NORTH | {"rms_norm_eps": 1e-5},
    EXPERT_KEYS
    | {
        "feed_forward_length": 96,
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 80,
        "expert_weights_norm": True,
        "leading_dense_block_count": 1,
        "attention.sliding_window": 6,
        "attention.sliding_window_pattern": [False, True, True, False],
        "logit_scale": 0.25,
    },
    gguf_name="cohere2moe",
)
DBRX = Case(
    "dbrx",
    {
        "d_model": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 5e5},
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 2},
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        "pad_token_id": 0,
    },
    EPS
    | EXPERT_KEYS
    | {"feed_forward_length": 40, "attention.clamp_kqv": 2.0, "rope.freq_base": 5e5, "attention.head_count_kv": 2},
    bound=5e-4,  # what transformers itself is off by: toys have matrices of attention that take differences away
)
CODEGEN = {"n_embd": 64, "n_layer": 3, "n_head": 8, "n_inner": 96, "n_positions": 256, "rotary_dim": 4}
LONGCAT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 8,
    "num_layers": 2,
    "num_key_value_heads": 4,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 40,
    "n_routed_experts": 6,
    "zero_expert_num": 4,
    "moe_topk": 3,
    "routed_scaling_factor": 1.5,
    "pad_token_id": 0,
}
KIMI = Case(
    "kimi_linear",
    {
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
        "linear_head_dim": 12,
        "linear_num_heads": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "routed_scaling_factor": 1.5,
        "pad_token_id": 0,
    },
    EXPERT_KEYS
    | {
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 40,
        "expert_weights_scale": 1.5,
        "expert_gating_func": 2,
        "attention.head_count_kv": [0, 0, 1, 0],
        "attention.kv_lora_rank": 32,
        "attention.key_length": 40,
        "attention.value_length": 32,
        "attention.key_length_mla": 24,
        "attention.value_length_mla": 12,
        "rope.dimension_count": 8,
        "kda.head_dim": 12,
        "ssm.conv_kernel": 4,
    },
    gguf_name="kimi-linear",
    bound=3e-5,
)
OPT = {"ffn_dim": 96, "word_embed_proj_dim": 64, "pad_token_id": 0}
FOLDERS = {
    "cohere2_moe": COHERE2_MOE,
    "cohere2_moe-softmax": Case(
        "cohere2_moe",
        NORTH
        | {
            "expert_selection_fn": "softmax",
            "shared_expert_combination_strategy": "sum",
            "prefix_dense_sliding_window_pattern": 2,
            "attention_bias": True,
        },
    ),
    "dbrx": DBRX,
    "longcat_flash": Case("longcat_flash", LONGCAT, seed=1),
    "kimi_linear": KIMI,
    "opt": Case("opt", OPT),
    "opt-plain": Case("opt", OPT | {"enable_bias": False, "activation_function": "gelu", "tie_word_embeddings": True}),
    "codegen": Case("codegen", CODEGEN, seed=1),
    "persimmon": Case("persimmon", {"pad_token_id": 0}),
    "persimmon-plain": Case("persimmon", {"qk_layernorm": False, "pad_token_id": 0}),
}
STACKED = (COHERE2_MOE, DBRX, KIMI)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(FOLDERS[name], tmp_path, backend)


@pytest.mark.parametrize("case", STACKED, ids=lambda case: case.kind)
def test_a_gguf_file_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    def as_converted(tensor: str, values: FloatArray) -> tuple[Any, str]:
        """Rows of Cohere's q and k as its files have them."""
        heads = {"attn_q": 4, "attn_k": 2}.get(tensor.split(".")[-2], 0) if case is COHERE2_MOE else 0
        return np.ascontiguousarray(interleave_heads(values, heads) if heads else values), "F32"

    with quiet_and_on_one_thread():
        theirs = make_model(case.kind, case.changes, tmp_path, seed=case.seed)
        check_file(write_stacked_gguf(case, tmp_path, tmp_path / "m.gguf", as_converted), theirs, backend, case.bound)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("cohere2_moe", "expert_selection_fn", "tanh"),
        ("longcat_flash", "zero_expert_type", "copy"),
        ("longcat_flash", "router_bias", True),
        ("kimi_linear", "moe_router_activation_func", "softmax"),
        ("opt", "do_layer_norm_before", False),
        ("opt", "word_embed_proj_dim", 32),
    ],
)
def test_what_is_not_run_is_refused_by_name(name: str, field: str, value: object, tmp_path: Path) -> None:
    with quiet_and_on_one_thread():
        make_model(name, dict(FOLDERS[name].changes), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(UnsupportedError, match=field):
        open_checkpoint(tmp_path)


# Fields that other engines follow, and the class of transformers leaves alone.
FOLLOWED_ELSEWHERE = {
    "longcat_flash": frozenset(("norm_topk_prob",)),
    **dict.fromkeys(("cohere2_moe", "cohere2_moe-softmax"), frozenset(("rope_scaling",))),
}
# What the test of fields makes of a family otherwise. Published folders of DBRX have the base of the rope in
# attn_config alone, from where the class of transformers does not take it: it has to be the one that this takes for
# granted.
OF_FIELDS = {
    "dbrx": {
        "attn_config": {**DBRX.changes["attn_config"], "clip_qkv": 1.0, "rope_theta": 1e4},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    case = FOLDERS[name]
    changes = {**case.changes, **OF_FIELDS.get(name, {})}
    refused = FOLLOWED_ELSEWHERE.get(name, frozenset())
    check_fields(case.kind, changes, tmp_path / "model", refused=refused, bound=2 * case.bound)
