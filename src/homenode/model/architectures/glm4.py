"""GLM-4 of 2025 (9B, 32B, Z1): GLM with a further norm after attention and one after the MLP."""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, glm, olmo2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import project_neighbours
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

NAME = "glm4"
PARAMETERS = (
    *glm.PARAMETERS,
    layer_weight("attended_norm", "post_self_attn_layernorm", "post_attention_norm", "hidden"),
    layer_weight("mlp_norm", "post_mlp_layernorm", "post_ffw_norm", "hidden"),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return glm.decoder(config, NAME)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    if any(config.fields.integers(key := "rope.dimension_sections")):
        raise UnsupportedError(
            f"{config.path}: {key} is not supported in {NAME}, where it means rows of q and k in another order; "
            "homenode runs the models without pictures"
        )
    return glm.gguf_decoder(config, NAME)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = common.normed(ops, model, x, layer["input_norm"])
        x = olmo2.layer_of(ops, model, index, x, project_neighbours(ops, model, index, h, rotation))
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Glm4ForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "attention_bias")),
        convert=split_fused_rows,
    ),
    GgufFormat("glm4", read_gguf, names=glm.GGUF_NAMES, convert=split_fused_rows),
    PARAMETERS,
    forward,
)
