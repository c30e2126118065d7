"""Models with gated delta nets beside transformers: Qwen3-Next, Qwen 3.5 and its mixtures of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from tests.model.conftest import make_backend
from tests.model.parity import Case, check_folder

pytestmark = pytest.mark.torch

HEADS: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}  # fmt: skip
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
# Three value heads to a key head, values wider than keys, and a last layer with a delta net; as many value heads as
# key heads, widths that fill no vector, and a wider convolution.
UNEVEN = {"linear_num_value_heads": 6, "linear_value_head_dim": 32, "num_hidden_layers": 5}
PLAIN = {
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 21,
    "linear_conv_kernel_dim": 7,
}
BOUND = 3e-5  # of the spread: a state adds up the roundings of all tokens before
CASES = {
    "qwen3_next": Case("qwen3_next", HEADS | EXPERTS | {"mlp_only_layers": [1]}, bound=BOUND),
    "qwen3_5": Case("qwen3_5_text", HEADS, bound=BOUND),
    "qwen3_5-plain": Case("qwen3_5_text", HEADS | PLAIN, bound=BOUND),
    "qwen3_5_moe": Case("qwen3_5_moe_text", HEADS | EXPERTS | UNEVEN, bound=BOUND),
}


@pytest.fixture(params=["reference", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Those with state memory."""
    return make_backend(request.param, rounding=False)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_folder_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_folder(case, tmp_path, backend)
