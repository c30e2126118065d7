"""Reading the outside of model files with every size bounded first: regular files, JSON objects, names inside a folder,
binary headers.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.files_read import TextDigest, file_opened, text_taken
from homenode.units import format_bytes, format_count

# A JSON value needs a comma or an opening bracket before it, so this bounds the Python objects a text can turn into
# (about 1 GiB).
_MOST_JSON_VALUES = 2**23
_CHUNK = 2**20
_U64 = struct.Struct("<Q")
# How files begin that stand where a model file was meant to be, what each is, and what to do about it.
_STAND_INS = (
    (
        re.compile(rb"version https?://(git-lfs|hawser|git-media)\."),
        "a Git LFS pointer, which only names the content of the file",
        "fetch the content: `git lfs install`, then `git lfs pull` in the repository, or download the file from where "
        "it is kept",
    ),
    (
        re.compile(rb"\s*<(!doctype html|html)\b", re.IGNORECASE),
        "a web page, not the file it is named after",
        "download the file itself, not the page that shows it",
    ),
    (
        re.compile(rb"PK\x03\x04(?!\x00{4})"),
        "a zip archive, as PyTorch's pickled weights are, not the file it is named after",
        "homenode reads no pickled files, as they can run code: convert the model to safetensors or GGUF",
    ),
)
_STAND_IN_BYTES = 128


def damaged(
    path: Path, what: str, *, seen: object, wanted: str, do: str = "fetch or convert the model again"
) -> CheckpointError:
    """The error for a file that breaks its format: which file and part, what is there, what should be, what to do.

    `seen` is words or a number of ours; text out of a file goes through `quoted` first.
    """
    return CheckpointError(f"{path}: {what}: seen {seen}, wanted {wanted}; {do}", path=path, seen=seen, wanted=wanted)


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Put the path of a model in front of what is wrong with it, where that names neither it nor another part of it."""
    try:
        yield
    except (CheckpointError, UnsupportedError) as error:
        if str(path) in error.message or (path.suffix and path.suffix in error.message):
            raise
        raise type(error)(f"{path}: {error.message}", param=error.param, **error.facts) from error


