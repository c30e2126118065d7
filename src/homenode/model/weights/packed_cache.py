"""Reading a model's matrices from its packed cache file, and writing that file when it was missing, stale or damaged.

The cache never keeps a model from loading: whatever is wrong with it is said in a note, and the model's own files are
read.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import TracebackType

from homenode.compute.ops import Backend, MatrixPlacement, PackedBackend, PackedLocation, Weight
from homenode.dtypes import BY_NAME
from homenode.errors import HostError, UserError
from homenode.model.part import ModelPart
from homenode.model.spec import TensorEntry
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.model_files import ModelFiles
from homenode.model.weights.packed_file import (
    PackedMatrix,
    SourceFile,
    UnusableError,
    expected_header,
    open_packed,
    source_file,
)
from homenode.model.weights.weights_identity import file_digests
from homenode.numa_policy import NumaPolicy
from homenode.units import format_bytes

SUFFIX = ".packed"
OFF, BESIDE = "off", "beside"
# Read with one call: enough that its beginning and end cost nothing, little enough that progress is seen.
_AT_ONCE = 64 << 20


def packed_folder(setting: str, model: Path) -> Path | None:
    """The folder `--packed-cache` names: None for `off`, that of the model for `beside`, else the path itself."""
    if setting == OFF:
        return None
    if setting == BESIDE:
        return model if model.is_dir() else model.parent
    return Path(setting).expanduser()


class PackedCache:
    """The packed file of a model, or of a part of one, for the time of one load. `notes`: what an operator should be
    told.
    """

    def __init__(
        self,
        folder: Path,
        entries: Sequence[TensorEntry],
        layout: WeightLayout,
        backend: Backend,
        placement_of: Callable[[str], MatrixPlacement] = lambda name: NumaPolicy.SHARD,
        part: ModelPart | None = None,
        is_read: Callable[[str], bool] = lambda name: True,
        writes: bool = True,
    ) -> None:
        """`entries`: all tensors of the files in which the matrices of the layout are. `placement_of`: how each is to
        lie in memory. `part`: which part of the model the layout is of. `is_read`: which of them will be asked for;
        others are added in the end, by whoever has them. `writes`: False when another process writes the same file
        unless it is there. UserError when the backend packs nothing.
        """
        if not isinstance(backend, PackedBackend):
            raise UserError(
                f"backend {backend.name} keeps no packed weights; give --packed-cache off", param="packed_cache"
            )
        self._backend, self._placement_of = backend, placement_of
        key = _part_key(part)
        self._header = expected_header(backend, layout, sources_of(backend, entries), key)
        self.path = folder / _file_name(entries, layout, key)
        self.notes: list[str] = []
        self._fd: int | None = None
        self._writes = writes
        self._found: dict[str, PackedMatrix] = {}  # not read yet, in the order of the file
        # Read with others before it was asked for; checksums read and written.
        self._prefetched: dict[str, tuple[Weight, str, str]] = {}
        self._weights: dict[str, Weight] = {}
        self._begun: set[str] = set()  # whatever came of it
        try:
            self._fd, header = open_packed(self.path, self._header)
            self._found = {m.name: m for m in header.matrices if is_read(m.name)}
        except UnusableError as error:
            if not error.missing:
                self.notes.append(f"packed cache {self.path} is not used: {error}")

    def __enter__(self) -> PackedCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._weights.clear()
        self._prefetched.clear()

    def weight(self, name: str) -> Weight | None:
        """The matrix from the packed file; None when it must be read from the model."""
        if self._fd is None:
            return None
        if name not in self._prefetched:
            try:
                self._read_on(self._fd, name)
            except (HostError, ValueError) as error:
                self._give_up(f"matrix {name} or one that follows it cannot be read: {error}")
                return None
        weight, checksum, written = self._prefetched.pop(name)
        if checksum != written:
            self._give_up(f"matrix {name} is damaged (checksum {checksum}, written {written})")
            return None
        self._weights[name] = weight
        return weight

    def has(self, name: str) -> bool:
        """Return whether the matrix is there, as far as is known before it is read."""
        return self._fd is not None and name in self._found

    def has_begun(self, name: str) -> bool:
        """Return whether some of the matrix may have been read from the file to where it is to be, though it was not
        given.
        """
        return name in self._begun

    def _read_on(self, fd: int, name: str) -> None:
        """Read this matrix, and those that come next in the file, with one call."""
        first = self._found.pop(name)
        ends = accumulate((m.size for m in self._found.values()), initial=first.size)
        some = [first, *(m for m, before in zip(self._found.values(), ends, strict=False) if before < _AT_ONCE)]
        for matrix in some[1:]:
            del self._found[matrix.name]
        self._begun.update(m.name for m in some)
        read = self._backend.weights_from_packed(fd, [self._place(m) for m in some])
        for matrix, (weight, checksum) in zip(some, read, strict=True):
            self._prefetched[matrix.name] = weight, checksum, matrix.checksum

    def _place(self, matrix: PackedMatrix) -> PackedLocation:
        return PackedLocation(
            matrix.offset, matrix.format, matrix.rows, matrix.columns, self._placement_of(matrix.name)
        )

    def add(self, weights: Mapping[str, Weight]) -> None:
        """Matrices that did not come from the file, by name."""
        self._weights |= weights

    def complete(self) -> None:
        """All matrices are there: write the file where none could be used."""
        if self._fd is not None or not self._writes:
            return
        try:
            self._write()
        except OSError as error:
            self.notes.append(f"packed cache {self.path} was not written: {error.strerror or error}")
        except HostError as error:
            self.notes.append(f"packed cache {self.path} was not written: {error.message}")
        else:
            self.notes.append(
                f"packed cache {self.path} written, {format_bytes(self._header.end)}: the next start reads it"
            )

    def _give_up(self, reason: str) -> None:
        """Read the rest from the model, and write the file anew."""
        self.notes.append(f"packed cache {self.path} is not used any further: {reason}")
        self._prefetched.clear()
        self._writes = True  # whoever else reads it may have seen nothing wrong
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self) -> None:
        """Into a file of a name nobody else has, which then takes the place of the old one: readers see one or the
        other, whole.

        The disk is not waited for, as that may take a minute while the model is ready: what a crash of the machine
        leaves of the file is found out by its checksums, and written anew.
        """
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(self.path)
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < self._header.end:
            raise OSError(
                f"it needs {format_bytes(self._header.end)}, and {format_bytes(free.f_bavail * free.f_frsize)} are free"
            )
        temporary = folder / f".{self.path.name}.{secrets.token_hex(8)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._fill(fd)
            temporary.rename(self.path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(fd)

    def _fill(self, fd: int) -> None:
        os.ftruncate(fd, self._header.end)
        matrices = self._header.matrices
        sums = [self._backend.write_packed(self._weights[m.name], fd, m.offset) for m in matrices]
        header = self._header.with_checksums(sums).encoded()
        if os.pwrite(fd, header, 0) != len(header):
            raise OSError("the header was written in part only")


def sources_of(backend: PackedBackend, entries: Sequence[TensorEntry]) -> list[SourceFile]:
    """The state of the files that these tensors are all tensors of."""
    heads: dict[Path, int] = {}
    for entry in entries:
        heads[entry.file] = min(entry.offset, heads.get(entry.file, entry.offset))
    with ModelFiles() as files:
        samples = file_digests(entries, files.open)
        return [source_file(backend, path, files.open(path), size, samples[path]) for path, size in heads.items()]


def _file_name(entries: Iterable[TensorEntry], layout: WeightLayout, part: str) -> str:
    """The same for the same part of a model kept in the same way, whatever became of its files; readable in front."""
    first = min(entry.file for entry in entries)
    # The same bytes of a quantised folder may be meant in several ways, which its configuration tells.
    matrices = [(m.name, m.target) if m.source in BY_NAME else (m.name, m.target, m.source) for m in layout.matrices]
    what = (str(first.absolute()), matrices, *([part] if part else []))
    digest = hashlib.blake2b(repr(what).encode(), digest_size=6)
    return f"{first.stem}.{digest.hexdigest()}{SUFFIX}"


def _part_key(part: ModelPart | None) -> str:
    """Return which rows, columns and experts of the matrices: parts of one shape have other ones. "" for
    all of them.
    """
    if part is None or part.is_whole:
        return ""
    return f"{part.name}, {hashlib.blake2b(repr(part).encode(), digest_size=8).hexdigest()}"


def _remove_abandoned(path: Path) -> None:
    """Remove what writers of this file left that ended in the middle: a living one holds a lock."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(OSError):
            # Opening a pipe of that name would wait for a writer.
            fd = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(fd)
