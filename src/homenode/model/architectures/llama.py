"""Llama 2 and 3: pre-norm blocks, grouped-query attention with rotary embedding, a SiLU-gated MLP."""

from __future__ import annotations

from homenode.model.architectures import conversions, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields

DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2, attention_bias=False, mlp_bias=False)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION_AND_BIASES, *tables.GATED_MLP, *tables.MLP_BIASES)


def has_no_window(fields: Fields) -> bool:
    """Whether a GGUF file is of a model without a sliding window."""
    return not fields.optional_integer("attention.sliding_window", minimum=0)


ARCHITECTURE = Architecture(
    "llama",
    FolderFormat(
        "LlamaForCausalLM",
        lambda config: config.uniform_decoder(DEFAULTS),
        fields=DEFAULTS.fields,
        harmless=dict.fromkeys(("sliding_window", "use_sliding_window", "max_window_layers"), NOT_READ),
        older_classes=("IQuestCoderForCausalLM", "XverseForCausalLM"),
    ),
    GgufFormat(
        "llama",
        lambda config: config.decoder(whole_heads=True),
        accepts=has_no_window,
        convert=conversions.interleaved_heads,
        further_names=("xverse",),
    ),
    PARAMETERS,
    forward,
)
