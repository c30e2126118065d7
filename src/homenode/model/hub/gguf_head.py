"""The figures of a GGUF file that is still on the Hub, from its first bytes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from homenode.dtypes import BY_NAME
from homenode.errors import CheckpointError
from homenode.model.checkpoint.gguf_spec import spec_from_gguf
from homenode.model.formats import limits
from homenode.model.formats.gguf import read_gguf_beginning
from homenode.model.hub.repository import HubFile, HubRepository
from homenode.model.spec import ModelSpec, TensorEntry

_BYTES = 2**19  # a file's figures come before its vocabulary, which may take ten times that


def read_hub_spec(repository: HubRepository, file: HubFile, token: str | None) -> ModelSpec | None:
    """The figures of this file of the repository, of which at most half a MiB is read; None where those bytes do not
    tell, or cannot be had.

    UnsupportedError where they tell that homenode does not run the model.
    """
    with suppress(CheckpointError):
        metadata, lengths = read_gguf_beginning(_first_bytes(repository, file, token), Path(file.name))
        return spec_of_beginning(Path(f"{repository.name}:{file.name}"), metadata, lengths)
    return None


def spec_of_beginning(path: Path, metadata: Mapping[str, Any], lengths: Mapping[str, int]) -> ModelSpec:
    """The figures that these key-value pairs tell without any tensor. `lengths`: of the arrays, those among them that
    were cut short.

    Raises UnsupportedError, and CheckpointError where too little is known.
    """
    architecture = metadata.get("general.architecture")
    told = metadata.get(f"{architecture}.vocab_size")
    vocab = lengths.get("tokenizer.ggml.tokens") or (told if isinstance(told, int) else 0)
    hidden = metadata.get(f"{architecture}.embedding_length")
    shape = (vocab, hidden if isinstance(hidden, int) else 0)
    embedding = TensorEntry(limits.EMBEDDING, BY_NAME["F32"], shape, path, 0, 0)
    return spec_from_gguf(path, metadata, {limits.EMBEDDING: embedding}, {})


def _first_bytes(repository: HubRepository, file: HubFile, token: str | None) -> bytes:
    """None of them where the Hub does not give them: fetching meets the same fault, and explains it."""
    from huggingface_hub import HfFileSystem

    try:
        files = HfFileSystem(token=token)
        place = (
            f"{repository.name}@{repository.commit}/{file.name}"
            if repository.commit
            else f"{repository.name}/{file.name}"
        )
        with files.open(place, "rb", cache_type="none") as stream:
            read: bytes = stream.read(min(_BYTES, file.size))
            return read
    except Exception:  # of the HTTP client, too, which no narrower base covers
        return b""
