"""Phi 1, 1.5 and 2: attention and MLP beside each other behind one LayerNorm, biases everywhere, rope over a part of
each head.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward, gguf_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=32, vocab=51200, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=8192, rotary_share=0.5,
    activation=None,
)  # fmt: skip
STYLE = BlockStyle("gelu", "one_norm", head_bias=True)
_LAYER = "model.layers.{layer}."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    spec = config.uniform_decoder(DEFAULTS, rotates_part=True)
    style = replace(
        STYLE,
        activation=config.plain_activation("hidden_act", "gelu_new"),
        head_norms=config.fields.boolean("qk_layernorm", False),
    )
    return replace(spec, attention_bias=True, output_bias=True, mlp_bias=True, own=style)


ARCHITECTURE = Architecture(
    "phi",
    FolderFormat(
        "PhiForCausalLM",
        _read_folder,
        fields=frozenset("hidden_act layer_norm_eps qk_layernorm".split()),
        modules={
            "model.final_layernorm": "model.norm",
            _LAYER + "self_attn.dense": _LAYER + "self_attn.o_proj",
            _LAYER + "mlp.fc1": _LAYER + "mlp.up_proj",
            _LAYER + "mlp.fc2": _LAYER + "mlp.down_proj",
        },
    ),
    GgufFormat("phi2", lambda config: gguf_figures(config, STYLE)),
    PARAMETERS,
    forward,
)
