"""Phi 1, 1.5 and 2: attention and MLP beside each other behind one LayerNorm, biases everywhere, rope over a part of
each head.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward, gguf_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "phi"
DEFAULTS = Defaults(
    max_position=2048, heads=32, vocab=51200, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=8192, rotary_share=0.5
)
STYLE = BlockStyle("gelu", "one_norm", head_bias=True)
_LAYER = "model.layers.{layer}."


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    config.refuse_other_layers(window=None)
    if config.fields.boolean("qk_layernorm", False):
        raise UnsupportedError(f"{config.path}: qk_layernorm true is not supported in {NAME}; homenode wants false")
    spec = config.decoder(NAME, DEFAULTS, rotates_part=True)
    style = replace(STYLE, activation=config.plain_activation("hidden_act", "gelu_new"))
    return replace(spec, attention_bias=True, output_bias=True, mlp_bias=True, own=style)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return gguf_figures(config, NAME, STYLE)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "PhiForCausalLM",
        read_folder,
        fields=frozenset("hidden_act layer_norm_eps qk_layernorm".split()),
        modules={
            "model.final_layernorm": "model.norm",
            _LAYER + "self_attn.dense": _LAYER + "self_attn.o_proj",
            _LAYER + "mlp.fc1": _LAYER + "mlp.up_proj",
            _LAYER + "mlp.fc2": _LAYER + "mlp.down_proj",
        },
    ),
    GgufFormat("phi2", read_gguf),
    PARAMETERS,
    forward,
)
