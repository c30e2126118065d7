"""Granite 3 (dense): Llama's block with four multipliers: of embeddings, of scores, of what each half of a layer adds,
and of logits.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2, attention_bias=False, mlp_bias=False)
DOCLING_TYPE = "granite_docling_text"  # the text of Granite for Docling, and what its class has where no file says it
DOCLING_DEFAULTS = Defaults(
    max_position=32768, heads=16, kv_heads=4, bos_id=100257, eos_id=100257, norm_eps=1e-5, attention_bias=False,
    mlp_bias=False,
)  # fmt: skip
DOCLING_MULTIPLIERS = (12.0, 0.015625, 0.263, 4.0)


def read_multipliers(
    config: FolderConfig, spec: ModelSpec, defaults: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
) -> ModelSpec:
    """`spec` with the multipliers in config.json. `defaults`: of embeddings, scores, what is added, and the divisor of
    logits, where it does not say them.
    """
    fields, (embedding, attention, residual, logits) = config.fields, defaults
    return replace(
        spec,
        embedding_scale=fields.number("embedding_multiplier", embedding),
        scales_rows=True,
        attention_scale=fields.number("attention_multiplier", attention),
        residual_scale=fields.number("residual_multiplier", residual),
        logits_scale=1.0 / fields.number("logits_scaling", logits, most=1e6),
    )


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    if config.fields.text("model_type") == DOCLING_TYPE:
        return read_multipliers(config, config.uniform_decoder(DOCLING_DEFAULTS), DOCLING_MULTIPLIERS)
    return read_multipliers(config, config.uniform_decoder(DEFAULTS))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return with_multipliers(config, config.uniform_decoder(whole_heads=True, own_scale=True))


def with_multipliers(config: GgufConfig, spec: ModelSpec) -> ModelSpec:
    """`spec` with the multipliers in a GGUF file. A scale of 0 means that there is none."""
    fields = config.fields
    # The reference reader takes this key as a switch of rope in these architectures.
    has_rope = fields.boolean("rope.scaling.finetuned", True)
    return replace(
        spec,
        rope_layers=() if has_rope else (False,) * spec.num_layers,
        embedding_scale=fields.number("embedding_scale", 1.0, least=0.0) or 1.0,
        scales_rows=True,
        attention_scale=fields.optional_number("attention.scale", least=0.0) or None,
        residual_scale=fields.number("residual_scale", 1.0, least=0.0) or 1.0,
        logits_scale=1.0 / (fields.number("logit_scale", 1.0, least=0.0, most=1e6) or 1.0),
    )


FIELDS = frozenset("embedding_multiplier attention_multiplier residual_multiplier logits_scaling".split())
KEYS = frozenset(("embedding_scale", "residual_scale", "logit_scale"))
ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "granite",
    "GraniteForCausalLM",
    read=read_folder,
    fields=DEFAULTS.fields | FIELDS,
    model_types=("granite4_vision_text", "granite_docling_text"),
    gguf=llama.gguf_format("granite", read_gguf, keys=KEYS),
)
