"""GLM-4 of 2025 (9B, 32B, Z1): GLM with a further norm after attention and one after the MLP."""

from __future__ import annotations

from homenode.errors import UnsupportedError
from homenode.model.architectures import glm
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

PARAMETERS = (
    *glm.PARAMETERS,
    layer_weight("attended_norm", "post_self_attn_layernorm", "post_attention_norm", "hidden"),
    layer_weight("mlp_norm", "post_mlp_layernorm", "post_ffw_norm", "hidden"),
)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    if any(config.fields.integers(key := "rope.dimension_sections")):
        raise UnsupportedError(
            f"{config.path}: {key} is not supported in {config.architecture}, where it means rows of q and k in "
            "another order; homenode runs the models without pictures"
        )
    return config.uniform_decoder()


ARCHITECTURE = Architecture(
    "glm4",
    FolderFormat(
        "Glm4ForCausalLM", glm.read_folder, fields=frozenset(("hidden_act", "attention_bias")), convert=split_fused_rows
    ),
    GgufFormat("glm4", _read_gguf, names=glm.GGUF_NAMES, convert=split_fused_rows),
    PARAMETERS,
    glm.forward,
)
