"""Blocks of every family that has them, made of one of the model's own layers: figures, tensors and a run of a row."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, StepArrays, StepLimits
from homenode.model.architectures.architecture import as_stored
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.prediction import JOIN, ROW_NORM, TOKEN_NORM
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.folder_spec import spec_from_config
from homenode.model.checkpoint.prediction_blocks import BlockTensors
from homenode.model.checkpoint.prediction_model import read_block
from homenode.model.config.folder_config import FolderConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, PredictionSpec
from homenode.model.weights.load import load_model
from tests.model.toys import ArrayCheckpoint, array_checkpoint

PLAIN: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 96, "intermediate_size": 96, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "shared_expert_intermediate_size": 32, "num_experts": 4,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "num_key_value_heads": 4, "head_dim": None,
}  # fmt: skip
INDEXER = {"index_n_heads": 2, "index_head_dim": 32, "index_topk": 16}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
# Of each family its fields, and the layer that its block is like.
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "qwen3_next": (DELTA, 3),
    "qwen3_5": (DELTA, 3),
    "qwen3_5_moe": (DELTA, 3),
    "deepseek_v3": (LATENT, 3),
    "deepseek_v32": (LATENT | INDEXER, 3),
    "glm4_moe": (ROUTED, 3),
    "glm4_moe_lite": (LATENT, 3),
    "glm_moe_dsa": (LATENT | INDEXER, 3),
    "mimo_v2_flash": (ROUTED | {"v_head_dim": 16, "hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 16}, 2),
    "exaone_moe": (ROUTED | {"num_experts": 4, "num_shared_experts": 1, "sliding_window": None}, 3),
    "bailing_moe_v2": (ROUTED | {"num_experts": 4, "num_shared_experts": 1}, 3),
    "hy_v3": (ROUTED | {"num_experts": 4, "num_shared_experts": 1}, 3),
    "solar_open": (ROUTED, 3),
    "ernie4_5_moe": ({"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1}, 3),
}


def spec_of(name: str, path: Path) -> ModelSpec:
    fields, _ = FAMILIES[name]
    config = PLAIN | {"architectures": [architecture_of(name).folder.class_name]} | fields
    config = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(config))
    return spec_from_config(FolderConfig(Fields(path, config), Fields(path, {}), True, "F32"))


def arrays_of(spec: ModelSpec, layer: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random tensors of the whole model, and those of a block that is like one of its layers."""
    rng = np.random.default_rng(2)
    wanted = expected_tensors(architecture_of(spec.architecture).parameters, spec)
    found = {each.name: rng.standard_normal(each.shape).astype(np.float32) / 8 for each in wanted}
    own = re.compile(rf"model\.layers\.{layer}\.(.+)")
    block = {f"block.model.layers.0.{m[1]}": values for name, values in found.items() if (m := own.fullmatch(name))}
    width = spec.hidden_size
    norms = {f"block.{name}": np.ones(width, np.float32) for name in (TOKEN_NORM, ROW_NORM)}
    return {**found, **block, **norms, f"block.{JOIN}": rng.standard_normal((width, 2 * width)).astype(np.float32) / 8}


@pytest.mark.parametrize("backend", ["native"], indirect=True)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_is_like_the_layer_that_its_tensors_fit(name: str, tmp_path: Path, backend: Backend) -> None:
    layer, spec = FAMILIES[name][1], spec_of(name, tmp_path / "config.json")
    checkpoint = array_checkpoint(tmp_path / "weights", spec, arrays_of(spec, layer))
    trunk = {key: entry for key, entry in checkpoint.tensors.items() if not key.startswith("block.")}
    others = {
        key.removeprefix("block."): entry for key, entry in checkpoint.tensors.items() if key.startswith("block.")
    }
    found = read_block(BlockTensors(others, PredictionSpec()), spec, architecture_of(name), as_stored, trunk)
    assert found is not None
    figures, tensors = found
    assert figures.window_of(0) == spec.window_of(layer) and figures.kv_of(0) == spec.kv_of(layer)
    model = load_model(replace(checkpoint, tensors=trunk), backend, dtype="float32")
    block = load_model(ArrayCheckpoint(checkpoint.path, figures, tensors), backend, dtype="float32")
    block = block.with_tables_of(model)
    cache = backend.kv_cache(block.kv_geometry(32, "f32"), 2)
    limits = StepLimits(8, 2, 8, 2)
    program = backend.compile(block.forward(cache, keeps_rows="all"), limits)
    ids, count = np.arange(5, dtype=np.int32), np.array([5], np.int32)
    rows = np.random.default_rng(3).standard_normal((5, spec.hidden_size)).astype(np.float32)
    arrays = StepArrays(ids, ids, np.array([0, 5], np.int32), count, np.ones((1, 1), np.int32), ids, hidden=rows)
    made = np.asarray(program.run(arrays))
    assert made.shape == rows.shape and np.isfinite(made).all() and np.abs(made).max() > 0
