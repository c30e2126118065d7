"""Mixtral: Mistral's block with a mixture of experts in every layer, the weights of a token's experts adding up to 1.
GGUF files call it llama, too.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.parameters import always
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=131072, bos_id=1, eos_id=2, theta=1e6, norm_eps=1e-5)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=0)  # config.json never says a size
_EXPERT = "block_sparse_moe.experts.{expert}"
EXPERT_PARAMETERS = (
    layer_weight("router", "block_sparse_moe.gate", "ffn_gate_inp", "experts", "hidden"),
    *tables.gated_matrices("expert_", _EXPERT, "_exps", "expert_intermediate", always, tables.W1_W3_W2),
)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION, *tables.POST_NORM, *EXPERT_PARAMETERS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.uniform_decoder(DEFAULTS, window=config.window(default=None))
    return replace(spec, moe=config.moe(EXPERTS, normalise=True, size=spec.intermediate_size))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.decoder(whole_heads=True)
    moe = config.moe(spec, "model.layers.{layer}.block_sparse_moe.gate.weight", size=spec.intermediate_size)
    return replace(spec, sliding_window=config.window(), moe=moe)


ARCHITECTURE = Architecture(
    "mixtral",
    FolderFormat(
        "MixtralForCausalLM", _read_folder, fields=DEFAULTS.fields | EXPERTS.fields | {"sliding_window", "qkv_bias"}
    ),
    llama.gguf_format("llama", _read_gguf),
    PARAMETERS,
    forward,
)
