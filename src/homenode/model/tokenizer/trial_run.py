"""A model's tokenizer is loaded and used in a process that may die, before it is loaded in this one.

The library that reads the file aborts, hangs or asks for all memory on some hostile files. Where that happens in the
process of the trial, the file is refused by name, and nothing else has happened.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.formats.bounded_files import is_there, open_file
from homenode.model.sandbox.process import ProcessLostError, SandboxProcess

_MODULE = "homenode.model.tokenizer.trial_process"
_MIB = 1 << 20
_LARGEST_COUNTED = 32 * _MIB  # of a GGUF file, whose size tells little of its vocabulary
# The largest vocabularies, of 256 Ki tokens in 32 MiB of text, take about 6 s and 1 GiB on a slow machine.
_MEMORY_BYTES, _MEMORY_A_BYTE = 3 << 29, 24
_CPU_S, _CPU_S_A_MIB = 8.0, 1.0
# Whoever computes is ended by the limit of processor time; this one is for whoever sleeps, and must not hit a trial
# that
# waits for a processor on a busy or an emulated machine, where only starting takes 15 s.
_WAIT_S, _WAIT_S_A_MIB = 60.0, 8.0
_ERRORS: dict[str, type[UserError]] = {e.__name__: e for e in (CheckpointError, UnsupportedError, UserError)}

# A second engine of the process, or another copy of the same model, needs no second trial of the same bytes.
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json")  # what a trial reads of a folder besides the vocabulary
_LARGEST_BYTES = 64 << 20  # of all files together; reading more takes as long as a trial
_MOST_DIGESTS = 4096
_USABLE: set[bytes] = set()  # digests of what trials have found usable in this process
_HEADERS: set[int] = set()  # bytes at the beginning of GGUF files that such trials have read


class TokenizerTrial:
    """A trial that is under way. It begins at once, so that other things can be done until `wait` is called."""

    def __init__(self, path: Path, file: Path) -> None:
        """`path`: of the model, as `load_tokenizer` takes it; `file`: what of it has the vocabulary.

        HostError when the machine refuses.
        """
        size = min(_size(file), _LARGEST_COUNTED)
        self._path, self._file = path, file
        self.cpu_s = _CPU_S + _CPU_S_A_MIB * size / _MIB
        self.memory_bytes = _MEMORY_BYTES + _MEMORY_A_BYTE * size
        self._wait_s = _WAIT_S + _WAIT_S_A_MIB * size / _MIB
        self._deadline = time.monotonic() + self._wait_s
        self._process = SandboxProcess(_MODULE, (str(path.absolute()), str(self.memory_bytes), str(self.cpu_s)))

    def wait(self) -> None:
        """Returns when the tokenizer may be loaded.

        Raises what loading it raised, and CheckpointError for any other end.
        """
        in_header = self._file.suffix == ".gguf"
        digest = None if in_header else digest_content(self._path, self._file)  # while the other process is at work
        try:
            answer = self._process.receive(self._deadline)
        except TimeoutError:
            self._refuse(f"reading it and encoding a sample text did not come to an end within {self._wait_s:.0f} s")
        except ProcessLostError as error:
            self._refuse(
                f"the process that tried it was lost, {error} (it may use {self.memory_bytes // _MIB} MiB and "
                f"{self.cpu_s:.0f} s of processor time)"
            )
        finally:
            self._process.end()
        if (kind := answer.get("failure")) is not None:
            raise _ERRORS.get(str(kind), CheckpointError)(str(answer.get("message")))
        if in_header:
            _remember_header(self._file, answer.get("read"))
        else:
            _remember(digest)

    def _refuse(self, why: str) -> NoReturn:
        raise CheckpointError(f"{self._file} is not a usable tokenizer: {why}")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # loading says what is wrong with it


def digest_content(path: Path, file: Path) -> bytes | None:
    """A digest of all that a trial reads of the model in a folder at `path`, whose vocabulary is in `file`.

    None where that is too much, or cannot be read: what is wrong with it is for the trial to say.
    """
    digest, left = hashlib.blake2b(digest_size=32), _LARGEST_BYTES
    try:
        for each in (file, *(path / name for name in _BESIDE)):
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


def digest_headers(file: Path, lengths: Iterable[int]) -> Iterator[bytes]:
    """The digest of so many bytes at the beginning of a GGUF file, for each of the lengths that it has, the shortest
    first. All that a trial reads of such a file is there, however many bytes of tensors follow.
    """
    digest, at = hashlib.blake2b(digest_size=32, person=b"GGUF header"), 0
    with suppress(CheckpointError, OSError, MemoryError), open_file(file) as opened:
        for length in sorted(lengths):
            data = opened.read(length - at)
            digest.update(data)
            at += len(data)
            if at < length:
                return
            yield digest.digest()


def is_usable(path: Path, file: Path) -> bool:
    """Return whether a trial of what the model's files hold now has come to a good end before."""
    if not _USABLE:
        return False
    if file.suffix == ".gguf":
        return any(digest in _USABLE for digest in digest_headers(file, _HEADERS))
    return digest_content(path, file) in _USABLE


def _remember_header(file: Path, length: object) -> None:
    """A trial of so many bytes at the beginning of a GGUF file has come to a good end."""
    if (
        isinstance(length, int)
        and length is not True
        and 0 < length <= _LARGEST_BYTES
        and len(_HEADERS) < _MOST_DIGESTS
    ):
        for digest in digest_headers(file, (length,)):
            _HEADERS.add(length)
            _remember(digest)


def _remember(digest: bytes | None) -> None:
    """A trial of this content has come to a good end."""
    if digest is not None and len(_USABLE) < _MOST_DIGESTS:
        _USABLE.add(digest)
