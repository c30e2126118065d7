"""EuroBERT: Llama's layers, whose tokens see what comes behind as well."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import llama, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=8192, heads=12, vocab=128256, norm_eps=1e-5, intermediate=3072, attention_bias=False, mlp_bias=False
)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD[:2], *llama.PARAMETERS[3:])


def _read_folder(config: FolderConfig) -> ModelSpec:
    if config.labels():
        raise UnsupportedError(
            f"{config.path}: EuroBERT with a head for scores is not supported; homenode makes vectors with it"
        )
    return _both_ways(config.of_encoder().uniform_decoder(DEFAULTS))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    if config.fields.boolean("attention.causal", False):
        raise config.fields.wrong("attention.causal", True, "false, as this is an encoder")
    return _both_ways(config.decoder(whole_heads=True))


def _both_ways(spec: ModelSpec) -> ModelSpec:
    pooling = PoolingSpec("mean", spec.hidden_size)
    return replace(spec, attention_mask="all", pooling=pooling, tie_word_embeddings=False, eos_token_ids=())


ARCHITECTURE = Architecture(
    "eurobert",
    FolderFormat(
        "EuroBertModel",
        _read_folder,
        fields=DEFAULTS.fields | {"id2label"},
        harmless={"classifier_pooling": "of heads", "clf_pooling": "of heads"},
        older_classes=("EuroBertForMaskedLM",),
    ),
    GgufFormat("eurobert", _read_gguf, keys=frozenset(("attention.causal",))),
    PARAMETERS,
    forward,
)
