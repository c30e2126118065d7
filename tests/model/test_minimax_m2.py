"""MiniMax M2 beside transformers: norms over all of q and of k, sigmoid-scored experts in every layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_stacked_gguf
from tests.model.transformers_models import make_model

pytestmark = pytest.mark.torch

CASE = Case(
    "minimax_m2",
    {
        "head_dim": 32,
        "intermediate_size": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    },
    {
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_gating_func": 2,
        "rope.dimension_count": 16,
    },
    gguf_name="minimax-m2",
)


def test_a_folder_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_folder(CASE, tmp_path, backend)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(CASE, tmp_path, backend)


def test_published_folders_say_how_many_elements_turn(tmp_path: Path) -> None:
    make_model("minimax_m2", CASE.changes, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rotary_dim": 8, "rope_theta": 5e6}))
    assert open_checkpoint(tmp_path).spec.rope.rotary_dim == 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    check_fields("minimax_m2", CASE.changes, tmp_path / "model")
