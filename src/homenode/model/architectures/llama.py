"""Llama 2 and 3: pre-norm blocks, grouped-query attention with rotary embedding, a SiLU-gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from homenode.model.architectures import conversions, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2, attention_bias=False, mlp_bias=False)
# The text of models that see pictures: of Llama 3.2 Vision, without the layers that attend to these, and of Emu 3.
PICTURE_DEFAULTS = {
    "mllama_text_model": Defaults(
        max_position=131072, heads=32, kv_heads=8, bos_id=128000, eos_id=128001, norm_eps=1e-5, theta=5e5
    ),
    "emu3_text_model": Defaults(
        max_position=9216, heads=32, kv_heads=8, bos_id=151849, eos_id=151850, norm_eps=1e-5, theta=1e6,
        attention_bias=False, mlp_bias=False,
    ),
}  # fmt: skip
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION_AND_BIASES, *tables.GATED_MLP, *tables.MLP_BIASES)


def has_no_window(fields: Fields) -> bool:
    """Return whether a GGUF file is of a model without a sliding window."""
    return not fields.optional_integer("attention.sliding_window", minimum=0)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file of a model all of whose layers see their whole context."""
    return config.uniform_decoder(whole_heads=True)


def gguf_format(name: str, read: Callable[[GgufConfig], ModelSpec] = read_gguf, **more: Any) -> GgufFormat:
    """Files with this `general.architecture` whose converter reorders q and k as it does Llama's."""
    return GgufFormat(name, read, convert=conversions.interleaved_heads, **more)


ARCHITECTURE = Architecture(
    "llama",
    FolderFormat(
        "LlamaForCausalLM",
        lambda config: config.uniform_decoder(PICTURE_DEFAULTS.get(config.fields.text("model_type"), DEFAULTS)),
        fields=DEFAULTS.fields,
        harmless=dict.fromkeys(("sliding_window", "use_sliding_window", "max_window_layers"), NOT_READ),
        older_classes=("IQuestCoderForCausalLM", "XverseForCausalLM"),
        model_types=("mllama_text_model", "emu3_text_model"),
        picture_classes=("MllamaForConditionalGeneration", "Emu3ForConditionalGeneration", "LlavaLlamaForCausalLM"),
    ),
    gguf_format(
        "llama", lambda config: config.decoder(whole_heads=True), accepts=has_no_window, further_names=("xverse",)
    ),
    PARAMETERS,
    forward,
)
