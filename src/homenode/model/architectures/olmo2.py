"""OLMo 2: no norm before attention and MLP, but one after each, before it is added; and a norm over all of q and all of
k before they are rotated.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.llama import has_no_window
from homenode.model.architectures.pre_norm import forward_with, project_normed_whole
from homenode.model.config.folder_config import Defaults
from homenode.model.config.gguf_config import GgufConfig

DEFAULTS = Defaults(max_position=2048, norm_eps=1e-5, eos_id=50279, attention_bias=False)
BIASES = (
    tables.QKV_BIASES[0],
    replace(tables.QKV_BIASES[1], shape=("all_kv",)),
    tables.QKV_BIASES[2],
    *tables.OUTPUT_BIAS,
)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.PROJECTIONS_NORMED_WHOLE,
    *BIASES,
    *tables.NORMS_BEHIND,
    *tables.GATE_UP_DOWN,
)
forward = forward_with(project_normed_whole)
ARCHITECTURE = Architecture(
    "olmo2",
    FolderFormat("Olmo2ForCausalLM", lambda config: config.uniform_decoder(DEFAULTS), fields=DEFAULTS.fields),
    GgufFormat("olmo2", GgufConfig.decoder, accepts=has_no_window),
    PARAMETERS,
    forward,
)
