"""The text of Aria: Llama's block with experts in every layer beside some that every token uses, as one MLP."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import deepseek
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, vocab=32000, bos_id=1, eos_id=2, attention_bias=False)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=0, keys=("moe_num_experts",))
_MLP = "model.layers.{layer}.mlp."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"moe_topk": "num_experts_per_tok"})
    config.fields.refuse_others({"mlp_bias": False})
    spec = config.uniform_decoder(DEFAULTS)
    size = spec.intermediate_size
    shared = config.fields.integer("moe_num_shared_experts", 2, minimum=0, maximum=limits.MOST_EXPERTS)
    return replace(spec, moe=config.moe(EXPERTS, normalise=True, size=size, shared=shared * size))


ARCHITECTURE = deepseek.ARCHITECTURE.of_class(
    "aria",
    "AriaTextForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | EXPERTS.fields | {"mlp_bias", "moe_topk", "moe_num_shared_experts"},
    model_types=("aria_text",),
    picture_classes=("AriaForConditionalGeneration",),
    modules={
        _MLP + "router": _MLP + "gate",
        _MLP + "experts.fc1": _MLP + "experts.gate_up_proj",
        _MLP + "experts.fc2": _MLP + "experts.down_proj",
    },
    convert=StackedExperts(turned=True).split,
)
