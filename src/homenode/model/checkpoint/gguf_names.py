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
}
_BLOCK = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<part>[a-z_]+)\.(?P<kind>weight|bias)")
_PLAIN = re.compile(r"(?P<part>[a-z_]+)\.(?P<kind>weight|bias)")


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name we do not know is returned as it is."""
    if (match := _BLOCK.fullmatch(name)) and (part := _IN_BLOCK.get(match["part"])):
        return f"model.layers.{match['layer']}.{part}.{match['kind']}"
    if (match := _PLAIN.fullmatch(name)) and (part := _WHOLE.get(match["part"])):
        return f"{part}.{match['kind']}"
    return name


def permuted_heads(name: str, heads: int, kv_heads: int) -> int:
    """In how many heads the rows of a tensor of a GGUF file of the llama architecture are interleaved; 0: not at all.

    `name` is the Hugging Face name. The converters reorder query and key rows, weights and biases alike, for a rope that turns neighbours.
    """
    if name.endswith((".self_attn.q_proj.weight", ".self_attn.q_proj.bias")):
        return heads
    return kv_heads if name.endswith((".self_attn.k_proj.weight", ".self_attn.k_proj.bias")) else 0
