"""Gemma 3, its text: Gemma 2's layer with an RMS norm over each head of q and k, and another rope in the layers that
see a window only.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, gemma2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import normed_heads
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, RopeSpec

NAME = "gemma3"
DEFAULTS = Defaults(
    max_position=131072, heads=8, kv_heads=4, vocab=262208, head_dim=256, bos_id=2, eos_id=1, theta=1e6, local_theta=1e4
)
PATTERN = 6  # each layer of that number sees its whole context, the others a window
LARGE = 62  # layers of the largest model, whose scores are scaled by another length than a head's
PARAMETERS = (*gemma2.PARAMETERS, *common.HEAD_NORMS)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    if config.fields.has("attn_logit_softcapping"):
        raise UnsupportedError(
            f"{config.path}: attn_logit_softcapping is not supported in {NAME}; homenode wants null there"
        )
    config.refuse_later_context("use_bidirectional_attention", False)
    spec = gemma2.decoder(config, NAME, DEFAULTS, PATTERN)
    return replace(spec, logits_softcap=gemma2.softcap(config, "final_logit_softcapping", None))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    fields = config.fields
    local_theta = fields.number("rope.freq_base_swa", DEFAULTS.local_theta, above=1.0, most=limits.MOST_THETA)
    return replace(
        gemma2.gguf_decoder(config, NAME, theta=DEFAULTS.theta, pattern=PATTERN, large=LARGE),
        local_rope=RopeSpec(theta=local_theta),
        attention_softcap=fields.optional_number("attn_logit_softcapping", least=0.0) or None,
        logits_softcap=fields.optional_number("final_logit_softcapping", least=0.0) or None,
    )


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.rotation_by_layer(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        qkv = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        x = gemma2.layer_of(ops, model, index, x, normed_heads(ops, model, index, qkv), rotation(index))
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Gemma3ForCausalLM",
        read_folder,
        fields=gemma2.FIELDS | {"rope_local_base_freq"},
        harmless=gemma2.HARMLESS,
        model_types=("gemma3_text",),
        picture_classes=("Gemma3ForConditionalGeneration",),
        convert=gemma2.norms_plus_one,
    ),
    GgufFormat(
        "gemma3",
        read_gguf,
        keys=frozenset(("attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base_swa")),
    ),
    PARAMETERS,
    forward,
)
