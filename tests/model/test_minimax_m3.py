"""MiniMax M3 beside transformers: blocks of tokens that an indexer chooses, clamped gates, an expert for
every token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, LayerKv
from homenode.errors import UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.weights.load import layers_kv
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_stacked_gguf
from tests.model.transformers_models import make_model

pytestmark = pytest.mark.torch

CASE = Case(
    "minimax_m3_vl_text",
    {
        "head_dim": 32, "intermediate_size": 32, "dense_intermediate_size": 96, "shared_intermediate_size": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 3, "rotary_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_n_heads": 2, "index_head_dim": 24, "index_block_size": 16, "index_topk_blocks": 2,
    },
    {
        "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32, "feed_forward_length": 96,
        "expert_gating_func": 2,
        "expert_shared_count": 1, "expert_weights_scale": 2.0, "expert_weights_norm": True, "rope.dimension_count": 16,
        "leading_dense_block_count": 1,
        "attention.indexer.head_count": 2, "attention.indexer.key_length": 24, "attention.indexer.top_k": 2,
        "attention.indexer.block_size": 16,
        "attention.indexer.local_blocks": 1,
    },
    gguf_name="minimax-m3",
)  # fmt: skip


def test_a_folder_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_folder(CASE, tmp_path, backend)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(CASE, tmp_path, backend)


def test_published_folders_have_other_names_and_figures_in_a_table(tmp_path: Path) -> None:
    """The text of a model that sees pictures, as its makers wrote its config.json; the figures are the same."""
    make_model(CASE.kind, CASE.changes, tmp_path)
    wanted, told = open_checkpoint(tmp_path), json.loads((tmp_path / "config.json").read_text())
    moved = {"index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks"}
    text = {k: v for k, v in told.items() if k not in moved | {"layer_types", "mlp_layer_types", "model_type"}}
    text |= {
        "model_type": "minimax_m3_vl_text",
        "moe_layer_freq": [0, 1, 1],
        "use_gemma_norm": True,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_num_index_heads": 2, "sparse_index_dim": 24, "sparse_block_size": 16,
            "sparse_topk_blocks": 2,
            "sparse_local_block": 1, "sparse_init_block": 0, "sparse_score_type": "max",
            "sparse_attention_freq": [0, 1, 1],
            "sparse_disable_index_value": [0, 1, 1],
        },
    }  # fmt: skip
    whole = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl"}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text}))
    assert open_checkpoint(tmp_path).spec == wanted.spec
    spec = wanted.spec
    assert spec.indexer is not None and spec.indexer.layers == (1, 2)
    both = LayerKv(2, 32, 32)
    assert layers_kv(spec, ModelPart.whole(spec)) == (both, both, both, LayerKv(1, 24, 0), LayerKv(1, 24, 0))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another rotation": ({"rotary_dim": 32}, "rotary_dim 32 beside a partial_rotary_factor .* llama.cpp"),
    "index heads": ({"index_n_heads": 4}, "4 index heads are not supported .* 2 KV heads"),
    "blocks": ({"index_block_size": 48}, "blocks of 48 tokens"),
    "no local block": ({"index_local_blocks": 0}, "index_local_blocks: seen 0"),
    "more local blocks": ({"index_local_blocks": 3}, "3 local blocks of 2"),
    "a short index head": ({"index_head_dim": 8}, "index heads of 8 elements"),
    "another gate": ({"swiglu_limit": 6.0}, "swiglu_limit 6"),
    "norms": ({"use_gemma_norm": False}, "use_gemma_norm false"),
    "first blocks": ({"sparse_attention_config": {"sparse_init_block": 1}}, "sparse_init_block 1"),
    "values": ({"sparse_attention_config": {"sparse_disable_index_value": [1, 1, 0]}}, "sparse_disable_index_value"),
    "kinds of layers": ({"layer_types": ["full_attention"] * 2 + ["linear_attention"]}, "layer_types"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_by_name(case: str, tmp_path: Path) -> None:
    changes, says = REFUSED[case]
    make_model(CASE.kind, CASE.changes, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=says):
        open_checkpoint(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    check_fields(CASE.kind, CASE.changes, tmp_path / "model")
