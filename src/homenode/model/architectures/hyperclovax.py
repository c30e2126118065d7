"""HyperCLOVA X SEED: Granite's block with its multipliers, and norms behind attention and MLP. It multiplies logits by
what Granite divides them by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.model.architectures import granite, llama
from homenode.model.architectures.parameters import of_model
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import FolderConfig
from homenode.model.spec import ModelSpec


@dataclass(frozen=True)
class NormsBehind:
    """A figure that says whether what attention and MLP add to rows has a norm."""

    has: bool


_has_norms_behind = of_model(lambda spec: spec.own == NormsBehind(True))
PARAMETERS = (
    *llama.PARAMETERS,
    layer_weight("attended_norm", "post_norm1", "post_attention_norm", "hidden", when=_has_norms_behind),
    layer_weight("mlp_norm", "post_norm2", "post_ffw_norm", "hidden", when=_has_norms_behind),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = granite.read_folder(config)
    return replace(
        spec,
        attention_scale=spec.attention_scale if fields.has("attention_multiplier") else None,
        logits_scale=fields.number("logits_scaling", 1.0, most=1e6),
        own=NormsBehind(fields.boolean("use_post_norm", True)),
    )


ARCHITECTURE = granite.ARCHITECTURE.of_class(
    "hyperclovax",
    "HyperCLOVAXForCausalLM",
    read=_read_folder,
    fields=granite.ARCHITECTURE.folder.fields | {"use_post_norm"},
    parameters=PARAMETERS,
)
