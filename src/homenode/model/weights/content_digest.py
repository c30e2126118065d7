"""A digest of all bytes of a model's weights, for what outlives the files: unlike `weights_identity`, which samples
them, it tells two models apart of which a single weight differs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from homenode.errors import CheckpointError
from homenode.model.spec import Checkpoint, TensorEntry
from homenode.model.weights.kept_digests import KeptDigests
from homenode.model.weights.model_files import ModelFiles

_PIECE = 32 << 20
_READ = 1 << 20
_THREADS = 4
_DIGEST_BYTES = 32


def content_digest(checkpoint: Checkpoint, kept: KeptDigests | None = None, threads: int = _THREADS) -> str:
    """Return it, in hexadecimal; where tensors lie in which files does not count. `kept`: digests of files that were
    read before. `threads`: that read and digest. CheckpointError when a file cannot be read.
    """
    return tensors_digest(checkpoint.tensors.values(), kept, threads)


def tensors_digest(tensors: Iterable[TensorEntry], kept: KeptDigests | None = None, threads: int = _THREADS) -> str:
    """The same of these tensors alone."""
    found = {(part.name, part.file, part.offset, part.nbytes): part for entry in tensors
             for part in entry.stored}  # fmt: skip
    parts = [part for _, part in sorted(found.items())]
    digest = hashlib.sha256()
    with ModelFiles() as files, ThreadPoolExecutor(max_workers=threads) as pool:
        digests = {
            file: iter(_file_digests(files, file, [part for part in parts if part.file == file], kept, pool))
            for file in sorted({part.file for part in parts})
        }
        for part in parts:
            for at in _places(part):
                digest.update(f"{part.name} {part.dtype.name} {part.shape} {at}\n".encode() + next(digests[part.file]))
    return digest.hexdigest()


def _places(part: TensorEntry) -> range:
    return range(0, part.nbytes, _PIECE)


def _file_digests(
    files: ModelFiles, file: Path, parts: Sequence[TensorEntry], kept: KeptDigests | None, pool: ThreadPoolExecutor
) -> list[bytes]:
    """The digests of the pieces of a file's tensors, in the order of these."""
    fd = files.open(file)
    pieces = [(part, at, min(_PIECE, part.nbytes - at)) for part in parts for at in _places(part)]

    def compute() -> bytes:
        return b"".join(pool.map(lambda each: _digest(files, *each), pieces))

    ranges = [(part.offset + at, size) for part, at, size in pieces]
    found = compute() if kept is None else kept.obtain(file, fd, ranges, compute)
    if len(found) != _DIGEST_BYTES * len(pieces):  # of an entry that is none of these
        found = compute()
    return [found[at : at + _DIGEST_BYTES] for at in range(0, len(found), _DIGEST_BYTES)]


def _digest(files: ModelFiles, part: TensorEntry, at: int, size: int) -> bytes:
    digest, fd, done = hashlib.sha256(), files.open(part.file), 0
    while done < size:
        try:
            found = os.pread(fd, min(_READ, size - done), part.offset + at + done)
        except OSError as error:
            raise CheckpointError(f"{part.file} cannot be read: {error.strerror}") from error
        if not found:
            raise CheckpointError(f"{part.file} ended within tensor {part.name}; was it changed while it was read?")
        digest.update(found)
        done += len(found)
    return digest.digest()
