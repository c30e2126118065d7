"""Qwen 3.5 and later, the text of the mixtures of experts: the dense models' layers with experts in place of the MLP,
and one expert that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import delta_net, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.qwen2_moe import SHARED_EXPERT, with_shared_routers
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=32768, heads=16, kv_heads=2, vocab=248320, head_dim=256, rotary_share=0.25, intermediate=512
)
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=512, keys=("num_experts", "num_local_experts"))
PARAMETERS = (*delta_net.PARAMETERS, *tables.EXPERTS, *SHARED_EXPERT)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.decoder(DEFAULTS, rotates_part=True)
    shared = config.fields.integer("shared_expert_intermediate_size", 512, maximum=limits.MOST_INTERMEDIATE)
    moe = config.moe(EXPERTS, normalise=True, shared=shared)
    return replace(delta_net.read_folder(config, spec), moe=moe)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    return delta_net.read_gguf(config, config.with_moe(config.decoder(intermediate=512)), reordered=True)


def _convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    return delta_net.convert_folder(StackedExperts().split(tensors, spec), spec)


def convert_gguf(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a GGUF file, those that hold several as an entry for each."""
    return with_shared_routers(delta_net.split_tensors(tensors, spec), spec)


ARCHITECTURE = Architecture(
    "qwen3_5_moe",
    FolderFormat(
        "Qwen3_5MoeForCausalLM",
        _read_folder,
        fields=delta_net.FIELDS | EXPERTS.fields | {"shared_expert_intermediate_size"},
        harmless=delta_net.HARMLESS | {"norm_topk_prob": "weights of experts always add up to 1 in it"},
        model_types=("qwen3_5_moe_text",),
        picture_classes=("Qwen3_5MoeForConditionalGeneration",),
        convert=_convert_folder,
    ),
    GgufFormat("qwen35moe", _read_gguf, keys=delta_net.KEYS, names=delta_net.NAMES, convert=convert_gguf),
    PARAMETERS,
    delta_net.forward,
)
