"""GLM-4.5 beside transformers: sigmoid-scored experts chosen with a bias, a shared one, a rope over half of a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_stacked_gguf

pytestmark = pytest.mark.torch

SHAPE: dict[str, Any] = {
    "head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "attention_bias": True, "num_mtp_layers": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}  # fmt: skip
KEYS = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 32,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
    "rope.dimension_count": 16,
}
LARGE = Case(
    "glm4_moe",
    SHAPE | {"use_qk_norm": True, "routed_scaling_factor": 2.5},
    KEYS | {"expert_weights_scale": 2.5},
    gguf_name="glm4moe",
)
AIR = Case("glm4_moe", SHAPE | {"use_qk_norm": False}, KEYS | {"expert_weights_scale": 1.0}, gguf_name="glm4moe")
GROUPED = Case("glm4_moe", SHAPE | {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "norm_topk_prob": False})


@pytest.mark.parametrize("case", [LARGE, AIR, GROUPED], ids=["large", "air", "groups"])
def test_a_folder_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_folder(case, tmp_path, backend)


@pytest.mark.parametrize("case", [LARGE, AIR], ids=["large", "air"])
def test_a_gguf_file_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(case, tmp_path, backend)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    check_fields("glm4_moe", LARGE.changes, tmp_path / "model")
