"""Models that see pictures or hear, whose text may be of any family, beside transformers."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import sees_more_than_text
from tests.model.parity import BOUND, Case, check_file, check_folder
from tests.model.transformers_models import SIZES, make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": False}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def whole(kind: str, text: dict[str, Any], vision: dict[str, Any], **more: Any) -> Case:
    # transformers writes into the tables that it is given.
    tables = deepcopy({"text_config": text, "vision_config": vision})
    return Case(kind, {**tables, "tie_word_embeddings": False, **more})


CASES = {
    "llava": whole("llava", SIZES | {"model_type": "llama"}, TOWER | {"model_type": "clip_vision_model"}),
    "llava-mistral": whole("llava", SIZES | {"model_type": "mistral", "head_dim": 16},
        TOWER | {"model_type": "pixtral"}),
    "internvl": whole("internvl", SIZES | {"model_type": "qwen3", "head_dim": 16},
        TOWER | {"image_size": [28, 28], "patch_size": [14, 14]}),
    "idefics3": whole("idefics3", SIZES | {"model_type": "llama"}, TOWER),
    "smolvlm": whole("smolvlm", SIZES | {"model_type": "llama"}, TOWER),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(CASES[name], tmp_path, backend)
    assert "ForConditionalGeneration" in str(sees_more_than_text(open_checkpoint(tmp_path)))


@pytest.mark.parametrize(
    ("kind", "changes", "whole_class", "text_type"),
    [
        ("qwen2", {}, "Qwen2_5OmniModel", "qwen2_5_omni_text"),
        ("qwen3_moe", EXPERTS | {"head_dim": 16}, "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe_text"),
    ],
)
def test_the_part_that_thinks_is_served(
    kind: str, changes: dict[str, Any], whole_class: str, text_type: str, tmp_path: Path, backend: Backend
) -> None:
    with quiet_and_on_one_thread():
        theirs = make_model(kind, changes, tmp_path)
        stored = load_file(tmp_path / "model.safetensors")
        beside = {"talker.model.x.weight": np.zeros(4, np.float32), "thinker.visual.x.weight": np.zeros(4, np.float32)}
        save_file({f"thinker.{name}": each for name, each in stored.items()} | beside, tmp_path / "model.safetensors")
        text = json.loads((tmp_path / "config.json").read_text()) | {"model_type": text_type}
        told = {"architectures": [whole_class], "thinker_config": {"text_config": text}, "talker_config": {}}
        (tmp_path / "config.json").write_text(json.dumps(told))
        check_file(tmp_path, theirs, backend, BOUND)
