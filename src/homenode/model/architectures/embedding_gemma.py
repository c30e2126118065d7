"""EmbeddingGemma: Gemma 3's layers, whose tokens see what comes behind as well, in windows both ways."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import conversions, gemma2, gemma3
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import FolderConfig
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec


def _read_folder(config: FolderConfig) -> ModelSpec:
    if not config.fields.boolean("use_bidirectional_attention", False):
        raise UnsupportedError(
            f"{config.path}: use_bidirectional_attention false is not supported for this class; homenode runs it as "
            "Gemma3ForCausalLM"
        )
    config.fields.refuse_others({"attn_logit_softcapping": None})
    return _both_ways(gemma2.decoder(config, gemma3.DEFAULTS, gemma3.PATTERN))


def _both_ways(spec: ModelSpec) -> ModelSpec:
    """A window is as long in all as the files say, so that a token sees half of it each way."""
    window = None if spec.sliding_window is None else spec.sliding_window // 2 + 1
    pooling = PoolingSpec("mean", spec.hidden_size)
    return replace(spec, attention_mask="all", sliding_window=window, pooling=pooling, tie_word_embeddings=False)


ARCHITECTURE = Architecture(
    "embedding_gemma",
    FolderFormat(
        "Gemma3TextModel",
        _read_folder,
        fields=gemma2.FIELDS - {"final_logit_softcapping"} | {"rope_local_base_freq"},
        harmless=gemma2.HARMLESS | {"final_logit_softcapping": "it makes no logits"},
        convert=conversions.norms_plus_one,
    ),
    GgufFormat(
        "gemma-embedding",
        lambda config: _both_ways(gemma3.read_gguf(config)),
        keys=gemma3.ARCHITECTURE.gguf.keys | {"attention.causal"},
    ),
    gemma3.PARAMETERS,
    gemma2.forward,
)
