"""Latent attention beside transformers: DeepSeek V2 and V3, Kimi K2 and GLM-4.7-Flash as folders and GGUF files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.parity import Case, check_folder, check_stacked_gguf
from tests.model.transformers_models import make_model

pytestmark = pytest.mark.torch

SHAPE: dict[str, Any] = {
    "num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "kv_lora_rank": 32, "q_lora_rank": 24, "head_dim": 8,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2, "rms_norm_eps": 1e-6,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "attention.head_count_kv": 1, "attention.key_length": 40, "attention.value_length": 32, "attention.key_length_mla": 24,
    "attention.value_length_mla": 24, "attention.q_lora_rank": 24, "attention.kv_lora_rank": 32, "rope.dimension_count": 8, "expert_count": 8,
    "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_count": 2, "leading_dense_block_count": 1,
}  # fmt: skip
YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32, "rope.scaling.yarn_log_multiplier": 0.1,
}  # fmt: skip
GROUPS = {"n_group": 4, "topk_group": 2}
GROUP_KEYS = {"expert_group_count": 4, "expert_group_used_count": 2}
V2 = Case(
    "deepseek_v2",
    SHAPE | GROUPS | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0, "first_k_dense_replace": 1}
    | {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    KEYS | GROUP_KEYS | YARN_KEYS | {"rope.scaling.yarn_log_multiplier": 0.0707, "expert_weights_scale": 4.0},
    gguf_name="deepseek2",
)  # fmt: skip
V2_LITE = Case(
    "deepseek_v2",
    SHAPE | {"q_lora_rank": None, "topk_method": "greedy", "first_k_dense_replace": 1},
    {key: value for key, value in KEYS.items() if key != "attention.q_lora_rank"},
    gguf_name="deepseek2",
)
V3 = Case(
    "deepseek_v3",
    SHAPE | GROUPS | {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "num_mtp_layers": 0, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    KEYS | GROUP_KEYS | YARN_KEYS | {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5},
    gguf_name="deepseek2",
)  # fmt: skip
KIMI = replace(
    V3,
    changes={
        **V3.changes,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0},
    },
)
HALVES = replace(V3, changes={**V3.changes, "rope_interleave": False})
GLM = Case(
    "glm4_moe_lite", SHAPE | {"qk_nope_head_dim": 24, "v_head_dim": 32, "routed_scaling_factor": 1.8} | {"head_dim": 8}
)
SPARSE = {
    "index_topk": 512,
    "index_head_dim": 16,
    "index_n_heads": 4,
}  # of prompts shorter than that all is attended to
SPARSE_KEYS = {"attention.indexer.top_k": 512, "attention.indexer.head_count": 4, "attention.indexer.key_length": 16}
V32 = Case("deepseek_v32", {**V3.changes, **SPARSE}, {**V3.gguf_keys, **SPARSE_KEYS}, gguf_name="deepseek32")
GLM_5 = Case(
    "glm_moe_dsa",
    SHAPE | SPARSE | {"first_k_dense_replace": 1, "indexer_types": ["full", "shared", "shared"]},
    KEYS | SPARSE_KEYS | {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5},
    gguf_name="glm-dsa",
)  # fmt: skip
FOLDERS = {
    "V2": V2,
    "V2 lite": V2_LITE,
    "V3": V3,
    "Kimi": KIMI,
    "halves": HALVES,
    "GLM": GLM,
    "V3.2": V32,
    "GLM-5": GLM_5,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(FOLDERS[name], tmp_path, backend)


@pytest.mark.parametrize("name", ["V2", "V2 lite", "V3", "V3.2", "GLM-5"])
def test_a_gguf_file_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(FOLDERS[name], tmp_path, backend)


def test_contexts_in_which_an_indexer_would_choose_are_refused(tmp_path: Path) -> None:
    make_model("deepseek_v32", {**V32.changes, "index_topk": 64}, tmp_path)
    assert open_checkpoint(tmp_path).spec.max_position == 64


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"attention_bias": True}, UnsupportedError, "attention_bias"),
        ({"moe_layer_freq": 2}, UnsupportedError, "moe_layer_freq 2"),
        ({"topk_method": "random"}, UnsupportedError, "topk_method"),
        ({"kv_lora_rank": 0}, CheckpointError, "kv_lora_rank"),
        ({"kv_lora_rank": 4095}, UnsupportedError, "latent of 4095"),
        ({"v_head_dim": -3}, CheckpointError, "v_head_dim"),
        ({"qk_nope_head_dim": 10**9}, CheckpointError, "qk_nope_head_dim"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
) -> None:
    make_model("deepseek_v3", V3.changes, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(error, match=says):
        open_checkpoint(tmp_path)
