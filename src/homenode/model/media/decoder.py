"""The processes that read files of one medium, and may die of them. Any thread may ask; it waits meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from homenode.errors import OverloadedError
from homenode.model.media.prepared import ArrayWords, num_bytes
from homenode.model.sandbox.frames import RefusedFileError, encode
from homenode.model.sandbox.process import ProcessLostError, SandboxProcess

_MODULE = "homenode.model.media.decoder_process"
_MOST = 2  # processes
_CPU_S = 10.0
_WAIT_S = 30.0  # of a file, in time; whoever computes is ended by the limit of processor time before


class DecodedFile(NamedTuple):
    """The arrays that were made of a file: their types and lengths, and `data`, their elements one behind the other.
    `layout`: how it was cut. `digest`: of what is here.
    """

    arrays: ArrayWords
    layout: Any
    data: bytes
    digest: bytes


class FileDecoder:
    """The processes, started when they are first needed."""

    def __init__(self, medium: str, words: dict[str, Any], layout_of: Callable[[Sequence[Any]], Any]) -> None:
        """`words`: the family, as the reader of the medium takes it. `layout_of`: makes a layout of what JSON has of
        one; ValueError and TypeError for what is none.
        """
        self._told, self._layout_of = {"medium": medium, "words": words}, layout_of
        self._changed = threading.Condition()
        self._idle: list[SandboxProcess] = []
        self._count = 0

    def decode(self, data: bytes, *, alone: bool) -> DecodedFile:
        """Return what a tower takes of a file; `alone`: the request has no other. RefusedFileError for a file of no
        known form, and for one that is damaged or takes too much; OverloadedError where no process is free in time;
        HostError where none can be started.
        """
        with self._process() as process:
            deadline = time.monotonic() + _WAIT_S
            try:
                process.send(encode({"alone": alone, "seconds": _CPU_S}), data, deadline=deadline)
                answer = process.receive(deadline)
                if "failure" in answer:
                    raise RefusedFileError(str(answer["failure"]))
                return self._decoded(answer, process.receive_body(deadline))
            except TimeoutError:
                process.end()
                raise RefusedFileError(f"decoding it did not come to an end within {_WAIT_S:.0f} s") from None
            except ProcessLostError as error:
                process.end()
                raise RefusedFileError(f"decoding it took more than is allowed; {error}") from None

    def close(self) -> None:
        """End the processes that do nothing."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    @contextmanager
    def _process(self) -> Iterator[SandboxProcess]:
        process = self._take()
        try:
            yield process
        finally:
            with self._changed:
                if process.alive:
                    self._idle.append(process)
                else:
                    self._count -= 1
                self._changed.notify()

    def _take(self) -> SandboxProcess:
        until = time.monotonic() + _WAIT_S
        with self._changed:
            while not self._idle and self._count >= _MOST:
                if not self._changed.wait(until - time.monotonic()):
                    raise OverloadedError("too many files are being decoded at once", retry_after_s=5.0)
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            process = SandboxProcess(_MODULE)
            process.wait_ready()
            process.send(encode(self._told), deadline=time.monotonic() + _WAIT_S)
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise
        return process

    def _decoded(self, answer: dict[str, Any], data: bytes) -> DecodedFile:
        try:
            if len(data) == num_bytes(answer["arrays"]):
                digest = bytes.fromhex(str(answer["digest"]))
                return DecodedFile(answer["arrays"], self._layout_of(answer["layout"]), data, digest)
        except (KeyError, TypeError, ValueError):
            pass
        raise ProcessLostError("it said what is no file of its medium")
