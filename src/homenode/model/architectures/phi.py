"""Phi 1, 1.5 and 2: attention and MLP beside each other behind one LayerNorm, biases everywhere, rope over a part of
each head.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=32, vocab=51200, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=8192, rotary_share=0.5,
    activation=None,
)  # fmt: skip
STYLE = BlockStyle("gelu", "one_norm", head_bias=True)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    style = replace(STYLE, head_norms=config.fields.boolean("qk_layernorm", False))
    return folder_figures(config, DEFAULTS, style, ("hidden_act", "gelu_new"), bias=True, rotates_part=True)


ARCHITECTURE = layer_norm_family(
    "phi",
    FolderFormat(
        "PhiForCausalLM",
        _read_folder,
        fields=frozenset(("hidden_act", "layer_norm_eps", "qk_layernorm")),
        modules=renamed(
            "model.layers.{layer}.",
            "self_attn.dense=self_attn.o_proj mlp.fc1=mlp.up_proj mlp.fc2=mlp.down_proj",
            "model.final_layernorm=model.norm",
        ),
    ),
    GgufFormat("phi2", lambda config: gguf_figures(config, STYLE)),
)
