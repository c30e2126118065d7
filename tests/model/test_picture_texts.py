"""The text of models that see pictures beside transformers: their folders as its classes save them, and the names that
GGUF files have for them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.parity import Case, check_file, check_folder, check_stacked_gguf, write_stacked_gguf
from tests.model.transformers_models import SIZES, make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4}


def of(kind: str, text: dict[str, Any], eyes: dict[str, Any] = EYES, **more: Any) -> Case:
    """A model whose text has these figures besides those of every toy."""
    return Case(kind, {"text_config": SIZES | text, "vision_config": eyes, "tie_word_embeddings": False, **more})


CASES = {
    "qwen2_vl": of(
        "qwen2_vl", {"rope_parameters": MROPE},
        {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}
    ),
    "qwen2_5_vl": of("qwen2_5_vl", {"rope_parameters": MROPE}),
    "qwen3_vl": of("qwen3_vl", {"head_dim": 32, "rope_parameters": MROPE}, EYES | {"deepstack_visual_indexes": [0]}),
    "qwen3_vl_moe": of(
        "qwen3_vl_moe",
        {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
            "rope_parameters": MROPE},
        EYES | {"deepstack_visual_indexes": [0]},
    ),
    "glm4v": of(
        "glm4v",
        {
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1]},
        },
    ),
    "glm4v_moe": of(
        "glm4v_moe",
        {
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1]},
        },
    ),
    "mistral3": of(
        "mistral3",
        {"model_type": "mistral", "head_dim": 32, "sliding_window": None},
        {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "head_dim": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(CASES[name], tmp_path, backend)


def test_published_experts_are_turned(tmp_path: Path) -> None:
    """As transformers saves them they are not."""
    from safetensors.numpy import load_file, save_file

    with quiet_and_on_one_thread():
        make_model(CASES["qwen3_vl_moe"].kind, CASES["qwen3_vl_moe"].changes, tmp_path)
    saved = values_of(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    turned = {name: np.ascontiguousarray(x.swapaxes(1, 2)) if ".experts." in name else x for name, x in tensors.items()}
    save_file(turned, tmp_path / "model.safetensors")
    published = values_of(tmp_path)
    assert saved.keys() == published.keys()
    assert all(np.array_equal(saved[name], published[name]) for name in saved)


def values_of(folder: Path) -> dict[str, FloatArray]:
    """The matrices of the first layer's experts."""
    layer = load_model(open_checkpoint(folder), ReferenceBackend()).parameters.layers[0]
    return {key: np.stack(layer[key]) for key in ("expert_gate", "expert_up", "expert_down")}


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_a_gguf_file_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    keys: dict[str, Any] = {"rope.dimension_sections": [4, 2, 2, 0], "rope.freq_base": 1e6}
    if name == "qwen3_vl_moe":
        keys |= {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 48}
    if name != "qwen2_5_vl":
        keys |= {"n_deepstack_layers": 1, "attention.key_length": 32, "attention.value_length": 32}
    gguf_name = {"qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe"}[name]
    check_stacked_gguf(replace(CASES[name], gguf_keys=keys, gguf_name=gguf_name), tmp_path, backend)


def test_older_files_say_all_of_the_text_in_the_whole(tmp_path: Path) -> None:
    """And call the axes of pictures a rope of their own."""
    with quiet_and_on_one_thread():
        make_model(CASES["qwen2_5_vl"].kind, CASES["qwen2_5_vl"].changes, tmp_path)
    newer = open_checkpoint(tmp_path).spec
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    flat = (
        text
        | config
        | {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
    )
    (tmp_path / "config.json").write_text(json.dumps(flat))
    assert open_checkpoint(tmp_path).spec == newer


def test_a_gguf_file_of_glm_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    """Converters put the rows of q and k in halves where there are axes of pictures."""
    case = replace(
        CASES["glm4v"],
        gguf_keys={"rope.dimension_sections": [2, 1, 1, 0], "rope.dimension_count": 8},
        gguf_name="glm4",
        gguf_joined={"gate": "up"},
    )

    def in_halves(name: str, values: FloatArray) -> tuple[FloatArray, str]:
        if ".attn_q." in name or ".attn_k." in name:
            heads = values.reshape(-1, 16, *values.shape[1:])
            heads = np.concatenate([heads[:, 0:8:2], heads[:, 1:8:2], heads[:, 8:]], axis=1)
            values = heads.reshape(values.shape)
        return values, "F32"

    with quiet_and_on_one_thread():
        theirs = make_model(case.kind, case.changes, tmp_path)
        file = write_stacked_gguf(case, tmp_path, tmp_path / "model.gguf", in_halves)
        check_file(file, theirs, backend, case.bound)
