"""Muse Glimmer beside transformers, its text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.errors import CheckpointError
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.parity import Case, check_folder, check_stacked_gguf
from tests.model.transformers_models import SIZES, make_model

pytestmark = pytest.mark.torch

TEXT: dict[str, Any] = SIZES | {
    "head_dim": 16, "num_hidden_layers": 5, "sliding_window": 9, "qk_scale_factor": 2.5, "output_multiplier": 0.4,
    "final_logit_softcapping": 2.0,
    "post_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
    "pos_emb_height": 2, "pos_emb_width": 2,
}  # fmt: skip


def case(seed: int = 0, **changes: Any) -> Case:
    outside = {
        "vision_config": VISION,
        "out_hidden_size": 64,
        "projector_hidden_size": 32,
        "tie_word_embeddings": False,
    }
    return Case("muse_glimmer", {"text_config": TEXT | changes, **outside}, seed=seed)


OTHER_LAYERS = {
    "layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"],
    "layer_rope_theta": [1e4, 0, 0, 1e4, 1e4],
}


@pytest.mark.parametrize("changes", [{}, OTHER_LAYERS], ids=["usual-layers", "other-layers"])
def test_a_folder_has_the_tokens_of_transformers(changes: dict[str, Any], tmp_path: Path, backend: Backend) -> None:
    check_folder(case(seed=len(changes), **changes), tmp_path, backend)


GGUF_KEYS: dict[str, Any] = {
    "block_count": 5, "attention.sliding_window": 9,
    "attention.sliding_window_pattern": [False, True, True, True, False], "logit_scale": 0.4,
    "final_logit_softcapping": 2.0,
}  # fmt: skip
NORMS = {
    f"blk.{layer}.attn_{of}_norm.weight": [value] * 16 for layer in range(5) for of, value in (("q", 2.5), ("k", 1.0))
}


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    whole = replace(
        case(post_norm_eps=1e-8), gguf_keys=GGUF_KEYS, gguf_tensors=NORMS, gguf_name="muse-glimmer", interleaved=True
    )
    check_stacked_gguf(whole, tmp_path, backend)


def test_layers_with_ropes_of_their_own_are_refused(tmp_path: Path) -> None:
    wrong = case(layer_rope_theta=[1e4, 5e5, 0, 1e4, 1e4])
    make_model(wrong.kind, wrong.changes, tmp_path)
    with pytest.raises(CheckpointError, match="layer_rope_theta"):
        open_checkpoint(tmp_path)
