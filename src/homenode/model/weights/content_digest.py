"""A digest of all bytes of a model's weights, for what outlives the files: unlike `weights_identity`, which samples
them, it tells two models apart of which a single weight differs.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

from homenode.errors import CheckpointError
from homenode.model.spec import Checkpoint, TensorEntry
from homenode.model.weights.model_files import ModelFiles

_PIECE = 32 << 20
_READ = 1 << 20
_THREADS = 4


def content_digest(checkpoint: Checkpoint, threads: int = _THREADS) -> str:
    """Return it, in hexadecimal; where tensors lie in which files does not count. `threads`: that read and digest.
    CheckpointError when a file cannot be read.
    """
    parts = sorted(
        {(part.name, part.file, part.offset, part.nbytes): part for entry in checkpoint.tensors.values()
         for part in entry.stored}.items()
    )  # fmt: skip
    pieces = [(part, at, min(_PIECE, part.nbytes - at)) for _, part in parts for at in range(0, part.nbytes, _PIECE)]
    digest = hashlib.sha256()
    with ModelFiles() as files, ThreadPoolExecutor(max_workers=threads) as pool:
        for _, part in parts:
            files.open(part.file)
        for (part, at, _), piece in zip(pieces, pool.map(lambda each: _digest(files, *each), pieces), strict=True):
            digest.update(f"{part.name} {part.dtype.name} {part.shape} {at}\n".encode() + piece)
    return digest.hexdigest()


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