def quoted(value: object) -> str:
    """A value out of a file for a message: strings in quotes, nothing that a terminal would obey, at most a
    line of it.
    """
    if isinstance(value, list | tuple | dict) and (
        len(value) > 20 or any(isinstance(item, list | dict) for item in value)
    ):
        # not their text: it may nest too deeply to be written
        return f"a {type(value).__name__} of {format_count(len(value), 'value')}"
    text = repr(value[:150] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 160 else text[:150] + "..."


def printable(name: str) -> str:
    """A name out of a file for a message, without anything that a terminal would obey, and not too long."""
    return "".join(character if character.isprintable() else "?" for character in name[:80])


def file_size(path: Path) -> int:
    """Bytes of the regular file at `path` (links followed, as the Hub's cache is made of them).

    Raises CheckpointError when it is missing, unreadable, in a loop of links, anything but a regular file, or something
    that stands in its place, such as a Git LFS pointer.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
    refuse_stand_in(path)
    return size


def refuse_stand_in(path: Path) -> None:
    """CheckpointError where the regular file at `path` begins as something that was put in its place: a Git LFS
    pointer, a web page, a zip archive.
    """
    with open_file(path) as file:
        beginning = file.read(_STAND_IN_BYTES)
    for pattern, what, do in _STAND_INS:
        if pattern.match(beginning):
            raise CheckpointError(f"{path}: {what}; {do}", path=path, seen=what)


def open_file(path: Path) -> BinaryIO:
    """The regular file at `path` opened for reading, without ever waiting for it: opening a pipe would wait for a
    writer.

    Raises CheckpointError when the system refuses, and for anything but a regular file (a pipe, a device, a folder).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise damaged(path, "cannot be opened", seen=_reason(error), wanted="a readable file") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise damaged(path, "cannot be read", seen="something that is not a regular file", wanted="a regular file")
        file_opened(path, descriptor)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_there(path: Path) -> bool:
    """Return whether anything, even a broken link, bears the name: a file that cannot be read is an error, not a
    missing file.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return True


def read_at(path: Path, offset: int, size: int) -> bytes:
    """`size` bytes at `offset`; CheckpointError when the file ends before. The caller bounds `size`."""
    with open_file(path) as file:
        data = os.pread(file.fileno(), size, offset)
        while 0 < len(data) < size and (more := os.pread(file.fileno(), size - len(data), offset + len(data))):
            data += more  # the kernel may return less than asked for above 2 GiB
    if len(data) != size:
        raise damaged(path, f"bytes at {offset}", seen=f"{len(data)} bytes", wanted=f"{size} bytes")
    return data


def read_text(path: Path, limit: int, *, any_target: bool = False) -> str:
    """The text (UTF-8) of a file of at most `limit` bytes.

    What a text file of a model holds can be seen by clients: chat templates are rendered, settings are listed. So a
    file of the model's folder that is a link must lead to a file of that folder, or of the Hub cache it belongs to;
    `any_target` is for files that the operator named. Raises CheckpointError.
    """
    data = _read_whole(path, limit, any_target=any_target)
    try:
        return data.decode("utf-8-sig")  # editors add a byte order mark to files written by hand
    except UnicodeDecodeError as error:
        raise damaged(path, "content", seen=f"no UTF-8 text ({error})", wanted="text in UTF-8") from error


def read_binary(path: Path, limit: int) -> bytes:
    """The bytes of a file of at most `limit`; where links may lead is said at `read_text`."""
    return _read_whole(path, limit)


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes; where links may lead is said at `read_text`."""
    return parse_json(path, _read_whole(path, limit), "content")


def _read_whole(path: Path, limit: int, *, any_target: bool = False) -> bytes:
    if not any_target:
        _check_link_target(path)
    size = file_size(path)
    if size > limit:
        raise damaged(path, "size", seen=format_bytes(size), wanted=f"at most {format_bytes(limit)} of text")
    data = read_at(path, 0, size)
    text_taken(path, data)
    return data


def _check_link_target(path: Path) -> None:
    """Raises CheckpointError when `path` is a link to a file outside of its folder and of the Hub cache around it."""
    try:
        folder, target = path.parent.resolve(strict=True), path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return  # a loop of links or a missing file: opening it says so
    if not any(target.is_relative_to(root) for root in (folder, *_hub_repository(folder))):
        raise damaged(
            path,
            "link",
            seen=f"a link to {target}, outside of the model's folder",
            wanted="a file of the folder, as clients can see what it holds (weight files may be links)",
            do="copy that file into the folder",
        )


def _hub_repository(folder: Path) -> list[Path]:
    """The folder of a repository in the Hub's cache, whose snapshots are made of links to its blobs: none elsewhere."""
    around = [parent.parent for parent in folder.parents if parent.name == "snapshots"]
    return [root for root in around if (root / "blobs").is_dir()][:1]


def refuse_links(model: Path) -> None:
    """Raises CheckpointError when the file or folder `model` is a link, or any file in the folder is one."""
    for path in [model, *(sorted(model.iterdir()) if model.is_dir() else ())]:
        if path.is_symlink():
            raise damaged(
                path, "file", seen="a link", wanted="no links (--no-links)", do="copy the file that it leads to"
            )


def read_json_list(path: Path, limit: int) -> list[Any]:
    """The JSON list in a file of at most `limit` bytes; where links may lead is said at `read_text`."""
    parsed = _parsed(path, _read_whole(path, limit), "content", strict=False)
    if not isinstance(parsed, list):
        raise damaged(path, "content", seen=f"a JSON {type(parsed).__name__}", wanted="a JSON list")
    return parsed


def parse_json(path: Path, text: bytes, what: str, *, strict: bool = False) -> dict[str, Any]:
    """`text` as a JSON object. `strict` also refuses duplicate keys and NaN, as safetensors does.

    Raises CheckpointError for anything that is not one UTF-8 JSON object, for nesting too deep to parse and for absurd
    numbers of values.
    """
    parsed = _parsed(path, text, what, strict=strict)
    if not isinstance(parsed, dict):
        raise damaged(path, what, seen=f"a JSON {type(parsed).__name__}", wanted="a JSON object")
    return parsed


def _parsed(path: Path, text: bytes, what: str, *, strict: bool) -> Any:
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > _MOST_JSON_VALUES:
        raise damaged(path, what, seen=f"about {values} JSON values", wanted=f"at most {_MOST_JSON_VALUES}")
    try:
        if strict:
            return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        return json.loads(text.decode("utf-8-sig"))  # editors add a byte order mark to hand-written files
    except RecursionError:
        raise damaged(path, what, seen="JSON nested too deeply", wanted="a JSON object") from None
    except ValueError as error:  # also UnicodeDecodeError and integers of more digits than Python converts
        raise damaged(path, what, seen=f"no valid JSON ({error})", wanted="a JSON object in UTF-8") from error


def inside(folder: Path, name: object, listed_in: Path) -> Path:
    """The file `name` of `folder`; CheckpointError when a listing names anything that could lie outside the folder."""
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 255:
        parts = PurePosixPath(name)
        if not parts.is_absolute() and parts.parts and ".." not in parts.parts:
            return folder / name
    raise damaged(listed_in, "file name", seen=quoted(name), wanted="the relative name of a file in the same folder")


class HeaderReader:
    """Reads a little-endian binary header front to back. Nothing is read, and no size believed, beyond the file or
    `limit` bytes.
    """

    def __init__(self, file: BinaryIO, path: Path, size: int, limit: int) -> None:
        self.path = path
        self._file = file
        self._end = min(size, limit)
        self._why = "the end of the file" if size <= limit else f"the limit of {format_bytes(limit)} for a header"
        self._buffer = b""
        self._at = 0
        self._left = self._end  # bytes not yet in the buffer
        self._digest = TextDigest()

    @property
    def position(self) -> int:
        """Offset in the file of the next byte."""
        return self._end - self.remaining

    @property
    def remaining(self) -> int:
        """Bytes up to the end of the file or the limit."""
        return self._left + len(self._buffer) - self._at

    def need(self, size: int, what: str) -> None:
        """CheckpointError unless `size` more bytes exist."""
        if size > self.remaining:
            wanted = f"{size} bytes for it; only {self.remaining} are left before {self._why}"
            raise damaged(self.path, what, seen=f"a truncated or damaged header at byte {self.position}", wanted=wanted)

    def take(self, size: int, what: str) -> bytes:
        """The next `size` bytes."""
        self._fill(size, what)
        data = self._buffer[self._at : self._at + size]
        self._at += size
        return data

    def unpack(self, layout: struct.Struct, what: str) -> Any:
        """The next value of a one-value layout."""
        return layout.unpack(self.take(layout.size, what))[0]

    def string(self, what: str) -> bytes:
        """The next string: a 64-bit length and that many bytes."""
        return self.take(self.unpack(_U64, what), what)

    def strings(self, count: int, what: str) -> list[str]:
        """The next `count` strings. Bytes that are no UTF-8 become lone surrogates (`surrogateescape`), so no token is
        lost.
        """
        found: list[str] = []
        while len(found) < count:
            buffer, at, end = self._buffer, self._at, len(self._buffer)
            while (
                len(found) < count and at + 8 <= end
            ):  # the strings that lie whole in the buffer: a vocabulary has 10**5
                stop = at + 8 + _U64.unpack_from(buffer, at)[0]
                if stop > end:
                    break
                found.append(buffer[at + 8 : stop].decode("utf-8", "surrogateescape"))
                at = stop
            self._at = at
            if len(found) < count:
                found.append(self.string(what).decode("utf-8", "surrogateescape"))
        return found

    def keep_digest(self) -> None:
        """The header was read to its end: keep what it was, where that is recorded."""
        self._digest.keep(self.path)

    def _fill(self, size: int, what: str) -> None:
        have = len(self._buffer) - self._at
        if size <= have:
            return
        self.need(size, what)
        asked = min(self._left, max(size - have, _CHUNK))
        more = self._file.read(asked)
        if len(more) != asked:
            raise damaged(
                self.path, what, seen="a file that shrinks while it is read", wanted="a file nobody is writing"
            )
        self._digest.add(more)
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        self._left -= asked


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {quoted(key)}")
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
