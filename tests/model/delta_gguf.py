"""Toy models with gated delta nets as GGUF files, in the way that the reference converter writes them: norms of the
trunk with one added, decays as they are used, value heads in turn for each key head, q and its gate together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray
from tests.checkpoints import write_figures
from tests.model.transformers_models import SIZES

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    **{f"mlp.shared_expert.{part}_proj.weight": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
}  # fmt: skip


def write_delta_gguf(
    theirs: Any,
    file: Path,
    name: str,
    *,
    fused: bool = True,
    predicts: bool = False,
    keys: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Path:
    """The model that transformers has, all of it F32. `fused`: as older converters left q, k, v and z of Qwen3-Next, in
    one matrix; `predicts`: behind the layers is a block that predicts further tokens; `keys`: further ones; `dtype`:
    that the matrices of linear_attn are stored as, where their columns fill blocks.
    """
    import gguf

    config = theirs.config
    writer = gguf.GGUFWriter(file, name)
    figures = SIZES | config.to_dict() | {"model_type": name, "rope_theta": config.rope_parameters["rope_theta"]}
    write_figures(writer, figures | {"num_hidden_layers": config.num_hidden_layers + predicts, "intermediate_size": 96})
    heads = config.linear_num_value_heads
    own: dict[str, Any] = {
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config.linear_value_head_dim,
        "full_attention_interval": 4,
    }
    for key, value in (own | dict(keys or {})).items():
        writer.kv_data[0].pop(f"{name}.{key}", None)
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{name}.{key}", value)
    tensors = dict(_tensors(theirs, reordered=name != "qwen3next", fused=fused))
    if predicts:
        writer.add_uint32(f"{name}.nextn_predict_layers", 1)
        last = config.num_hidden_layers
        tensors |= {
            f"blk.{last}.{each}": np.ones((4, 4), np.float32) for each in ("nextn.eh_proj.weight", "attn_q.weight")
        }
    for stored, values in tensors.items():
        plain = np.ascontiguousarray(values, np.float32)
        if dtype and ".ssm_" in stored and plain.ndim == 2 and plain.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType[dtype]
            writer.add_tensor(stored, gguf.quants.quantize(plain, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tensors(theirs: Any, *, reordered: bool, fused: bool) -> Any:
    config = theirs.config
    for name, tensor in theirs.state_dict().items():
        values: FloatArray = tensor.numpy()
        if name in _TOP:
            yield _TOP[name], values + 1 if name == "model.norm.weight" else values
            continue
        _, _, layer, rest = name.split(".", 3)
        if rest.endswith("norm.weight") and rest != "linear_attn.norm.weight":
            values = values + 1
        if rest == "linear_attn.A_log":
            values = -np.exp(values)
        if rest == "linear_attn.conv1d.weight":
            values = values[:, 0]
        if rest == "mlp.shared_expert_gate.weight":
            values = values[0]
        if reordered and rest.startswith("linear_attn.") and rest != "linear_attn.norm.weight":
            values = _in_turn(rest, values, config)
        if rest == "mlp.experts.gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
        elif rest == "linear_attn.in_proj_qkvz.weight" and not fused:
            yield from _apart(layer, values, config)
        else:
            yield f"blk.{layer}.{_IN_LAYER[rest]}", values


def _apart(layer: str, values: FloatArray, config: Any) -> Any:
    """q, k and v of all heads, and z, out of the matrix that has them key head after key head."""
    keys, width = config.linear_num_key_heads, config.linear_key_head_dim
    each = config.linear_num_value_heads // keys * config.linear_value_head_dim
    heads = values.reshape(keys, 2 * width + 2 * each, -1)
    q, k, v, z = np.split(heads, [width, 2 * width, 2 * width + each], axis=1)
    yield f"blk.{layer}.attn_qkv.weight", np.concatenate([part.reshape(-1, values.shape[1]) for part in (q, k, v)])
    yield f"blk.{layer}.attn_gate.weight", z.reshape(-1, values.shape[1])


def _in_turn(rest: str, values: FloatArray, config: Any) -> FloatArray:
    """The value heads of a tensor so that head h reads key head h modulo their number."""
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    order = np.arange(heads).reshape(keys, heads // keys).T.reshape(-1)

    def moved(rows: FloatArray) -> FloatArray:
        return rows.reshape(heads, -1, *rows.shape[1:])[order].reshape(rows.shape)

    first = 2 * keys * config.linear_key_head_dim
    part = rest.removeprefix("linear_attn.").removesuffix(".weight")
    change: Callable[[FloatArray], FloatArray] = {
        "in_proj_qkv": lambda x: np.concatenate([x[:first], moved(x[first:])]),
        "conv1d": lambda x: np.concatenate([x[:first], moved(x[first:])]),
        "out_proj": lambda x: moved(x.T).T,
    }.get(part, moved)
    return change(values)
