"""The folder of KV blocks: a folder for each model, in it a file for each block. Effects alone.

Nothing is ever followed out of it: all names are opened below a descriptor of their folder, never through a link, and
what is no regular file is no block. A file gets its name when it is whole: one that a killed process had begun has none
(O_TMPFILE), or one that nobody looks for, of a process that does not hold its lock any more.

`usage` in the root has the bytes of all blocks and a number that changes with them. It is read and written under a lock
of the root, which is held for a few system calls and never while anything is computed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from homenode.engine.kv_disk.block_index import StoredBlock

SUFFIX = ".kv"
DESCRIPTION = "model.json"
_USAGE = "usage"
_MODEL = re.compile(r"[0-9a-f]{32}")
_BLOCK = re.compile(r"([0-9a-f]{32})\.kv")
_UNFINISHED = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{16}\.new")
_RECORD = struct.Struct("<4sIqQ")
_MAGIC, _VERSION = b"HNKU", 1
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_DESCRIPTION = 1 << 16
_LONGEST_LOCK_S, _BETWEEN_LOCKS_S = 2.0, 0.001
_MOST_PARTS = 512  # of one system call; IOV_MAX is 1024


class NotABlockError(Exception):
    """There is something under the name of a block that is none: a link, a pipe, a folder."""


@dataclass
class FolderUsage:
    """What all processes that write there have counted: bytes of blocks, and a number that changes with them."""

    nbytes: int = 0
    generation: int = 0


class StoreFolder:
    """An open folder of KV blocks. OSError where something fails. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._models: dict[str, int] = {}
        self._unnamed = True  # files without a name can be made there

    @classmethod
    def make(cls, path: Path) -> StoreFolder:
        """Open it, and make it before where only it itself is missing."""
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
            path.chmod(0o700)
        return cls(path)

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (*self._models.values(), self._root):
            os.close(fd)
        self._models, self._root = {}, -1

    @property
    def device(self) -> int:
        """Return the number of its file system."""
        return os.fstat(self._root).st_dev

    def open_again(self) -> None:
        """Open what has its names now: folders were removed, or put in each other's place."""
        for model in list(self._models):
            self.forget_model(model)
        if not self._is_there():
            again = StoreFolder.make(self.path)
            os.close(self._root)
            self._root = again._root

    def holds(self, model: str) -> bool:
        """Return whether it and the folder of a model still have their names."""
        return self._is_there() and _is_same(self._models.get(model, -1), model, self._root)

    def _is_there(self) -> bool:
        return _is_same(self._root, str(self.path), None)

    def free_bytes(self) -> int:
        """Bytes that the file system has left for us."""
        found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize

    # Models

    def models(self) -> list[str]:
        """Names of the folders of models."""
        return sorted(
            name
            for name in os.listdir(self._root)  # noqa: PTH208, of a descriptor
            if _MODEL.fullmatch(name) and self._is_folder(name)
        )

    def _is_folder(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self._root, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def open_model(self, model: str, *, make: bool = False) -> int:
        """The descriptor of a model's folder, which stays the folder's."""
        if (fd := self._models.get(model, -1)) >= 0:
            return fd
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(model, 0o700, dir_fd=self._root)
        fd = os.open(model, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root)
        if make:
            os.fchmod(fd, 0o700)
        self._models[model] = fd
        return fd

    def forget_model(self, model: str) -> None:
        """Close the descriptor of a model's folder, if it is open."""
        if (fd := self._models.pop(model, -1)) >= 0:
            os.close(fd)

    def remove_model(self, model: str) -> None:
        """Remove a model's folder where it is empty but for what is ours."""
        fd = self.open_model(model)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(DESCRIPTION, dir_fd=fd)
        self.forget_model(model)
        with contextlib.suppress(OSError):
            os.rmdir(model, dir_fd=self._root)

    def describe_model(self, model: str, text: bytes) -> None:
        """Leave what is told of a model beside its blocks."""
        fd = self.open_model(model, make=True)
        self._place(fd, DESCRIPTION, [text])

    def model_description(self, model: str) -> bytes:
        """Return what is told of a model; empty where nobody has left anything."""
        try:
            with self._reading(self.open_model(model), DESCRIPTION) as (file, _):
                return os.read(file, _MOST_DESCRIPTION)
        except (OSError, NotABlockError):
            return b""

    # Blocks

    def list_blocks(self, model: str) -> tuple[dict[str, StoredBlock], list[str]]:
        """The blocks of a model by name, and names of blocks under which there is something else."""
        fd = self.open_model(model)
        found, others = dict[str, StoredBlock](), list[str]()
        for entry in os.listdir(fd):  # noqa: PTH208, of a descriptor
            match = _BLOCK.fullmatch(entry)
            if match is None:
                if _UNFINISHED.fullmatch(entry):
                    self._remove_unfinished(fd, entry)
                continue
            with contextlib.suppress(FileNotFoundError):
                seen = os.stat(entry, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(seen.st_mode):
                    found[match[1]] = StoredBlock(seen.st_size, seen.st_mtime)
                else:
                    others.append(match[1])
        return found, others

    def _remove_unfinished(self, fd: int, entry: str) -> None:
        """Remove a file that nobody will finish: whoever does holds a lock of it."""
        with contextlib.suppress(OSError, NotABlockError), self._reading(fd, entry) as (file, _):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry, dir_fd=fd)

    @contextlib.contextmanager
    def reading(self, model: str, name: str) -> Iterator[tuple[int, int]]:
        """The descriptor and the bytes of a block's file. FileNotFoundError where there is none, NotABlockError where
        it is none.
        """
        with self._reading(self.open_model(model), name + SUFFIX) as opened:
            yield opened

    @contextlib.contextmanager
    def _reading(self, folder: int, entry: str) -> Iterator[tuple[int, int]]:
        try:
            file = os.open(entry, os.O_RDONLY | _FLAGS, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise NotABlockError("it is no file") from error
            raise
        try:
            seen = os.fstat(file)
            if not stat.S_ISREG(seen.st_mode):
                raise NotABlockError("it is no file")
            if seen.st_uid != os.geteuid():
                raise NotABlockError("it is another user's")
            yield file, seen.st_size
        finally:
            os.close(file)

    def write(self, model: str, name: str, parts: Sequence[bytes | bytearray | memoryview]) -> UnnamedFile:
        """A file with these bytes that has no name yet."""
        return self._write(self.open_model(model, make=True), name, parts)

    def _write(self, folder: int, name: str, parts: Sequence[bytes | bytearray | memoryview]) -> UnnamedFile:
        fd, unfinished = -1, ""
        if self._unnamed:
            try:
                fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                    raise
                self._unnamed = error.errno == errno.ENOENT
        if fd < 0:
            stem = name if len(name) == 32 else "0" * 32
            unfinished = f"{stem}.{os.urandom(8).hex()}.new"
            fd = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _FLAGS, 0o600, dir_fd=folder)
        file = UnnamedFile(folder, fd, unfinished)
        try:
            if unfinished:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o600)
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    view = view[os.write(fd, view) :]
        except BaseException:
            file.close()
            raise
        return file

    def _place(self, folder: int, entry: str, parts: Sequence[bytes]) -> None:
        """Have a small file of ours have these bytes, in place of whatever is there."""
        file = self._write(folder, entry, parts)
        try:
            if not file.link(entry):
                self._remove_entry(folder, entry)
                file.link(entry)
        finally:
            file.close()

    def remove(self, model: str, name: str) -> bool:
        """Remove whatever is under the name of a block. False: nothing was, or it cannot be removed."""
        return self._remove_entry(self.open_model(model), name + SUFFIX)

    def _remove_entry(self, folder: int, entry: str) -> bool:
        try:
            os.unlink(entry, dir_fd=folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
            try:
                os.rmdir(entry, dir_fd=folder)
            except OSError:
                return False
        return True

    def read_ahead(self, model: str, name: str) -> None:
        """Have the disk bring a block that is read next."""
        with contextlib.suppress(OSError, NotABlockError), self.reading(model, name) as (file, _):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)

    def touch(self, model: str, name: str, used: float) -> None:
        """Note when a block was used last."""
        with contextlib.suppress(OSError):
            os.utime(name + SUFFIX, (used, used), dir_fd=self.open_model(model), follow_symlinks=False)

    def last_use(self, model: str, name: str) -> float | None:
        """Return when a block was used last; None: it is not there."""
        try:
            return os.stat(name + SUFFIX, dir_fd=self.open_model(model), follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return None

    # What all of it takes

    def read_usage(self) -> FolderUsage | None:
        """What was counted; None where nobody has counted, or what is there is damaged."""
        try:
            with self._reading(self._root, _USAGE) as (file, _):
                record = os.read(file, _RECORD.size + 5)
        except (OSError, NotABlockError):
            return None
        if len(record) != _RECORD.size + 4 or zlib.crc32(record[:-4]) != int.from_bytes(record[-4:], "little"):
            return None
        magic, version, nbytes, generation = _RECORD.unpack(record[:-4])
        return FolderUsage(nbytes, generation) if (magic, version) == (_MAGIC, _VERSION) else None

    def write_usage(self, usage: FolderUsage) -> None:
        """Leave what is counted; under the lock."""
        record = _RECORD.pack(_MAGIC, _VERSION, max(0, usage.nbytes), usage.generation % 2**64)
        record += zlib.crc32(record).to_bytes(4, "little")
        try:
            file = os.open(_USAGE, os.O_CREAT | os.O_WRONLY | _FLAGS, 0o600, dir_fd=self._root)
            try:
                seen = os.fstat(file)
                if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
                    if seen.st_size != len(record):
                        os.ftruncate(file, 0)
                    os.pwrite(file, record, 0)
                    os.fchmod(file, 0o600)
                    return
            finally:
                os.close(file)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES):
                raise
        if self._remove_entry(self._root, _USAGE):
            self._place(self._root, _USAGE, [record])

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes that count out, for a few system calls. TimeoutError when one keeps us out."""
        ends = time.monotonic() + _LONGEST_LOCK_S
        while True:
            try:
                fcntl.flock(self._root, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise TimeoutError(errno.ETIMEDOUT, "another process keeps the folder locked") from None
                time.sleep(_BETWEEN_LOCKS_S)
        try:
            yield
        finally:
            fcntl.flock(self._root, fcntl.LOCK_UN)


class UnnamedFile:
    """A file that is whole and gets its name at once."""

    def __init__(self, folder: int, fd: int, unfinished: str) -> None:
        """`unfinished`: the name that it has until then where the file system makes none without."""
        self._folder, self._fd, self._unfinished = folder, fd, unfinished

    def link(self, entry: str) -> bool:
        """Give it its name. False: there is something under that name."""
        try:
            if self._unfinished:
                os.link(
                    self._unfinished, entry, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False
                )
            else:
                os.link(f"/proc/self/fd/{self._fd}", entry, dst_dir_fd=self._folder, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def set_use(self, used: float) -> None:
        """Note when it was used last."""
        os.utime(self._fd, (used, used))

    def close(self) -> None:
        """Give it back; without a name it is gone."""
        if self._unfinished:
            with contextlib.suppress(OSError):
                os.unlink(self._unfinished, dir_fd=self._folder)
        os.close(self._fd)


def _is_same(fd: int, name: str, folder: int | None) -> bool:
    """Return whether a descriptor is of what lies under a name."""
    try:
        mine, there = os.fstat(fd), os.stat(name, dir_fd=folder)
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def read_parts(file: int, parts: Sequence[memoryview], offset: int) -> int:
    """Fill these parts, one behind the other, from `offset` of a file on. The bytes that were there."""
    done, at = 0, offset
    left = [part.cast("B") for part in parts]
    while left:
        some = left[:_MOST_PARTS]
        count = os.preadv(file, some, at)
        if not count:
            return done
        done, at = done + count, at + count
        while left and count >= left[0].nbytes:
            count -= left[0].nbytes
            left.pop(0)
        if left and count:
            left[0] = left[0][count:]
    return done
