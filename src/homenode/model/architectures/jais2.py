"""Jais 2: LayerNorm, biases everywhere, and an MLP of squared relu without a gate."""

from __future__ import annotations

from homenode.model.architectures.architecture import FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=8192, heads=26, vocab=150272, bos_id=0, eos_id=150024, norm_eps=1e-5, intermediate=26624,
    activation=None, attention_bias=True, mlp_bias=True,
)  # fmt: skip
STYLE = BlockStyle("relu2")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    return folder_figures(config, DEFAULTS, STYLE, ("hidden_act", "relu2"))


ARCHITECTURE = layer_norm_family(
    "jais2",
    FolderFormat("Jais2ForCausalLM", _read_folder, fields=DEFAULTS.fields | {"hidden_act", "layer_norm_eps"}),
    GgufFormat("jais2", lambda config: gguf_figures(config, STYLE)),
)
