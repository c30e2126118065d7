"""GGUF tensor names -> the Hugging Face names the rest of homenode uses.

Source: the tensor name list of the GGUF specification and its converters.
"""

from __future__ import annotations

import re

_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_OF_EXPERTS = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
# What Gemma calls things.
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# What Phi 3 has, two of them several matrices.
_PHI3 = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# What Mixtral calls the same things.
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_OF_ARCHITECTURE = {"gemma2": _GEMMA, "gemma3": _GEMMA, "phi3": _PHI3}
_BLOCK = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<part>[a-z_]+)\.(?P<kind>weight|bias)")
_STACKED = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<part>ffn_gate|ffn_up|ffn_down)_exps\.weight")
_SINGLE = re.compile(
    r"blk\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<part>ffn_gate|ffn_up|ffn_down)\.(?P<expert>0|[1-9][0-9]{0,4})\.weight"
)
_PLAIN = re.compile(r"(?P<part>[a-z_]+)\.(?P<kind>weight|bias)")


def hugging_face_name(name: str, architecture: str = "llama") -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name we do not know is returned as it is.

    `architecture`, our name of it, decides what experts, routers and norms are called.
    """
    mixtral = architecture == "mixtral"
    parts = _IN_BLOCK | _OF_ARCHITECTURE.get(architecture, {})
    if (match := _BLOCK.fullmatch(name)) and (part := parts.get(match["part"])):
        if mixtral and part == "mlp.gate":
            part = "block_sparse_moe.gate"
        return f"model.layers.{match['layer']}.{part}.{match['kind']}"
    if match := _SINGLE.fullmatch(name):  # how files were written before experts were stacked
        return _expert_name(match["layer"], match["expert"], match["part"], mixtral)
    if (match := _PLAIN.fullmatch(name)) and (part := _WHOLE.get(match["part"])):
        return f"{part}.{match['kind']}"
    return name


def expert_names(name: str, experts: int, architecture: str = "llama") -> tuple[str, ...]:
    """Hugging Face names of the experts whose matrices are stacked in the tensor `blk.3.ffn_gate_exps.weight`; none for another tensor."""
    match = _STACKED.fullmatch(name)
    mixtral = architecture == "mixtral"
    return tuple(_expert_name(match["layer"], e, match["part"], mixtral) for e in range(experts)) if match else ()


def _expert_name(layer: str, expert: str | int, part: str, mixtral: bool) -> str:
    role = _OF_EXPERTS[part]
    if mixtral:
        return f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{_MIXTRAL[role]}.weight"
    return f"model.layers.{layer}.mlp.experts.{expert}.{role}.weight"


def permuted_heads(name: str, heads: int, kv_heads: int) -> int:
    """In how many heads the rows of a tensor of a GGUF file of the llama architecture are interleaved; 0: not at all.

    `name` is the Hugging Face name. The converters reorder query and key rows, weights and biases alike, for a rope that turns neighbours.
    """
    if name.endswith((".self_attn.q_proj.weight", ".self_attn.q_proj.bias")):
        return heads
    return kv_heads if name.endswith((".self_attn.k_proj.weight", ".self_attn.k_proj.bias")) else 0
