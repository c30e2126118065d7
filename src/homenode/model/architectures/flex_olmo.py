"""FlexOlmo: OLMo 2's layers, norms after attention and experts, with a mixture of experts in place of each MLP."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, olmo2
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.spec import ModelSpec

NAME = "flex_olmo"
DEFAULTS = Defaults(
    max_position=4096, heads=32, vocab=100352, norm_eps=1e-6, theta=5e5, eos_id=100257, intermediate=11008
)
EXPERTS = ExpertDefaults(experts=7, experts_per_token=5, size=0)  # config.json never says a size


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", False)
    spec = replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias)
    normalise = config.fields.boolean("norm_topk_prob", False)
    return replace(spec, moe=config.moe(EXPERTS, normalise=normalise, size=spec.intermediate_size))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "FlexOlmoForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act attention_bias num_experts num_local_experts num_experts_per_tok norm_topk_prob".split()
        ),
    ),
    olmo2.ARCHITECTURE.gguf.without_files(NAME),
    (*olmo2.PARAMETERS, *common.EXPERTS),
    olmo2.forward,
)
