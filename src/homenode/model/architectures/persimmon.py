"""Persimmon: GPT-NeoX's serial block with a LayerNorm over each head of q and k, and an MLP of relu squared."""

from __future__ import annotations

from homenode.model.architectures import gpt_neox
from homenode.model.architectures.architecture import renamed
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=16384, heads=64, vocab=262144, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=16384,
    rotary_share=0.5, activation=None,
)  # fmt: skip


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"}).without("num_key_value_heads")
    style = BlockStyle(head_norms=config.fields.boolean("qk_layernorm", True))
    return folder_figures(config, DEFAULTS, style, ("hidden_act", "relu2"), bias=True, rotates_part=True)


ARCHITECTURE = gpt_neox.ARCHITECTURE.of_class(
    "persimmon",
    "PersimmonForCausalLM",
    read=_read_folder,
    fields=frozenset(("hidden_act", "layer_norm_eps", "qk_layernorm")),
    modules=renamed(
        "model.layers.{layer}.",
        f"self_attn.query_key_value=self_attn.grouped_qkv self_attn.dense=self_attn.o_proj {gpt_neox.MATRICES}",
        "model.final_layernorm=model.norm",
    ),
)
