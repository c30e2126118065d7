"""Jina embeddings 3 without its adapters: XLM-RoBERTa with a rope in place of a table of positions."""

from __future__ import annotations

from homenode.errors import UnsupportedError
from homenode.model.architectures import bert, encoder, nomic_bert
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=8194, heads=16, vocab=250002, norm_eps=1e-5, intermediate=4096, theta=20000.0, activation=None
)
PARAMETERS = tuple(each for each in bert.PARAMETERS if each not in (encoder.POSITIONS, encoder.SECOND_TYPES))
_FIELDS = frozenset((*encoder.EPS, *"hidden_act type_vocab_size".split()))
_ADAPTER = ".parametrizations."


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = encoder.folder_figures(config, DEFAULTS)
    style = encoder.EncoderStyle(config.plain_activation("hidden_act", "gelu"))
    return encoder.biased(spec, style, types=encoder.types_of_folder(config.fields, 1))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    types = encoder.types_of_gguf(config)
    return encoder.biased(encoder.gguf_figures(config), encoder.EncoderStyle(), types=types)


def convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, those for q, k and v as an entry for each. UnsupportedError for adapters of tasks."""
    adapted = next((entry for name, entry in tensors.items() if _ADAPTER in name), None)
    if adapted is not None:
        raise UnsupportedError(
            f"{adapted.file}: adapters for tasks (LoRA) inside the weights are not supported in {spec.architecture}; "
            "give a folder of the model without them, or with those of one task merged"
        )
    return encoder.split_tensors(tensors, spec)


ARCHITECTURE = Architecture(
    "jina_embeddings_v3",
    FolderFormat(
        "JinaEmbeddingsV3Model",
        _read_folder,
        fields=_FIELDS,
        harmless=encoder.harmless_but(_FIELDS),
        older_classes=("JinaEmbeddingsV3ForMaskedLM",),
        modules=encoder.FLASH_MODULES,
        convert=convert_folder,
    ),
    encoder.gguf_format("jina-bert-v3", _read_gguf, encoder.without_unread),
    PARAMETERS,
    nomic_bert.forward,
)
