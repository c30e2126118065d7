"""Qwen3-Next: gated delta nets, and attention with a gate in each fourth layer; experts, and one that every token uses,
but for some layers with an MLP.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import delta_net, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.qwen2_moe import EXPERT_FIELDS, SHARED_EXPERT, read_experts
from homenode.model.architectures.qwen3_5_moe import convert_gguf
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=32768, heads=16, kv_heads=2, vocab=151936, head_dim=256, rotary_share=0.25, intermediate=5632
)
EXPERTS = ExpertDefaults(experts=512, experts_per_token=10, size=512, keys=("num_experts", "num_local_experts"))
PARAMETERS = (*delta_net.PARAMETERS, *tables.GATE_UP_DOWN, *tables.EXPERTS, *SHARED_EXPERT)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.decoder(DEFAULTS, rotates_part=True)
    moe = read_experts(config, EXPERTS, spec.num_layers, shared=512, normalise=True)
    return replace(delta_net.read_folder(config, spec, fused=True), moe=moe)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.with_moe(config.decoder(intermediate=DEFAULTS.intermediate))
    return delta_net.read_gguf(config, spec, reordered=False, fused_gates=True)


ARCHITECTURE = Architecture(
    "qwen3_next",
    FolderFormat(
        "Qwen3NextForCausalLM",
        _read_folder,
        fields=delta_net.FIELDS | EXPERTS.fields | EXPERT_FIELDS | {"shared_expert_intermediate_size"},
        harmless={key: why for key, why in delta_net.HARMLESS.items() if key not in EXPERT_FIELDS},
        convert=delta_net.convert_folder,
    ),
    GgufFormat("qwen3next", _read_gguf, keys=delta_net.KEYS, names=delta_net.NAMES, convert=convert_gguf),
    PARAMETERS,
    delta_net.forward,
)
