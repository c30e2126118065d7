"""The parent's side of the process that a tower computes in. Safe to use from several threads, and blocks the one that
calls; files are encoded one after the other.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from homenode.engine.encoder.process import PIECE
from homenode.engine.inputs import ROW_DIGEST_BYTES, PromptRows
from homenode.errors import HostError, UnsupportedError
from homenode.model.media.decoder import DecodedFile
from homenode.model.sandbox.frames import encode
from homenode.model.sandbox.process import ProcessLostError, SandboxProcess

_MODULE = "homenode.engine.encoder.process"
_LOAD_S, _ENCODE_S = 600.0, 600.0


@dataclass(frozen=True)
class EncoderSettings:
    """How a tower is to compute. `cpus`: one thread on each, -1: wherever the kernel has it. `storage`: what float
    matrices are kept as; None: as they are stored.
    """

    model: str
    cpus: Sequence[int]
    isa: str | None = None
    storage: str | None = None


class Encoder:
    """A tower in a process of its own, which is started with the first file, and again when it was lost."""

    def __init__(
        self, medium: str, words: dict[str, Any], settings: EncoderSettings, placeholder: int, *, together: bool
    ) -> None:
        """`words`: the family, as the reader of the medium takes it. `together`: the rows of a file see each other."""
        self._medium, self._words, self._settings = medium, words, settings
        self._placeholder, self._together = placeholder, together
        self._lock = threading.Lock()
        self._process: SandboxProcess | None = None
        self._refused: str | None = None
        self._tower = b""  # a digest of it

    def encode(self, decoded: DecodedFile) -> PromptRows:
        """The rows of a file. UnsupportedError where the tower cannot be loaded, HostError where the process was
        lost.
        """
        with self._lock:
            process = self._running()
            request = {"arrays": decoded.arrays, "layout": decoded.layout}
            deadline = time.monotonic() + _ENCODE_S
            try:
                process.send(encode(request), decoded.data, deadline=deadline)
                answer = process.receive(deadline)
                if "failure" in answer:
                    raise HostError(f"{self._medium}: it could not be encoded: {answer['failure']}")
                count, columns = int(answer["rows"]), int(answer["columns"])
                data = b"".join(self._pieces(process, 4 * count * columns, deadline))
            except (TimeoutError, ProcessLostError) as error:
                process.end()
                self._process = None
                raise HostError(
                    f"{self._medium}: the process that encodes such files was lost: {error or 'it was silent'}"
                ) from None
            digests = row_digests(self._tower, decoded.digest, count)
        rows, width = answer["grid"]
        return PromptRows(data, columns, digests, self._placeholder, (int(rows), int(width)), self._together)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.end()
                self._process = None

    @staticmethod
    def _pieces(process: SandboxProcess, size: int, deadline: float) -> Sequence[bytes]:
        pieces = [process.receive_body(deadline) for _ in range(0, size, PIECE)]
        if sum(map(len, pieces)) != size:
            raise ProcessLostError("it gave another number of rows than it said")
        return pieces

    def _running(self) -> SandboxProcess:
        if self._refused is not None:
            raise UnsupportedError(self._refused)
        if self._process is not None and self._process.alive:
            return self._process
        settings = self._settings
        process = SandboxProcess(_MODULE, within_s=_LOAD_S)  # it gives way to the text model from the beginning
        process.wait_ready()
        told = {
            "medium": self._medium,
            "words": self._words,
            "model": settings.model,
            "cpus": list(settings.cpus),
            "isa": settings.isa,
            "storage": settings.storage,
        }
        deadline = time.monotonic() + _LOAD_S
        try:
            process.send(encode(told), deadline=deadline)
            answer = process.receive(deadline)
        except (TimeoutError, ProcessLostError) as error:
            process.end()
            raise HostError(f"the tower of this model could not be loaded: {error or 'it took too long'}") from None
        if "failure" in answer:
            process.end()
            self._refused = f"this model's tower cannot be loaded: {answer['failure']}"
            raise UnsupportedError(self._refused)
        self._process, self._tower = process, bytes.fromhex(str(answer["tower"]))
        return process


def row_digests(tower: bytes, decoded: bytes, count: int) -> bytes:
    """The digests of a file's rows, one after the other, by those of the tower that made them and of what was decoded:
    KV of rows of another tower is none of theirs, on disk or with another server.
    """
    front = hashlib.blake2b(tower, digest_size=ROW_DIGEST_BYTES).digest() + decoded
    return b"".join(
        hashlib.blake2b(front + number.to_bytes(4, "little"), digest_size=ROW_DIGEST_BYTES).digest()
        for number in range(count)
    )
