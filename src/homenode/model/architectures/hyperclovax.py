"""HyperCLOVA X SEED: Granite's block with its multipliers, and norms behind attention and MLP. It multiplies logits by
what Granite divides them by.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import granite, llama
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.granite import Multipliers
from homenode.model.config.folder_config import FolderConfig
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

NAME = "hyperclovax"


def _has_norms_behind(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    return isinstance(spec.own, Multipliers) and spec.own.norms_behind


PARAMETERS = (
    *llama.PARAMETERS,
    layer_weight("attended_norm", "post_norm1", "post_attention_norm", "hidden", when=_has_norms_behind),
    layer_weight("mlp_norm", "post_norm2", "post_ffw_norm", "hidden", when=_has_norms_behind),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    spec = replace(granite.read_folder(config), architecture=NAME)
    own = Multipliers(
        fields.number("residual_multiplier", 1.0),
        1.0 / fields.number("logits_scaling", 1.0, most=1e6),
        fields.boolean("use_post_norm", True),
    )
    scale = None if not fields.has("attention_multiplier") else spec.attention_scale
    return replace(spec, attention_scale=scale, own=own)


_LIKE = granite.ARCHITECTURE
ARCHITECTURE = replace(
    _LIKE,
    name=NAME,
    folder=_LIKE.folder.of_class(
        "HyperCLOVAXForCausalLM",
        read=read_folder,
        fields=_LIKE.folder.fields | {"use_post_norm"},
    ),
    gguf=_LIKE.gguf.without_files(NAME),
    parameters=PARAMETERS,
)
