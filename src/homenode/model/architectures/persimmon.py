"""Persimmon: GPT-NeoX's serial block with a LayerNorm over each head of q and k, and an MLP of relu squared."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt_neox
from homenode.model.architectures.layer_norm_decoder import BlockStyle
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=16384, heads=64, vocab=262144, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=16384,
    rotary_share=0.5, activation=None,
)  # fmt: skip
_LAYER = "model.layers.{layer}."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"}).without("num_key_value_heads")
    style = BlockStyle(
        config.plain_activation("hidden_act", "relu2"), head_norms=config.fields.boolean("qk_layernorm", True)
    )
    spec = config.uniform_decoder(DEFAULTS, rotates_part=True)
    return replace(spec, attention_bias=True, output_bias=True, mlp_bias=True, own=style)


ARCHITECTURE = gpt_neox.ARCHITECTURE.of_class(
    "persimmon",
    "PersimmonForCausalLM",
    read=_read_folder,
    fields=frozenset(("hidden_act", "layer_norm_eps", "qk_layernorm")),
    modules={
        "model.final_layernorm": "model.norm",
        _LAYER + "self_attn.query_key_value": _LAYER + "self_attn.grouped_qkv",
        _LAYER + "self_attn.dense": _LAYER + "self_attn.o_proj",
        _LAYER + "mlp.dense_h_to_4h": _LAYER + "mlp.up_proj",
        _LAYER + "mlp.dense_4h_to_h": _LAYER + "mlp.down_proj",
    },
)
