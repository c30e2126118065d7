"""Which weights a checkpoint holds and which vocabulary, as digests that do not need all of them read.

Every tensor's name, type and shape counts, and samples of the bytes: another training, or an adapter merged in, changes
nearly all values of the matrices it touches. That two files were made to differ nowhere but between the samples is not
noticed; who owns the files is trusted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from homenode.errors import CheckpointError
from homenode.model.spec import Checkpoint, TensorEntry

_SAMPLED_TENSORS = 512
_PLACES = 4  # of each of them: both ends, and between
_SAMPLE = 256  # bytes
_DIGEST_BYTES = 16
_LARGEST_VOCABULARY = 1 << 28
_VOCABULARIES = ("tokenizer.json", "tekken.json", "tokenizer.model*")  # the first that is there counts


def weights_digest(checkpoint: Checkpoint) -> str:
    """Of the weights, in hexadecimal. How they are spread over files does not count. CheckpointError when one cannot be
    read."""
    entries = [checkpoint.tensors[name] for name in sorted(checkpoint.tensors)]
    tensors = [part for entry in entries for part in entry.stored]
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"kv-weights")
    for entry in entries:
        if (coded := entry.coded) is not None:
            digest.update(
                f"{entry.name} {coded.packing} {coded.bits} {coded.block} {coded.zero_offset} {coded.order is None} "
                f"{coded.first_row} {coded.row_step} {coded.row_run} {coded.transposed} {coded.first_column}\n".encode()
            )
    for entry in tensors:
        digest.update(
            f"{entry.name} {entry.dtype.name} {entry.shape} {entry.nbytes} "
            f"{entry.permuted_heads} {entry.times}\n".encode()
        )
    for sample in _samples(_spread(tensors)):
        digest.update(sample)
    return digest.hexdigest()


def _spread(tensors: list[TensorEntry]) -> list[TensorEntry]:
    """At most _SAMPLED_TENSORS of them, evenly from first to last."""
    if len(tensors) <= _SAMPLED_TENSORS:
        return tensors
    return [tensors[i * (len(tensors) - 1) // (_SAMPLED_TENSORS - 1)] for i in range(_SAMPLED_TENSORS)]


def _samples(tensors: list[TensorEntry]) -> Iterator[bytes]:
    with ExitStack() as stack:
        opened: dict[Path, int] = {}
        for entry in tensors:
            try:
                if entry.file not in opened:
                    opened[entry.file] = os.open(entry.file, os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, opened[entry.file])
                for place in _places(entry.nbytes):
                    size = min(_SAMPLE, entry.nbytes)
                    found = os.pread(opened[entry.file], size, entry.offset + place)
                    if len(found) < size:
                        raise CheckpointError(
                            f"{entry.file} ended within tensor {entry.name}; was it changed while it was read?"
                        )
                    yield found
            except OSError as error:
                raise CheckpointError(f"{entry.file} cannot be read: {error.strerror}") from error


def _places(nbytes: int) -> list[int]:
    last = max(0, nbytes - _SAMPLE)
    return sorted({last * i // (_PLACES - 1) for i in range(_PLACES)})


def tokenizer_digest(checkpoint: Checkpoint) -> str:
    """Of the vocabulary that belongs to the model, in hexadecimal; `none` for a model without one. CheckpointError when
    it cannot be read."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"kv-vocabulary")
    if ours := {key: value for key, value in checkpoint.metadata.items() if key.startswith("tokenizer.ggml.")}:
        digest.update(msgspec.json.encode(sorted(ours.items()), enc_hook=repr))
        return digest.hexdigest()
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    for path in (path for pattern in _VOCABULARIES for path in sorted(folder.glob(pattern))):
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST_VOCABULARY + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        if len(content) > _LARGEST_VOCABULARY:
            raise CheckpointError(f"{path} is larger than {_LARGEST_VOCABULARY} bytes, which no vocabulary is")
        digest.update(content)
        return digest.hexdigest()
    return "none"
