"""Latent attention beside transformers: DeepSeek V2 and V3, Kimi K2 and GLM-4.7-Flash as folders and GGUF files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, LayerKv
from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.weights.load import layers_kv, load_model
from tests.model.driver import Driver
from tests.model.parity import Case, check_folder, check_stacked_gguf, spread_error, write_stacked_gguf
from tests.model.transformers_models import make_model, prompts

pytestmark = pytest.mark.torch

SHAPE: dict[str, Any] = {
    "num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "kv_lora_rank": 32,
    "q_lora_rank": 24, "head_dim": 8,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
    "beta_slow": 1.0,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "attention.head_count_kv": 1, "attention.key_length": 40, "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 24, "attention.q_lora_rank": 24, "attention.kv_lora_rank": 32,
    "rope.dimension_count": 8, "expert_count": 8,
    "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_count": 2, "leading_dense_block_count": 1,
}  # fmt: skip
YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_log_multiplier": 0.1,
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
    SHAPE | GROUPS | {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "num_mtp_layers": 0,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
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
SPARSE = {"index_topk": 20, "index_head_dim": 16, "index_n_heads": 16}  # most prompts are longer than that
SPARSE_KEYS = {"attention.indexer.top_k": 20, "attention.indexer.head_count": 16, "attention.indexer.key_length": 16}
V32 = Case("deepseek_v32", {**V3.changes, **SPARSE}, {**V3.gguf_keys, **SPARSE_KEYS}, gguf_name="deepseek32")
GLM_5 = Case(
    "glm_moe_dsa",
    SHAPE | SPARSE | {"first_k_dense_replace": 1, "indexer_types": ["full", "shared", "shared"]},
    KEYS | SPARSE_KEYS | {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5},
    gguf_name="glm-dsa",
)  # fmt: skip
YOUTU = Case(
    "youtu",
    {key: value for key, value in SHAPE.items() if not key.startswith(("n_", "num_experts", "moe_"))},
    {key: value for key, value in KEYS.items() if not key.startswith("expert")},
    gguf_name="deepseek2",
)
MISTRAL_4 = Case(
    "mistral4",
    {key: value for key, value in SHAPE.items() if key != "head_dim"}
    | {"rope_parameters": YARN | {"original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.4}}
    | {"routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1},
    KEYS | YARN_KEYS | {"rope.scaling.original_context_length": 8, "expert_weights_norm": True}
    | {"attention.temperature_scale": 0.4, "attention.temperature_length": 8, "leading_dense_block_count": 0},
)  # fmt: skip
FOLDERS = {
    "V2": V2,
    "Youtu": YOUTU,
    "V2 lite": V2_LITE,
    "V3": V3,
    "Kimi": KIMI,
    "halves": HALVES,
    "GLM": GLM,
    "V3.2": V32,
    "GLM-5": GLM_5,
    "Mistral 4": MISTRAL_4,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(FOLDERS[name], tmp_path, backend)


@pytest.mark.parametrize("name", ["V2", "V2 lite", "V3", "V3.2", "GLM-5", "Mistral 4"])
def test_a_gguf_file_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(FOLDERS[name], tmp_path, backend)


@pytest.mark.parametrize("kept", ["F32", "Q8_0"])
def test_a_file_of_before_2025_04_has_keys_and_values_of_all_heads_in_one_matrix(
    kept: str, tmp_path: Path, backend: Backend
) -> None:
    """As F32 with the tokens of transformers; of blocks the logits of the folder with the same rounding."""
    import gguf

    theirs = make_model("deepseek_v2", V2_LITE.changes, tmp_path)
    file = write_stacked_gguf(V2_LITE, tmp_path, tmp_path / "new.gguf")
    new, old = gguf.GGUFReader(file), tmp_path / "old.gguf"
    writer = gguf.GGUFWriter(old, "deepseek2")
    lengths = {
        "deepseek2.attention.key_length": 24,
        "deepseek2.attention.value_length": 24,
        "deepseek2.attention.head_count_kv": 4,
    }
    for field in new.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name.endswith("_mla"):
            continue
        value = lengths.get(field.name, field.contents())
        writer.add_key_value(field.name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    weights = theirs.state_dict()
    for tensor in new.tensors:
        if tensor.name.endswith("attn_v_b.weight"):
            layer = tensor.name.split(".")[1]
            both = weights[f"model.layers.{layer}.self_attn.kv_b_proj.weight"].numpy()
            raw, kind = (
                (both, "F32") if kept == "F32" else (gguf.quants.quantize(both, gguf.GGMLQuantizationType.Q8_0), kept)
            )
            writer.add_tensor(f"blk.{layer}.attn_kv_b.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        elif not tensor.name.endswith("attn_k_b.weight"):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found, wanted = (Driver(load_model(open_checkpoint(path), backend), backend) for path in (old, file))
    prompt = prompts()[0]
    error = spread_error(found.prefill(prompt)[1], wanted.prefill(prompt)[1])
    assert error < (1e-6 if kept == "F32" else 2e-2)
    assert (error == 0.0) == (kept == "F32")


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_an_indexer_keeps_keys_of_its_own_and_stays_in_the_stage_of_its_readers(kind: str, tmp_path: Path) -> None:
    case = V32 if kind == "deepseek_v32" else GLM_5
    make_model(kind, case.changes, tmp_path)
    spec = open_checkpoint(tmp_path).spec
    full = 3 if kind == "deepseek_v32" else 1  # layers with an indexer
    assert spec.max_position == 256
    assert layers_kv(spec, ModelPart.whole(spec)) == (*(LayerKv(1, 40, 0, 32),) * 3, *(LayerKv(1, 16, 0),) * full)
    if full == 1:
        with pytest.raises(UserError, match="fewer stages"):
            plan_parts(spec, {}, PartitionSpec(stages=2))
    else:
        assert [spec.index_layers(*cut) for cut in ((0, 2), (2, 3))] == [{0: 2, 1: 3}, {2: 1}]


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
