"""The file of a model that has its vocabulary: tokenizer.json, one of Mistral's in its place, or a GGUF file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from homenode.errors import CheckpointError
from homenode.host.refusals import named_refusals
from homenode.model.files_read import FilesRead, recorded_files
from homenode.model.formats.bounded_files import is_there, read_binary

USUAL, TEKKEN, SENTENCEPIECE = "tokenizer.json", "tekken.json", "tokenizer.model"
LARGEST_FILE = 256 * 2**20


def vocabulary_file(path: Path) -> Path:
    """The file of the model at `path` that has the vocabulary, whether or not it is there."""
    return gguf_vocabulary(path) or (folder_vocabulary(path) if path.is_dir() else path)


def folder_vocabulary(folder: Path) -> Path:
    """The same of a folder: tokenizer.json before the files that Mistral has in its place."""
    if is_there(folder / USUAL) or is_there(folder / TEKKEN):
        return folder / (USUAL if is_there(folder / USUAL) else TEKKEN)
    versions = sorted(folder.glob(f"{SENTENCEPIECE}.v*"), key=lambda file: (len(file.name), file.name))
    of_mistral = is_there(folder / "params.json") and not is_there(folder / "config.json")
    if of_mistral and is_there(folder / SENTENCEPIECE):  # of the first models; elsewhere other files change it
        versions = versions or [folder / SENTENCEPIECE]
    return versions[-1] if versions else folder / USUAL


def gguf_vocabulary(path: Path) -> Path | None:
    """The GGUF file that holds the vocabulary, the first of a split one; None for a folder with another file of a
    vocabulary, or without GGUF files.
    """
    if not path.is_file() and (is_there(folder_vocabulary(path)) or not any(path.glob("*.gguf"))):
        return None
    from homenode.model.formats.gguf_set import find_gguf, first_shard  # brings NumPy

    if path.is_file():
        return first_shard(path) if path.suffix == ".gguf" else None
    return find_gguf(path)


def read_vocabulary_text(path: Path, read: FilesRead) -> None:
    """Keep in `read` which text the vocabulary at `path` has, for those who read it later to be held to. What is wrong
    with the file is told by who needs it; HostError where the machine refuses to look.
    """
    with suppress(CheckpointError), named_refusals(f"reading the vocabulary of {path}", CheckpointError):
        file = vocabulary_file(path)
        if not file.is_file() or file in read.digests:
            return
        with recorded_files(read):
            if file.suffix == ".gguf":
                from homenode.model.formats.gguf import read_gguf  # brings NumPy

                read_gguf(file)
            else:
                read_binary(file, LARGEST_FILE)
