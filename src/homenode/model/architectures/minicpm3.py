"""MiniCPM 3: latent attention whose pairs that turn are halves of a head, an MLP in every layer, and MiniCPM's
multipliers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.model.architectures import latent_attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.latent_attention import LatentHeads, heads_of
from homenode.model.architectures.minicpm import DEPTH, EMBEDDING, FIELDS, WIDTH, with_multipliers
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=32768, heads=40, kv_heads=40, vocab=73448, bos_id=1, eos_id=2, norm_eps=1e-5)
HEADS = LatentHeads(query_rank=768, latent=256, plain=64, rotary=32, value=64)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *latent_attention.PARAMETERS, *tables.GATED_MLP)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"mlp_bias": False})
    heads = replace(HEADS, value=_value_width(fields.integer("hidden_size"), fields.integer("num_attention_heads", 40)))
    spec = latent_attention.read_folder(config, DEFAULTS, heads)
    spec = replace(spec, embedding_scale=fields.number("scale_emb", EMBEDDING), own=_turning_halves(spec))
    return with_multipliers(config, spec, depth=DEPTH, width=WIDTH)


def _turning_halves(spec: ModelSpec) -> LatentHeads:
    return replace(heads_of(spec), adjacent=False)


def _value_width(hidden: int, heads: int) -> int:
    """Return the width of a head, where the file does not say."""
    return max(hidden // heads, 1)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which says nothing of the multipliers."""
    fields = config.fields
    value = _value_width(fields.integer("embedding_length"), fields.integer("attention.head_count"))
    spec = latent_attention.read_gguf(config, value=value)
    return replace(
        spec,
        embedding_scale=EMBEDDING,
        residual_scale=DEPTH / math.sqrt(spec.num_layers),
        logits_scale=1.0 / (spec.hidden_size / WIDTH),
        own=_turning_halves(spec),
    )


ARCHITECTURE = Architecture(
    "minicpm3",
    FolderFormat(
        "MiniCPM3ForCausalLM",
        _read_folder,
        fields=latent_attention.FIELDS | FIELDS | {"mlp_bias"},
        convert=latent_attention.split_folder_heads,
    ),
    latent_attention.gguf_format("minicpm3", read_gguf),
    PARAMETERS,
    latent_attention.forward,
)
