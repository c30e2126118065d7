"""Which tokenizers this process has found usable in a trial, by the content of their files.

A second engine of the process, or another copy of the same model, needs no second trial of the same bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from homenode.errors import CheckpointError
from homenode.model.formats.reading import is_there, open_file

_FOLDER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")  # what a trial reads of a folder
_LARGEST_BYTES = 64 << 20  # of all files together; reading more takes as long as a trial
_MOST_DIGESTS = 4096
_USABLE: set[bytes] = set()


def digest_content(path: Path, file: Path) -> bytes | None:
    """A digest of all that a trial reads of the model at `path`, whose vocabulary is in `file`.

    None where that is too much, or cannot be read: what is wrong with it is for the trial to say.
    """
    files = [path / name for name in _FOLDER_FILES] if file.name == "tokenizer.json" else [file]
    digest, left = hashlib.blake2b(digest_size=32), _LARGEST_BYTES
    try:
        for each in files:
            if not is_there(each):
                digest.update(b"missing")
                continue
            with open_file(each) as opened:
                data = opened.read(left + 1)
            left -= len(data)
            if left < 0:
                return None
            digest.update(len(data).to_bytes(8, "little") + data)
    except (CheckpointError, OSError, MemoryError):
        return None
    return digest.digest()


def is_usable(path: Path, file: Path) -> bool:
    """Whether a trial of what the model's files hold now has come to a good end before."""
    return bool(_USABLE) and digest_content(path, file) in _USABLE


def remember_usable(digest: bytes | None) -> None:
    """A trial of this content has come to a good end."""
    if digest is not None and len(_USABLE) < _MOST_DIGESTS:
        _USABLE.add(digest)
