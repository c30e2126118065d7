"""Decoders that transformers has no class of, whose formulas are those of one it has: folders and GGUF files with its
numbers under their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from safetensors.numpy import load_file, save_file

from homenode.compute.ops import Backend, FloatArray
from homenode.errors import UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.parity import BOUND, Case, check_file, write_stacked_gguf
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

BAILING = Case(
    "bailing_moe_v2",
    {
        "head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "use_qk_norm": True,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    {
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 40,
        "expert_shared_feed_forward_length": 80,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "rope.dimension_count": 8,
    },
    gguf_name="bailingmoe2",
)
BAILING_FIELDS = {"num_experts": 8, "num_shared_experts": 2, "use_qkv_bias": True, "score_function": "sigmoid"}
INTERNLM2 = Case("internlm2", {}, interleaved=True)
_LAYER_NAMES = {
    "bailing_moe_v2": {
        "model.embed_tokens": "model.word_embeddings",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "self_attn.o_proj": "attention.dense",
        "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
    },
    "internlm2": {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
    },
}


def joined(kind: str, parts: list[FloatArray]) -> FloatArray:
    """q, k and v as the kind's folders have them: one below the other, or in groups of two query heads of 16."""
    if kind == "bailing_moe_v2":
        return np.concatenate(parts)
    heads = [part.reshape(2, -1, part.shape[1]) for part in parts]
    return np.concatenate(heads, axis=1).reshape(-1, parts[0].shape[1])


def make_renamed(kind: str, like: str, case: Case, folder: Path, named: str, fields: Mapping[str, Any]) -> Any:
    """The model that transformers has as `like`, in a folder that says what one of the kind says."""
    with quiet_and_on_one_thread():
        theirs = make_model(like, case.changes, folder)
    both = "attention.query_key_value" if kind == "bailing_moe_v2" else "attention.wqkv"
    tensors = load_file(folder / "model.safetensors")
    found: dict[str, FloatArray] = {}
    for name, values in tensors.items():
        if ".self_attn.q_proj." in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found[name.replace("self_attn.q_proj", both)] = joined(kind, parts)
        elif not any(f".self_attn.{part}_proj." in name for part in "kv"):
            for ours, its in _LAYER_NAMES[kind].items():
                name = name.replace(ours, its)
            found[name] = values
    save_file({name: np.ascontiguousarray(values) for name, values in found.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [named], "model_type": kind} | fields))
    return theirs


def make_bailing(folder: Path, **fields: Any) -> Any:
    named = "BailingMoeV2ForCausalLM"
    return make_renamed("bailing_moe_v2", "glm4_moe", BAILING, folder, named, BAILING_FIELDS | fields)


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_ling_2_has_the_tokens_of_its_formulas(form: str, tmp_path: Path, backend: Backend) -> None:
    theirs = make_bailing(tmp_path)
    path = tmp_path if form == "folder" else write_stacked_gguf(BAILING, tmp_path, tmp_path / "m.gguf")
    with quiet_and_on_one_thread():
        check_file(path, theirs, backend, BOUND)


@pytest.mark.parametrize(("field", "value"), [("score_function", "softmax"), ("use_qk_norm", False)])
def test_what_ling_2_has_not_is_refused_by_name(field: str, value: object, tmp_path: Path) -> None:
    make_bailing(tmp_path, **{field: value})
    with pytest.raises(UnsupportedError, match=field):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_internlm_2_has_the_tokens_of_llama(form: str, tmp_path: Path, backend: Backend) -> None:
    theirs = make_renamed("internlm2", "llama", INTERNLM2, tmp_path, "InternLM2ForCausalLM", {})
    path = tmp_path if form == "folder" else write_stacked_gguf(INTERNLM2, tmp_path, tmp_path / "m.gguf")
    with quiet_and_on_one_thread():
        check_file(path, theirs, backend, BOUND)


def test_a_gguf_file_of_xverse_has_the_tokens_of_llama(tmp_path: Path, backend: Backend) -> None:
    case = Case("llama", gguf_name="xverse", interleaved=True)
    with quiet_and_on_one_thread():
        theirs = make_model("llama", {}, tmp_path)
        check_file(write_stacked_gguf(case, tmp_path, tmp_path / "m.gguf"), theirs, backend, BOUND)
