"""EuroBERT: Llama's layers, whose tokens see what comes behind as well."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import common, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec

NAME = "eurobert"
DEFAULTS = Defaults(max_position=8192, heads=12, vocab=128256, norm_eps=1e-5, intermediate=3072)
PARAMETERS = (*common.EMBEDDING_AND_HEAD[:2], *llama.PARAMETERS[3:])


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    if config.labels():
        raise UnsupportedError(
            f"{config.path}: EuroBERT with a head for scores is not supported; homenode makes vectors with it"
        )
    return _both_ways(llama.read_folder_as(config, NAME, DEFAULTS))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    if config.fields.boolean("attention.causal", False):
        raise config.fields.wrong("attention.causal", True, "false, as this is an encoder")
    return _both_ways(config.decoder(NAME, whole_heads=True))


def _both_ways(spec: ModelSpec) -> ModelSpec:
    pooling = PoolingSpec("mean", spec.hidden_size)
    return replace(spec, attention_mask="all", pooling=pooling, tie_word_embeddings=False, eos_token_ids=())


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "EuroBertModel",
        read_folder,
        fields=frozenset("hidden_act attention_bias mlp_bias id2label".split()),
        harmless={"classifier_pooling": "of heads", "clf_pooling": "of heads"},
        older_classes=("EuroBertForMaskedLM",),
    ),
    GgufFormat("eurobert", read_gguf, keys=frozenset(("attention.causal",))),
    PARAMETERS,
    forward,
)
