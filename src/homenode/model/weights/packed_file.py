"""The packed cache file: a model's matrices as the kernels read them, so that a second start packs nothing.

A file is 32 bytes (magic, version, length and digest of the header), the header in JSON, and the matrices, each on a
boundary of 4096. Nothing of the file is believed: the header must be the one that would be written now but for the
checksums, and the sum of every matrix must be its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from homenode.compute.ops import PackedBackend
from homenode.model.weights.layout import WeightLayout

_MAGIC, _VERSION, _ALIGNMENT = b"homenode", 3, 4096
_PREFIX = 32
_MOST_HEADER = 64 << 20
_MOST_SUMMED = 256 << 20  # of a model file's head
_BLANK = "0" * 16


class SourceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the model as it was: bytes, nanoseconds since 1970, the checksum of all that stands before its first
    tensor, and the digest of samples of its tensors: files with the same names and times may hold other values.
    """

    name: str
    size: int
    modified: int
    head: str
    samples: str


class PackedMatrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a matrix. `checksum`: 16 hexadecimal digits."""

    name: str
    format: str
    rows: int
    columns: int
    offset: int
    size: int
    checksum: str = _BLANK


class PackedHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The description that a packed file has of itself. `packing` changes with the kernels' layout of bytes; `part`:
    which part of the model it is, "" for all.
    """

    packing: str
    model: tuple[SourceFile, ...]
    matrices: tuple[PackedMatrix, ...]
    part: str = ""

    @property
    def end(self) -> int:
        """Bytes of the whole file."""
        return max(m.offset + m.size for m in self.matrices)

    def without_checksums(self) -> PackedHeader:
        """The header as it is known before anything is read."""
        return self.with_checksums([_BLANK] * len(self.matrices))

    def with_checksums(self, sums: Iterable[str]) -> PackedHeader:
        """The header of the matrices that have these sums."""
        matrices = (msgspec.structs.replace(m, checksum=c) for m, c in zip(self.matrices, sums, strict=True))
        return msgspec.structs.replace(self, matrices=tuple(matrices))

    def encoded(self) -> bytes:
        """The bytes in front of the matrices. Their number does not depend on the checksums."""
        body = msgspec.json.encode(self)
        front = _MAGIC + _VERSION.to_bytes(4, "little") + len(body).to_bytes(4, "little") + _digest(body)
        return front + body


class UnusableError(Exception):
    """A reason why a packed file is not used, in words; `missing` when there is none."""

    def __init__(self, reason: str, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


def expected_header(
    backend: PackedBackend, layout: WeightLayout, model: Iterable[SourceFile], part: str = ""
) -> PackedHeader:
    """The header a packed file of this (part of a) model, laid out like this, has now, without checksums."""
    sizes = [backend.packed_bytes(m.target, m.rows, m.columns) for m in layout.matrices]
    header = PackedHeader(
        backend.packing,
        tuple(model),
        tuple(
            PackedMatrix(m.name, m.target, m.rows, m.columns, 0, size)
            for m, size in zip(layout.matrices, sizes, strict=True)
        ),
        part,
    )
    # Offsets lengthen the header, and a longer header moves them: room for twenty digits each is room enough.
    at = _aligned(len(header.encoded()) + 20 * len(sizes))
    placed = []
    for matrix in header.matrices:
        placed.append(msgspec.structs.replace(matrix, offset=at))
        at = _aligned(at + matrix.size)
    return msgspec.structs.replace(header, matrices=tuple(placed))


def source_file(backend: PackedBackend, path: Path, fd: int, head_bytes: int, samples: str) -> SourceFile:
    """The state of a model's open file whose tensors begin at `head_bytes`; `samples`: the digest of those. OSError or
    HostError when it cannot be read.
    """
    status = os.fstat(fd)
    head = backend.head_checksum(fd, min(head_bytes, _MOST_SUMMED))
    return SourceFile(path.name, status.st_size, status.st_mtime_ns, head, samples)


def open_packed(path: Path, expected: PackedHeader) -> tuple[int, PackedHeader]:
    """A descriptor of the file and its header, checksums included. Raises UnusableError, and leaves nothing
    open then.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UnusableError("there is none", missing=True) from None
    except OSError as error:
        raise UnusableError(
            "it is a symbolic link" if path.is_symlink() else f"it cannot be opened: {error.strerror}"
        ) from error
    try:
        _check_owner(os.fstat(fd))
        header = _read_header(fd)
        _compare(header, expected)
        if os.fstat(fd).st_size != expected.end:
            raise UnusableError(f"it is damaged: it has {os.fstat(fd).st_size} bytes instead of {expected.end}")
    except UnusableError:
        os.close(fd)
        raise
    except OSError as error:
        os.close(fd)
        raise UnusableError(f"it cannot be read: {error.strerror}") from error
    return fd, header


def _check_owner(status: os.stat_result) -> None:
    """Whoever can write the file decides what the model computes: that may be this user and root, nobody else."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableError("it is no regular file")
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise UnusableError("it belongs to another user, or others may write it")


def _read_header(fd: int) -> PackedHeader:
    front = os.pread(fd, _PREFIX, 0)
    if len(front) < _PREFIX or front[:8] != _MAGIC:
        raise UnusableError("it is no packed file")
    version, size = int.from_bytes(front[8:12], "little"), int.from_bytes(front[12:16], "little")
    if version != _VERSION:
        raise UnusableError(f"it has version {version} of the file format; this is version {_VERSION}")
    if not 0 < size <= min(_MOST_HEADER, os.fstat(fd).st_size - _PREFIX):
        raise UnusableError("it is damaged: its header does not fit it")
    body = os.pread(fd, size, _PREFIX)
    if _digest(body) != front[16:_PREFIX]:
        raise UnusableError("it is damaged: its header is not what was written")
    try:
        return msgspec.json.decode(body, type=PackedHeader)
    except msgspec.MsgspecError as error:
        raise UnusableError(f"it is damaged: {error}") from error


def _compare(found: PackedHeader, expected: PackedHeader) -> None:
    if found.part != expected.part:
        raise UnusableError("it holds another part of the model")
    if found.packing != expected.packing:
        raise UnusableError("another version of homenode packed it in another way")
    if found.model != expected.model:
        raise UnusableError("the model's files have changed since")
    if found.without_checksums() != expected:
        raise UnusableError("it holds other matrices")


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
