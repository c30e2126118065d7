"""Models that turn a text into one vector or one score, told by their files. homenode generates text, so they are
refused by that name.

Such a model has the architecture of a text generator, and would answer with nonsense where it was served as one.
Sources: the folders that the sentence-transformers project writes, and the pooling types of the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.reading import read_json_list

MODULES = "modules.json"
_MOST_JSON_BYTES = 2**20
_POOLING = {1: "mean", 2: "CLS", 3: "last"}
_RANK = 4
_NO_POOLING = (0, 2**32 - 1)  # the second is -1: not said
_GENERATES = "homenode generates text: use a model for text generation"


def refuse_embedding_folder(folder: Path) -> None:
    """UnsupportedError for a folder whose modules.json names a step that makes one vector of a text's vectors."""
    file = folder / MODULES
    if not file.is_file():
        return
    for module in read_json_list(file, _MOST_JSON_BYTES):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind.endswith("Pooling"):
            raise UnsupportedError(f"{folder}: an embedding model ({MODULES} names a {kind} module); {_GENERATES}")


def refuse_embedding_gguf(path: Path, metadata: Mapping[str, Any], architecture: str) -> None:
    """UnsupportedError for a GGUF file whose `pooling_type` asks for one vector or one score of a text. `architecture`:
    the file's name of it.
    """
    fields = Fields(path, metadata, f"{architecture}.")
    kind = fields.optional_integer("pooling_type", minimum=-1, maximum=2**32 - 1)
    if kind is None or kind < 0 or kind in _NO_POOLING:
        return
    what = "a reranking model" if kind == _RANK else "an embedding model"
    named = f" ({_POOLING[kind]})" if kind in _POOLING else ""
    raise UnsupportedError(f"{path}: {what} ({architecture}.pooling_type {kind}{named}); {_GENERATES}")


def refuse_base_model(folder: Path, tensors: Iterable[str]) -> None:
    """UnsupportedError for tensors named as those of a model by itself, without what makes text of its vectors, as
    embedding models are saved.
    """
    names = set(tensors)
    base = limits.EMBEDDING.removeprefix("model.")
    if limits.EMBEDDING not in names and base in names:
        raise UnsupportedError(
            f"{folder}: the weights of a base or embedding model (a tensor {base}, not {limits.EMBEDDING}); {_GENERATES}"
        )
