"""Further decoders beside transformers: as folders, and as GGUF files where converters write them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_stacked_gguf

pytestmark = pytest.mark.torch

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW_KEYS = {"attention.sliding_window": 6, "attention.sliding_window_pattern": [False, True, True]}
EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 40}
_PART = {"rope_type": "default", "partial_rotary_factor": 0.5}
MIMO = Case(
    "mimo_v2_flash",
    {
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": 6,
        "layer_types": [FULL, SLIDING, SLIDING],
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "attention_value_scale": 0.6,
        "rope_parameters": {FULL: {**_PART, "rope_theta": 5e5}, SLIDING: {**_PART, "rope_theta": 1e4}},
    },
    {
        **WINDOW_KEYS,
        **EXPERT_KEYS,
        "rope.freq_base": 5e5,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 12,
        "attention.head_count_kv": [1, 2, 2],
        "attention.value_length": 16,
        "attention.value_scale": 0.6,
    },
    gguf_name="mimo2",
)
LAGUNA = Case(
    "laguna",
    {
        "head_dim": 16,
        "num_attention_heads_per_layer": [4, 6, 4],
        "sliding_window": 6,
        "layer_types": [FULL, SLIDING, SLIDING],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 24,
        "moe_routed_scaling_factor": 1.5,
        "rope_parameters": {FULL: {**_PART, "rope_theta": 5e5}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
        "pad_token_id": 0,
    },
    {
        **WINDOW_KEYS,
        **EXPERT_KEYS,
        "rope.freq_base": 5e5,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 8,
        "rope.dimension_count_swa": 16,
        "attention.head_count": [4, 6, 4],
        "expert_shared_feed_forward_length": 24,
        "expert_weights_scale": 1.5,
        "expert_gating_func": 2,
    },
)
GRANITE_SWA = Case(
    "granite_swa",
    {
        "sliding_window": 6,
        "layer_types": [FULL, SLIDING, SLIDING],
        "tie_word_embeddings": False,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.11,
        "residual_multiplier": 0.4,
        "logits_scaling": 0.6,
    },
    {
        **WINDOW_KEYS,
        "embedding_scale": 3.0,
        "attention.scale": 0.11,
        "residual_scale": 0.4,
        "logit_scale": 0.6,
    },
    interleaved=True,
)
GPTJ = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96, "n_positions": 256, "rotary_dim": 8}
GPT_NEO = {
    "num_layers": 3,
    "num_heads": 4,
    "window_size": 6,
    "attention_types": [[["global", "local"], 1], [["local"], 1]],
}
FLEX_OLMO = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48, "pad_token_id": 0}
# transformers saves convolutions of queries, keys and values as if they were equally wide.
OLMO_HYBRID = {
    "num_attention_heads": 4,
    "layer_types": ["linear_attention", FULL, "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 12,
    "pad_token_id": 0,
}
LFM3 = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["conv", FULL, SLIDING, "conv"],
    "sliding_window": 6,
    "conv_L_cache": 4,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
FOLDERS = {
    "lfm3": Case("lfm3", LFM3),
    "lfm3-plain": Case("lfm3", LFM3 | {"use_sandwich_norm": False, "use_attention_gate": False, "conv_bias": True}),
    "ministral": Case(
        "ministral",
        {"sliding_window": 6, "layer_types": [SLIDING, FULL, SLIDING], "head_dim": 16, "pad_token_id": 0},
    ),
    "ministral-windows": Case("ministral", {"sliding_window": 6, "head_dim": 32, "pad_token_id": 0}),
    "granite_swa": GRANITE_SWA,
    "granite_swa-without-ropes": Case(
        "granite_swa",
        {**GRANITE_SWA.changes, "layer_rope_theta": [0, 5e4, 5e4], "attention_bias": True, "mlp_bias": True},
    ),
    "gptj": Case("gptj", GPTJ),
    "gpt_neo": Case("gpt_neo", GPT_NEO),
    "nanochat": Case("nanochat", {"final_logit_softcapping": 5.0, "attention_bias": True, "pad_token_id": 0}),
    "laguna": LAGUNA,
    "laguna-by-element": Case(
        "laguna",
        {
            **LAGUNA.changes,
            "gating": "per-element",
            "layer_types": None,
            "num_attention_heads_per_layer": None,
            "attention_bias": True,
            "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 1e4}},
        },
    ),
    "olmo_hybrid": Case("olmo_hybrid", OLMO_HYBRID, bound=3e-5),
    "olmo_hybrid-without-rope": Case(
        "olmo_hybrid",
        OLMO_HYBRID
        | {"linear_allow_neg_eigval": False, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
        bound=3e-5,
    ),
    "flex_olmo": Case("flex_olmo", FLEX_OLMO | {"attention_bias": True, "norm_topk_prob": True}),
    "mimo_v2_flash": MIMO,
    "mimo_v2_flash-alike": Case(
        "mimo_v2_flash",
        {
            **MIMO.changes,
            "v_head_dim": 24,
            "attention_bias": True,
            "layer_types": [FULL] * 3,
            "mlp_layer_types": ["dense"] * 3,
        },
    ),
}
STACKED = (MIMO, LAGUNA, GRANITE_SWA)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(FOLDERS[name], tmp_path, backend)


@pytest.mark.parametrize("case", STACKED, ids=lambda case: case.kind)
def test_a_gguf_file_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(case, tmp_path, backend)


# Fields whose values no model has, which a toy with others of them does not use.
REFUSED = {
    **dict.fromkeys(("granite_swa", "granite_swa-without-ropes"), "rope_theta"),
    "laguna-by-element": "gating",
    "olmo_hybrid-without-rope": "rope_type",
    "mimo_v2_flash-alike": "n_group topk_group routed_scaling_factor rope_theta rope_type",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    case = FOLDERS[name]
    refused = frozenset(REFUSED.get(name, "").split())
    check_fields(case.kind, case.changes, tmp_path / "model", refused=refused, bound=2 * case.bound)
