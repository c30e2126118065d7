"""dots.llm1: Qwen 3's attention, first layers with an MLP, then experts scored by a sigmoid and chosen with a bias,
beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import qwen3, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import with_upper_window
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=152064, attention_bias=False)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=6, size=1408, keys=("n_routed_experts", "num_local_experts"))
PARAMETERS = (*qwen3.PARAMETERS, *tables.CHOSEN_WITH_BIAS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = with_upper_window(config, config.decoder(DEFAULTS), config.window(default=4096), 62)
    return replace(spec, moe=config.sigmoid_moe(EXPERTS, spec.num_layers, dense=0, normalise=False, shared=0))


ARCHITECTURE = Architecture(
    "dots1",
    FolderFormat(
        "Dots1ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields | SIGMOID_MOE_FIELDS | {"sliding_window", "max_window_layers"},
    ),
    GgufFormat("dots1", lambda config: config.uniform_mixture(scores=(2, 1), normalise=False, epsilon=1e-20)),
    PARAMETERS,
    forward,
)
