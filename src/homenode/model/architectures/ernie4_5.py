"""ERNIE 4.5 (dense): Llama's block, whose rope turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.architectures.architecture import GgufFormat
from homenode.model.architectures.pre_norm import forward_with, project_neighbours
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=131072, heads=16, kv_heads=2, head_dim=128, vocab=103424, bos_id=1, eos_id=2, norm_eps=1e-5, theta=5e5
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    bias = config.fields.boolean("use_bias", False)
    return replace(config.uniform_decoder(DEFAULTS), attention_bias=bias, output_bias=bias, mlp_bias=bias)


forward = forward_with(project_neighbours)
ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    read=_read_folder,
    fields=frozenset(("hidden_act", "use_bias")),
    forward=forward,
    gguf=GgufFormat("ernie4_5", GgufConfig.uniform_decoder),
)
