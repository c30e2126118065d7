"""FlexOlmo: OLMo 2's layers, norms after attention and experts, with a mixture of experts in place of each MLP."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import olmo2, tables
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=4096, heads=32, vocab=100352, norm_eps=1e-6, theta=5e5, eos_id=100257, intermediate=11008,
    attention_bias=False,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=7, experts_per_token=5, size=0)  # config.json never says a size


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.uniform_decoder(DEFAULTS)
    normalise = config.fields.boolean("norm_topk_prob", False)
    return replace(spec, moe=config.moe(EXPERTS, normalise=normalise, size=spec.intermediate_size))


ARCHITECTURE = olmo2.ARCHITECTURE.of_class(
    "flex_olmo",
    "FlexOlmoForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | EXPERTS.fields | {"norm_topk_prob"},
    parameters=(*olmo2.PARAMETERS, *tables.EXPERTS),
)
