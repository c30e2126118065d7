"""Nemotron 4 and Minitron: LayerNorm whose weights folders hold less one, and an MLP of squared relu without a gate."""

from __future__ import annotations

from homenode.model.architectures.architecture import FolderFormat, GgufFormat
from homenode.model.architectures.conversions import norms_plus_one
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=4096, heads=48, vocab=256000, bos_id=2, eos_id=3, norm_eps=1e-5, intermediate=24576, rotary_share=0.5,
    activation=None, attention_bias=False, mlp_bias=False,
)  # fmt: skip
STYLE = BlockStyle("relu2")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"norm_eps": "rms_norm_eps"})
    return folder_figures(config, DEFAULTS, STYLE, ("hidden_act", "relu2"), rotates_part=True)


ARCHITECTURE = layer_norm_family(
    "nemotron",
    FolderFormat(
        "NemotronForCausalLM", _read_folder, fields=DEFAULTS.fields | {"hidden_act", "norm_eps"}, convert=norms_plus_one
    ),
    GgufFormat("nemotron", lambda config: gguf_figures(config, STYLE)),
)
