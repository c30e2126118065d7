"""Gemma 3, its text: Gemma 2's layer with an RMS norm over each head of q and k, and another rope in the layers that
see a window only.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import conversions, gemma2, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

LOCAL_THETA = 1e4
DEFAULTS = Defaults(
    max_position=131072, heads=8, kv_heads=4, vocab=262208, head_dim=256, bos_id=2, eos_id=1, theta=1e6,
    local_theta=LOCAL_THETA, activation=None, attention_bias=False,
)  # fmt: skip
PATTERN = 6  # each layer of that number sees its whole context, the others a window
LARGE = 62  # layers of the largest model, whose scores are scaled by another length than a head's
PARAMETERS = (*gemma2.PARAMETERS, *tables.HEAD_NORMS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.fields.refuse_others({"attn_logit_softcapping": None})
    config.refuse_later_context("use_bidirectional_attention", False)
    spec = gemma2.decoder(config, DEFAULTS, PATTERN)
    return replace(spec, logits_softcap=gemma2.softcap(config, "final_logit_softcapping", None))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    fields = config.fields
    return replace(
        gemma2.gguf_decoder(config, theta=DEFAULTS.theta, pattern=PATTERN, large=LARGE),
        local_rope=config.local_rope(LOCAL_THETA),
        attention_softcap=fields.optional_number("attn_logit_softcapping", least=0.0) or None,
        logits_softcap=fields.optional_number("final_logit_softcapping", least=0.0) or None,
    )


ARCHITECTURE = Architecture(
    "gemma3",
    FolderFormat(
        "Gemma3ForCausalLM",
        _read_folder,
        fields=gemma2.FIELDS | {"rope_local_base_freq"},
        harmless=gemma2.HARMLESS,
        model_types=("gemma3_text",),
        picture_classes=("Gemma3ForConditionalGeneration",),
        convert=conversions.norms_plus_one,
    ),
    GgufFormat(
        "gemma3", read_gguf, keys=frozenset(("attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base_swa"))
    ),
    PARAMETERS,
    gemma2.forward,
)
