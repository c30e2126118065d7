"""GLM-4 of 2025 (9B, 32B, Z1), and the text of GLM-4.1V, GLM-4.6V Flash and GLM-OCR: GLM with a further norm after
attention and one after the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import glm, pre_norm
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

PARAMETERS = (
    *glm.PARAMETERS,
    layer_weight("attended_norm", "post_self_attn_layernorm", "post_attention_norm", "hidden"),
    layer_weight("mlp_norm", "post_mlp_layernorm", "post_ffw_norm", "hidden"),
)
# The text of GLM-4.1V and 4.6V Flash, and of GLM-OCR: what its class has where no file says it, and whether that has
# biases of q, k and v.
PICTURE_DEFAULTS = {
    "glm4v_text": (Defaults(max_position=32768, heads=32, kv_heads=2, norm_eps=1e-5), True),
    "glm_ocr_text": (Defaults(max_position=131072, heads=16, kv_heads=8, norm_eps=1e-5), False),
}


def _read_folder(config: FolderConfig) -> ModelSpec:
    kind = config.fields.text("model_type")
    if kind not in PICTURE_DEFAULTS:
        return glm.read_folder(config)
    defaults, bias = PICTURE_DEFAULTS[kind]
    return replace(config.uniform_decoder(defaults, rotates_part=True), attention_bias=bias)


@dataclass(frozen=True)
class TurnsHalves:
    """A figure that says whether the rope turns the halves of what turns of a head, as converters order the rows of q
    and k of models that see pictures; otherwise neighbours.
    """

    does: bool


def _read_gguf(config: GgufConfig) -> ModelSpec:
    sees = any(config.fields.integers("rope.dimension_sections"))
    return replace(config.uniform_decoder(), own=TurnsHalves(True) if sees else None)


def _project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> pre_norm.Heads:
    turns_halves = model.spec.own == TurnsHalves(True)
    return (pre_norm.project if turns_halves else pre_norm.project_neighbours)(ops, model, index, h, rotation)


ARCHITECTURE = Architecture(
    "glm4",
    FolderFormat(
        "Glm4ForCausalLM",
        _read_folder,
        fields=frozenset(("hidden_act", "attention_bias")),
        model_types=("glm4v_text", "glm_ocr_text"),
        picture_classes=(
            "Glm4vForConditionalGeneration",
            "Glm46VForConditionalGeneration",
            "GlmOcrForConditionalGeneration",
        ),
        convert=split_fused_rows,
    ),
    GgufFormat("glm4", _read_gguf, names=glm.GGUF_NAMES, convert=split_fused_rows),
    PARAMETERS,
    pre_norm.forward_with(_project),
)
