"""Decoders built as Llama with variations, beside transformers: as folders and as GGUF files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.config_fields import check_fields
from tests.model.parity import BOUND, Case, check_file, check_folder, check_gguf, check_stacked_gguf, write_stacked_gguf
from tests.model.transformers_models import LLAMA3, SIZES, make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
SLIDING, FULL = "sliding_attention", "full_attention"
TWO_ROPES = {
    "full_attention": {**YARN, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}
WINDOW_KEYS = {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False]}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.11,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.6,
}
MULTIPLIER_KEYS = {"embedding_scale": 3.0, "attention.scale": 0.11, "residual_scale": 0.4, "logit_scale": 0.6}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2}
HUNYUAN_ROPE = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}}
HUNYUAN_THETA = {"rope.freq_base": 1e4 * 50 ** (16 / 14)}
PART = {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
LLAMA4 = {
    "head_dim": 16,
    "num_hidden_layers": 5,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "attention_chunk_size": 8,
    "floor_scale": 4,
    "attn_scale": 0.5,
    "pad_token_id": 0,
}
SMOLLM3 = Case("smollm3", {"num_hidden_layers": 5, "pad_token_id": 0}, interleaved=True)
MINISTRAL3 = Case(
    "ministral3",
    {
        "head_dim": 32,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5},
        "pad_token_id": 0,
    },
    {
        **YARN_KEYS,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.5,
        "rope.dimension_count": 32,
    },
    interleaved=True,
    gguf_name="mistral3",
)
OLMO3 = Case(
    "olmo3",
    {"sliding_window": 6, "layer_types": [SLIDING, SLIDING, FULL], "rope_parameters": TWO_ROPES, "pad_token_id": 0},
    {**YARN_KEYS, **WINDOW_KEYS},
    gguf_name="olmo2",
)
OLMOE = Case(
    "olmoe",
    {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48, "pad_token_id": 0},
    {**EXPERT_KEYS, "feed_forward_length": 48},
)
GRANITEMOE = Case("granitemoe", MULTIPLIERS | EXPERTS, MULTIPLIER_KEYS | EXPERT_KEYS, interleaved=True)
GRANITEMOESHARED = Case(
    "granitemoeshared",
    MULTIPLIERS | EXPERTS | {"shared_intermediate_size": 40},
    MULTIPLIER_KEYS | EXPERT_KEYS | {"expert_shared_feed_forward_length": 40},
    interleaved=True,
    gguf_name="granitemoe",
)
SEED_OSS = Case("seed_oss", {"head_dim": 16, "pad_token_id": 0})
EXAONE4 = Case(
    "exaone4",
    {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 6, "sliding_window_pattern": 3},
    {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False, True, True]},
)
EXAONE4_FULL = Case(
    "exaone4",
    {
        "head_dim": 16,
        "sliding_window": None,
        "layer_types": [FULL] * 3,
        "tie_word_embeddings": True,
        "rope_scaling": LLAMA3,
    },
)
EXAONE_MOE = Case(
    "exaone_moe",
    {
        "head_dim": 16,
        "sliding_window": 6,
        "layer_types": [SLIDING, SLIDING, FULL],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
    },
    {
        **WINDOW_KEYS,
        **EXPERT_KEYS,
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 40,
        "expert_weights_scale": 2.5,
    },
    gguf_name="exaone-moe",
)
ERNIE4_5 = Case("ernie4_5", {"head_dim": 16, "use_bias": True, "pad_token_id": 0})
ERNIE4_5_MOE = Case(
    "ernie4_5_moe",
    {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40, "moe_num_shared_experts": 2, "pad_token_id": 0},
    {**EXPERT_KEYS, "expert_feed_forward_length": 40, "expert_shared_feed_forward_length": 80},
    gguf_name="ernie4_5-moe",
)
HUNYUAN = Case(
    "hunyuan_v1_dense",
    {"head_dim": 16, "pad_token_id": 0} | HUNYUAN_ROPE,
    HUNYUAN_THETA,
    gguf_name="hunyuan-dense",
)
HUNYUAN_MOE = Case(
    "hunyuan_v1_moe",
    {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0} | HUNYUAN_ROPE,
    HUNYUAN_THETA | EXPERT_KEYS | {"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 96},
    gguf_name="hunyuan-moe",
)
GLM = Case("glm", PART | {"pad_token_id": 0}, {"rope.dimension_count": 16}, gguf_name="chatglm")
GLM4 = Case("glm4", PART | {"pad_token_id": 0}, {"rope.dimension_count": 16})
SCOUT = Case("llama4_text", LLAMA4 | {"rope_scaling": LLAMA3})
MAVERICK = Case("llama4_text", LLAMA4 | {"use_qk_norm": False, "interleave_moe_layer_step": 2})
DOTS1 = Case(
    "dots1",
    {
        "head_dim": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 40,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    {
        **EXPERT_KEYS,
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 40,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
    },
)
AFMOE = Case(
    "afmoe",
    {
        "head_dim": 16,
        "sliding_window": 6,
        "layer_types": [SLIDING, SLIDING, FULL],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 40,
        "route_scale": 1.5,
        "mup_enabled": True,
    },
    {
        **WINDOW_KEYS,
        **EXPERT_KEYS,
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 40,
        "expert_weights_scale": 1.5,
    },
)
ARCEE = Case("arcee", {"rope_scaling": {**YARN, "rope_theta": 1e4}}, YARN_KEYS, interleaved=True)
APERTUS = Case("apertus", {"pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
EXAONE = Case("exaone", {"rope_theta": 1e4}, class_name="ExaoneForCausalLM")
OLMO = Case(
    "olmo",
    {"clip_qkv": 0.9, "pad_token_id": 0},
    {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 0.9},
    interleaved=True,
)
HY_V3 = Case(
    "hy_v3",
    {
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_shared_experts": 2,
        "moe_intermediate_size": 40,
    },
    {
        **EXPERT_KEYS,
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 80,
        "expert_weights_scale": 2.826,
        "expert_gating_func": 2,
    },
)
MELLUM = Case(
    "mellum",
    {
        "head_dim": 32,
        "sliding_window": 6,
        "layer_types": [SLIDING, SLIDING, FULL],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "rope_parameters": TWO_ROPES,
    },
    {**WINDOW_KEYS, **EXPERT_KEYS, **YARN_KEYS, "rope.freq_base": 5e5, "expert_feed_forward_length": 40},
)
DEEPSEEK = Case(
    "deepseek_ocr2",
    {
        "text_config": SIZES
        | {
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "moe_intermediate_size": 40,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "attention_bias": True,
        },
        "vision_config": {
            "sam_config": {
                "hidden_size": 16, "output_channels": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                "image_size": 32, "global_attn_indexes": [0], "downsample_channels": [8, 32], "mlp_dim": 16,
            },
            "encoder_config": {
                "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 1, "vocab_size": 8,
            },
        },
    },
    EXPERT_KEYS | {"expert_feed_forward_length": 40, "expert_shared_count": 2},
    interleaved=True,
    gguf_name="deepseek",
)  # fmt: skip
OCR = replace(
    DEEPSEEK, gguf_keys={**DEEPSEEK.gguf_keys, "rope.dimension_count": 0}, interleaved=False, gguf_name="deepseek2-ocr"
)
ARIA = Case(
    "aria",
    {
        "text_config": SIZES | {"moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 2, "pad_token_id": 0},
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
        "projector_patch_to_query_dict": {"4": 2},
    },
)  # fmt: skip
FOLDERS = {
    "aria": ARIA,
    "deepseek": DEEPSEEK,
    "deepseek-scaled": Case(
        "deepseek_ocr2",
        DEEPSEEK.changes | {"text_config": DEEPSEEK.changes["text_config"] | {"routed_scaling_factor": 1.5}},
    ),
    "hy_v3": HY_V3,
    "mellum": MELLUM,
    "mellum-plain": Case(
        "mellum", {**MELLUM.changes, "layer_types": None, "mlp_layer_types": ["sparse", "dense", "sparse"]}
    ),
    "cwm": Case("cwm", {"head_dim": 32, "sliding_window": 6, "num_hidden_layers": 5}),
    "helium": Case("helium", {"head_dim": 16, "attention_bias": True, "pad_token_id": 0}),
    "hyperclovax": Case("hyperclovax", {**MULTIPLIERS, "attention_bias": True}),
    "hyperclovax-plain": Case("hyperclovax", {"use_post_norm": False, "head_dim": 32}),
    "solar_open": Case(
        "solar_open",
        {
            "head_dim": 32,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "routed_scaling_factor": 2.5,
        },
    ),
    "vaultgemma": Case(
        "vaultgemma",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 20,
            "sliding_window": 6,
            "final_logit_softcapping": 5.0,
            "pad_token_id": 0,
        },
    ),
    "smollm3": SMOLLM3,
    "smollm3-windows": Case(
        "smollm3", {"no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 6, "pad_token_id": 0}
    ),
    "ministral3": MINISTRAL3,
    "olmo3": OLMO3,
    "olmoe": OLMOE,
    "olmoe-limited": Case("olmoe", {**OLMOE.changes, "clip_qkv": 0.5, "attention_bias": True}),
    "granitemoe": GRANITEMOE,
    "granitemoeshared": GRANITEMOESHARED,
    "seed_oss": SEED_OSS,
    "exaone4": EXAONE4,
    "exaone4-full": EXAONE4_FULL,
    "exaone_moe": EXAONE_MOE,
    "ernie4_5": ERNIE4_5,
    "ernie4_5_moe": ERNIE4_5_MOE,
    "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": HUNYUAN_MOE,
    "glm": GLM,
    "glm4": GLM4,
    "dots1": DOTS1,
    "afmoe": AFMOE,
    "apertus": Case("apertus", {"pad_token_id": 0, "attention_bias": True}),
    "arcee": ARCEE,
    "olmo": OLMO,
    "exaone": EXAONE,
    "internlm3": Case("internlm3", {"head_dim": 16, "qkv_bias": True, "bias": True}, class_name="InternLM3ForCausalLM"),
    "llama4-scout": SCOUT,
    "llama4-maverick": MAVERICK,
}
STACKED = (
    DEEPSEEK, OCR, SMOLLM3, MINISTRAL3, OLMO3, OLMOE, GRANITEMOE, GRANITEMOESHARED, SEED_OSS, EXAONE4, EXAONE_MOE,
    ERNIE4_5, ERNIE4_5_MOE, HUNYUAN, HUNYUAN_MOE, DOTS1, AFMOE,
    ARCEE, EXAONE, OLMO, HY_V3, MELLUM,
)  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(FOLDERS[name], tmp_path, backend)


@pytest.mark.parametrize("case", STACKED, ids=lambda case: case.kind)
def test_a_gguf_file_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(case, tmp_path, backend)


@pytest.mark.parametrize("case", [GLM, GLM4], ids=lambda case: case.kind)
def test_a_gguf_file_with_gate_and_up_in_one_matrix(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_gguf(case, tmp_path, backend)


def test_a_gguf_file_of_apertus_has_numbers_among_its_keys(tmp_path: Path, backend: Backend) -> None:
    with quiet_and_on_one_thread():
        theirs = make_model("apertus", APERTUS.changes, tmp_path)
        tensors, layers = theirs.state_dict(), range(theirs.config.num_hidden_layers)
        keys: dict[str, Any] = {
            f"xielu.{name}": [float(tensors[f"model.layers.{layer}.mlp.act_fn.{name}"]) for layer in layers]
            for name in ("alpha_p", "alpha_n", "beta", "eps")
        }
        joined = dict.fromkeys(("positive", "negative", "linear"), "")  # which are no tensors there
        case = replace(APERTUS, gguf_keys=keys, gguf_joined=joined)
        check_file(write_stacked_gguf(case, tmp_path, tmp_path / "m.gguf"), theirs, backend, BOUND)
    for key, value, message in (
        ("alpha_p", [0.5], "a list of 3 numbers"),
        ("eps", [-0.5] * 3, "xielu.eps -0.5 is not"),
    ):
        changed = replace(case, gguf_keys=keys | {f"xielu.{key}": value})
        with pytest.raises((CheckpointError, UnsupportedError), match=message):
            open_checkpoint(write_stacked_gguf(changed, tmp_path, tmp_path / f"{key}.gguf"))


def test_a_gguf_file_of_llama_4_is_of_the_published_sizes(tmp_path: Path) -> None:
    make_model("llama4_text", LLAMA4, tmp_path)
    keys = {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 48, "feed_forward_length": 96}
    spec = open_checkpoint(write_stacked_gguf(Case("llama4", LLAMA4, keys), tmp_path, tmp_path / "m.gguf")).spec
    assert (spec.sliding_window, spec.window_kind) == (8192, "chunked")
    assert spec.rope_layers == spec.sliding_layers == (True, True, True, False, True)
    with pytest.raises(UnsupportedError, match="2 experts of a token are not supported"):
        open_checkpoint(
            write_stacked_gguf(Case("llama4", LLAMA4, keys | {"expert_used_count": 2}), tmp_path, tmp_path / "2.gguf")
        )


# Larger scores of queries that grow leave a token one key, where the order of a sum shows more than the bound.
ONLY = {
    "ministral3": frozenset(
        "sliding_window layer_types use_sliding_window rope_type rope_theta head_dim hidden_act attention_bias "
        "rms_norm_eps original_max_position_embeddings partial_rotary_factor rope_scaling tie_word_embeddings".split()
    )
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    check_fields(FOLDERS[name].kind, FOLDERS[name].changes, tmp_path / "model", ONLY.get(name))
