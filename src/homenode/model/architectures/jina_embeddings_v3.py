"""Jina embeddings 3 without its adapters: XLM-RoBERTa with a rope in place of a table of positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import bert, encoder, nomic_bert
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "jina_embeddings_v3"
DEFAULTS = Defaults(max_position=8194, heads=16, vocab=250002, norm_eps=1e-5, intermediate=4096, theta=20000.0)
PARAMETERS = tuple(each for each in bert.PARAMETERS if each not in (encoder.POSITIONS, encoder.SECOND_TYPES))
_FIELDS = frozenset((*encoder.EPS, *"hidden_act type_vocab_size".split()))
_ADAPTER = ".parametrizations."


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    spec = encoder.folder_figures(config, NAME, DEFAULTS)
    types = config.fields.integer("type_vocab_size", 1, minimum=0, maximum=limits.MOST_HIDDEN)
    return _styled(spec, types, encoder.EncoderStyle(config.plain_activation("hidden_act", "gelu")))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    types = int("model.token_types.weight" in config.tensors)
    return _styled(encoder.gguf_figures(config, NAME), types, encoder.EncoderStyle())


def _styled(spec: ModelSpec, types: int, own: encoder.EncoderStyle) -> ModelSpec:
    return replace(spec, attention_bias=True, output_bias=True, mlp_bias=True, own=own, dimensions={"types": types})


def convert_folder(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, those for q, k and v as an entry for each. UnsupportedError for adapters of tasks."""
    adapted = next((entry for name, entry in tensors.items() if _ADAPTER in name), None)
    if adapted is not None:
        raise UnsupportedError(
            f"{adapted.file}: adapters for tasks (LoRA) inside the weights are not supported in {NAME}; give a folder "
            "of the model without them, or with those of one task merged"
        )
    return encoder.split_tensors(tensors, spec)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "JinaEmbeddingsV3Model",
        read_folder,
        fields=_FIELDS,
        harmless={key: why for key, why in encoder.HARMLESS.items() if key not in _FIELDS},
        older_classes=("JinaEmbeddingsV3ForMaskedLM",),
        modules=encoder.FLASH_MODULES,
        convert=convert_folder,
    ),
    GgufFormat(
        "jina-bert-v3",
        read_gguf,
        keys=encoder.GGUF_KEYS | {"token_type_count"},
        names=encoder.GGUF_NAMES,
        convert=encoder.without_unread,
    ),
    PARAMETERS,
    nomic_bert.forward,
)
