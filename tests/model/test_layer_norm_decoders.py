"""Decoders with LayerNorm beside transformers: from GPT-2 to StarCoder 2, Cohere's and Phi-3.5-MoE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray
from homenode.errors import UnsupportedError
from homenode.model.architectures.layer_norm_decoder import slopes_of
from homenode.model.checkpoint.index import open_checkpoint
from tests.checkpoints import interleave_heads
from tests.model.config_fields import check_fields
from tests.model.parity import BOUND, Case, check_file, check_folder, write_stacked_gguf
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

EPS = {"attention.layer_norm_epsilon": 1e-5}
ALIKE = {"num_key_value_heads": 4}
PARTS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
FALCON = {"num_hidden_layers": 2, "ffn_hidden_size": 96, "pad_token_id": 0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + i / 4 for i in range(8)],
    "long_factor": [9.0] * 8,
    "short_mscale": 1.2, "long_mscale": 1.2, "original_max_position_embeddings": 256,
}  # fmt: skip
CASES = {
    "starcoder2": Case("starcoder2", {"sliding_window": 9}, EPS | {"attention.sliding_window": 9}),
    "starcoder2 plain": Case("starcoder2", {"use_bias": False, "tie_word_embeddings": True}, EPS),
    "gpt_neox": Case("gpt_neox", PARTS | ALIKE, EPS | {"rope.dimension_count": 8}, gguf_name="gptneox"),
    "gpt_neox serial": Case(
        "gpt_neox",
        {"use_parallel_residual": False} | ALIKE,
        EPS | {"use_parallel_residual": False, "rope.dimension_count": 4},
        gguf_name="gptneox",
    ),
    "phi with norms of heads": Case("phi", {"qk_layernorm": True}),
    "phi": Case("phi", PARTS, EPS | {"rope.dimension_count": 8}, gguf_name="phi2"),
    "falcon": Case("falcon", FALCON, EPS | {"attention.head_count_kv": 1}),
    "falcon 40b": Case("falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, EPS),
    "gpt2": Case("gpt2", {"n_inner": 96}, EPS | {"attention.head_count_kv": 4}),
    "gpt_bigcode": Case("gpt_bigcode", {"n_inner": 96}, EPS | {"attention.head_count_kv": 1}, gguf_name="starcoder"),
    "gpt_bigcode of many keys": Case("gpt_bigcode",
        {"multi_query": False, "scale_attn_weights": False, "activation_function": "gelu"}),
    "bloom": Case("bloom", {"num_attention_heads": 4},
        EPS | {"attention.head_count_kv": 4, "feed_forward_length": 256}),
    "bloom of three heads": Case("bloom", {"num_attention_heads": 3, "hidden_size": 48, "num_hidden_layers": 2}),
    "mpt": Case(
        "mpt",
        {"attn_config": {"clip_qkv": 0.8}, "max_seq_len": 256, "hidden_size": 72, "num_attention_heads": 6,
            "tie_word_embeddings": True},
        EPS
        | {
            "attention.head_count_kv": 6, "feed_forward_length": 288, "attention.key_length": 12,
            "attention.value_length": 12,
            "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.8, "rope.dimension_count": 12,
        },
    ),
    "nemotron": Case("nemotron", {"partial_rotary_factor": 0.5, "mlp_bias": True}, EPS | {"rope.dimension_count": 8}),
    "jais2": Case("jais2", {"attention_bias": False}, EPS),
    "cohere": Case("cohere", {"logit_scale": 0.25, "tie_word_embeddings": True},
        EPS | {"logit_scale": 0.25, "rope.freq_base": 500000.0}, gguf_name="command-r"),
    "cohere plus": Case("cohere", {"use_qk_norm": True, "attention_bias": True},
        EPS | {"logit_scale": 0.0625, "rope.freq_base": 500000.0}, gguf_name="command-r"),
    "cohere2": Case(
        "cohere2", {"sliding_window": 9, "num_hidden_layers": 4, "logit_scale": 0.25},
        EPS | {"attention.sliding_window": 9, "logit_scale": 0.25}
    ),
    "stablelm": Case("stablelm", {"use_qkv_bias": True},
        EPS | {"rope.dimension_count": 4, "use_parallel_residual": False}),
    "stablelm parallel": Case("stablelm", {"use_parallel_residual": True} | PARTS),
    "phimoe": Case(
        "phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
        {"expert_count": 4, "rope.freq_base": 1e6}
    ),
    "phimoe long": Case("phimoe", {"num_local_experts": 3, "rope_parameters": LONGROPE, "router_jitter_noise": 0.3}),
}  # fmt: skip


def test_falcon_rw_has_the_logits_of_transformers(tmp_path: Path, backend: Backend) -> None:
    """Beside the class's default way of attending: eagerly it adds ALiBi twice."""
    from transformers import AutoModelForCausalLM

    rw = {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
    with quiet_and_on_one_thread():
        make_model("falcon", FALCON | rw, tmp_path)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
        check_file(tmp_path, theirs, backend, BOUND)


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    check_folder(CASES[name], tmp_path, backend)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gguf_keys])
def test_a_gguf_file_has_the_tokens_of_transformers(name: str, tmp_path: Path, backend: Backend) -> None:
    case = CASES[name]

    def as_converted(tensor: str, values: FloatArray) -> tuple[Any, str]:
        """Rows of Cohere's q and k as its files have them, and norms of heads as matrices."""
        part = tensor.split(".")[-2]
        heads = {"attn_q": 4, "attn_k": 2, "attn_q_norm": 4, "attn_k_norm": 2}.get(part, 0)
        if case.kind.startswith("cohere") and heads:
            values = interleave_heads(values, heads)
            values = values.reshape(heads, -1) if part.endswith("norm") else values
        return np.ascontiguousarray(values), "F32"

    with quiet_and_on_one_thread():
        theirs = make_model(case.kind, case.changes, tmp_path, seed=case.seed)
        names = {"attn_norm": "attn_norm_2", "ffn_norm": "attn_norm"} if name == "falcon 40b" else {}
        file = write_stacked_gguf(case, tmp_path, tmp_path / "model.gguf", as_converted, names)
        check_file(file, theirs, backend, case.bound)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm true is not supported"),
        ("phi", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported; homenode runs gelu_pytorch_tanh"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx true is not supported; homenode wants false",
        ),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm true"),
        ("mpt", {"no_bias": False}, "no_bias false is not supported; homenode wants true"),
        ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, "with parallel_attn false"),
        ("cohere2", {"layer_types": ["full_attention"] * 4}, "no layer with a window is not supported"),
        ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok 1 is not supported"),
    ],
)
def test_what_is_not_run_is_refused_by_name(kind: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with quiet_and_on_one_thread():
        make_model(kind, CASES[kind].changes, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(tmp_path)


def test_slopes_halve_over_a_power_of_two_and_are_filled_up_between() -> None:
    assert slopes_of(8, 8.0).tolist() == [2.0**-i for i in range(1, 9)]
    np.testing.assert_allclose(slopes_of(3, 8.0), [2.0**-4, 2.0**-8, 2.0**-2])
    assert len(slopes_of(71, 8.0)) == 71


# Fields that may be refused by kind of model: MPT's own code follows these, where the class of transformers leaves them
# alone; no model lacks or has the others.
REFUSED = {
    "mpt": "alibi prefix_lm qk_ln expansion_ratio logit_scale no_bias",
    "bloom": "hidden_size",
    "falcon": "num_ln_in_parallel_attn",
    "phimoe": "num_experts_per_tok",
}
# MPT's own code follows the first, as homenode does; eagerly, transformers adds Falcon's ALiBi twice.
UNMEASURED = {"mpt": "alibi_bias_max", "falcon": "alibi"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    refused, unmeasured = (frozenset(table.get(case.kind, "").split()) for table in (REFUSED, UNMEASURED))
    check_fields(case.kind, case.changes, tmp_path / "model", None, refused, 2 * case.bound, unmeasured)
