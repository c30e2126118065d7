"""Qwen 3 MoE: Qwen 3's block with a mixture of experts; some layers may have an MLP instead."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import qwen3, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import window_in_use
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.qwen2_moe import EXPERT_FIELDS, read_experts
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(max_position=32768)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=8, size=768)
# The text of Qwen 3 VL, whose folders stack the experts: it has no window, and weights of experts add up to 1
PICTURE_TYPE = "qwen3_vl_moe_text"
PICTURE_DEFAULTS = Defaults(max_position=128000, heads=16, kv_heads=16, theta=500000.0)
OMNI_TYPE = "qwen3_omni_moe_text"  # that of Qwen 3 Omni
OMNI_DEFAULTS = Defaults(max_position=32768, heads=28, kv_heads=4, theta=1e6)
PICTURE_EXPERTS = ExpertDefaults(experts=60, experts_per_token=4, size=1408)
PARAMETERS = (*qwen3.PARAMETERS, *tables.EXPERTS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    if config.fields.text("model_type") == PICTURE_TYPE:
        return _read_text_of_pictures(config)
    of_omni = config.fields.text("model_type") == OMNI_TYPE
    spec = config.uniform_decoder(OMNI_DEFAULTS if of_omni else DEFAULTS, window=window_in_use(config))
    bias = config.fields.boolean("attention_bias", False) and config.fields.boolean("qkv_bias", True)
    moe = read_experts(config, EXPERTS, spec.num_layers, normalise=of_omni)
    return replace(spec, attention_bias=bias, output_bias=bias, moe=moe)


def _read_text_of_pictures(config: FolderConfig) -> ModelSpec:
    spec = config.uniform_decoder(PICTURE_DEFAULTS)
    bias = config.fields.boolean("attention_bias", False)
    moe = read_experts(config, PICTURE_EXPERTS, spec.num_layers)
    moe = replace(moe, normalise=True) if moe else None
    return replace(spec, attention_bias=bias, output_bias=bias, moe=moe)


def split_experts(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, experts one by one. Those of pictures are published with turned matrices, and saved by
    transformers with others; the shapes tell.
    """
    published = (spec.hidden_size, 2 * spec.moe.intermediate_size) if spec.moe else ()
    stacks = (entry.shape for name, entry in tensors.items() if name.endswith(StackedExperts.gate_up))
    return StackedExperts(turned=any(shape[1:] == published for shape in stacks)).split(tensors, spec)


ARCHITECTURE = Architecture(
    "qwen3_moe",
    FolderFormat(
        "Qwen3MoeForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | EXPERTS.fields
        | EXPERT_FIELDS
        | {"attention_bias", "qkv_bias", "sliding_window", "use_sliding_window"},
        harmless={"max_window_layers": NOT_READ, "shared_expert_intermediate_size": "it has no shared expert"},
        model_types=(PICTURE_TYPE, OMNI_TYPE),
        picture_classes=(
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3OmniMoeForConditionalGeneration",
            "Qwen3OmniMoeThinkerForConditionalGeneration",
        ),
        convert=split_experts,
    ),
    GgufFormat("qwen3moe", GgufConfig.uniform_mixture, picture_names=("qwen3vlmoe",)),
    PARAMETERS,
    forward,
)
