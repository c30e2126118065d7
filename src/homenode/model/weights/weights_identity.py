"""The weights that a checkpoint holds and its vocabulary, as digests that do not need all of them read.

Every tensor's name, type and shape counts, and samples of the bytes: another training, or an adapter merged in, changes
nearly all values of the matrices it touches. That two files were made to differ nowhere but between the samples is not
noticed; who owns the files is trusted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from homenode.errors import CheckpointError
from homenode.model.files_read import FilesRead
from homenode.model.identity import ModelIdentity, figures_digest
from homenode.model.spec import Checkpoint, TensorEntry
from homenode.model.weights.model_files import ModelFiles

_SAMPLED_TENSORS = 512
_PLACES = 4  # of each of them: both ends, and between
_SAMPLE = 256  # bytes
_STEP = 16 << 20  # bytes of a tensor, in each of which a place is sampled where files are compared
_MOST_PLACES = 256
_SPREAD = 0x9E3779B97F4A7C15  # an odd number without pattern: the golden ratio
_DIGEST_BYTES = 16
_LARGEST_VOCABULARY = 1 << 28
_VOCABULARIES = ("tokenizer.json", "tekken.json", "tokenizer.model*")  # the first that is there counts

OpenFile = Callable[[Path], int]  # a descriptor that stays open, of a file that is read


def read_identity(checkpoint: Checkpoint, open_file: OpenFile, read: FilesRead | None = None) -> ModelIdentity:
    """The identity of a model, of what `open_file` opens; `read`: what was read of its files of text. All tensors
    count, whichever part of the model is wanted. CheckpointError when one cannot be read.
    """
    return ModelIdentity(
        _weights_digest(checkpoint, open_file),
        {path.name: digest for path, digest in file_digests(checkpoint.tensors.values(), open_file).items()},
        figures_digest(checkpoint.spec),
        {} if read is None else read.texts,
    )


def weights_digest(checkpoint: Checkpoint) -> str:
    """Return a digest of the weights, in hexadecimal. How they are spread over files does not count. CheckpointError
    when one cannot be read.
    """
    with ModelFiles() as files:
        return _weights_digest(checkpoint, files.open)


def _weights_digest(checkpoint: Checkpoint, open_file: OpenFile) -> str:
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
    for entry in _spread(tensors):
        for sample in _samples(entry, _places(entry.nbytes), open_file):
            digest.update(sample)
    return digest.hexdigest()


def _spread(tensors: list[TensorEntry]) -> list[TensorEntry]:
    """At most _SAMPLED_TENSORS of them, evenly from first to last."""
    if len(tensors) <= _SAMPLED_TENSORS:
        return tensors
    return [tensors[i * (len(tensors) - 1) // (_SAMPLED_TENSORS - 1)] for i in range(_SAMPLED_TENSORS)]


def _places(nbytes: int) -> list[int]:
    last = max(0, nbytes - _SAMPLE)
    return sorted({last * i // (_PLACES - 1) for i in range(_PLACES)})


def file_digests(entries: Iterable[TensorEntry], open_file: OpenFile) -> dict[Path, str]:
    """Return a digest of each file that these tensors are in: of each tensor there where it lies, its type, and samples
    of it. CheckpointError when one cannot be read.
    """
    parts = {(part.file, part.offset, part.nbytes): part for entry in entries for part in entry.stored}
    for (file, offset, nbytes), _ in sorted(parts.items(), key=lambda each: each[0]):
        fd = open_file(file)
        for place in _dense_places(nbytes):  # a disk has all of it to do at once
            with suppress(OSError):  # a file that cannot be asked for is read all the same
                os.posix_fadvise(fd, offset + place, _SAMPLE, os.POSIX_FADV_WILLNEED)
    digests: dict[Path, hashlib.blake2b] = {}
    for (file, offset, nbytes), part in sorted(parts.items(), key=lambda each: each[0]):
        digest = digests.setdefault(file, hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"weights-file"))
        digest.update(f"{offset} {nbytes} {part.dtype.name}\n".encode())
        for sample in _samples(part, _dense_places(nbytes), open_file):
            digest.update(sample)
    return {file: digest.hexdigest() for file, digest in digests.items()}


def _dense_places(nbytes: int) -> Iterable[int]:
    """Both ends, and between them one in every step, not at the same place of each: files repeat themselves."""
    last = max(0, nbytes - _SAMPLE)
    steps = min(_MOST_PLACES, -(-nbytes // _STEP))
    width = last // max(1, steps)
    between = (step * width + ((step + 1) * _SPREAD >> 16) % max(1, width) for step in range(steps))
    return sorted({0, last, *between})


def _samples(entry: TensorEntry, places: Iterable[int], open_file: OpenFile) -> Iterator[bytes]:
    fd, size = open_file(entry.file), min(_SAMPLE, entry.nbytes)
    try:
        for place in places:
            found = os.pread(fd, size, entry.offset + place)
            if len(found) < size:
                raise CheckpointError(
                    f"{entry.file} ended within tensor {entry.name}; was it changed while it was read?"
                )
            yield found
    except OSError as error:
        raise CheckpointError(f"{entry.file} cannot be read: {error.strerror}") from error


def tokenizer_digest(checkpoint: Checkpoint) -> str:
    """Return a digest of the vocabulary that belongs to the model, in hexadecimal; `none` for a model without one.
    CheckpointError when it cannot be read.
    """
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
