"""The processes that decode pictures, and may die of them. Any thread may ask; it waits meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from homenode.errors import OverloadedError
from homenode.model.pictures.decoded import PictureError
from homenode.model.pictures.family import PictureConfig, PictureLayout
from homenode.model.sandbox.frames import encode
from homenode.model.sandbox.process import ProcessLostError, SandboxProcess

_MODULE = "homenode.model.pictures.decoder_process"
_MOST = 2  # processes
_CPU_S = 10.0
_WAIT_S = 30.0  # of a picture, in time; whoever computes is ended by the limit of processor time before


class DecodedPicture(NamedTuple):
    """A picture that was scaled and cut. `pixels`: of all tiles, one behind the other. `digest`: of what is here."""

    tiles: list[tuple[int, int]]
    layout: PictureLayout
    pixels: bytes
    digest: bytes


def config_of_words(words: dict[str, Any]) -> PictureConfig:
    """The configuration out of `family_words`."""
    return PictureConfig(Path(str(words["path"])), words["config"], words["processor"], words["whole"])


def family_words(family: str, config: PictureConfig) -> dict[str, Any]:
    """A family and its configuration as JSON has them."""
    return {
        "family": family,
        "path": str(config.path),
        "config": dict(config.raw),
        "processor": dict(config.processor),
        "whole": dict(config.whole),
    }


class PictureDecoder:
    """The processes, started when they are first needed."""

    def __init__(self, family: dict[str, Any]) -> None:
        """`family`: as `family_words` has it."""
        self._family = family
        self._changed = threading.Condition()
        self._idle: list[SandboxProcess] = []
        self._count = 0

    def decode(self, data: bytes, *, alone: bool) -> DecodedPicture:
        """The picture of a file; `alone`: the request has no other. PictureError for a file that is none, is damaged or
        takes too much; OverloadedError where no process is free in time; HostError where none can be started.
        """
        with self._process() as process:
            deadline = time.monotonic() + _WAIT_S
            try:
                process.send(encode({"alone": alone, "seconds": _CPU_S}), data, deadline=deadline)
                answer = process.receive(deadline)
                if "failure" in answer:
                    raise PictureError(str(answer["failure"]))
                return _decoded(answer, process.receive_body(deadline))
            except TimeoutError:
                process.end()
                raise PictureError(f"decoding it did not come to an end within {_WAIT_S:.0f} s") from None
            except ProcessLostError as error:
                process.end()
                raise PictureError(f"decoding it took more than is allowed; {error}") from None

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
                    raise OverloadedError("too many pictures are being decoded at once", retry_after_s=5.0)
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            process = SandboxProcess(_MODULE)
            process.wait_ready()
            process.send(encode(self._family), deadline=time.monotonic() + _WAIT_S)
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise
        return process


def _decoded(answer: dict[str, Any], pixels: bytes) -> DecodedPicture:
    tiles = [(int(height), int(width)) for height, width in answer["tiles"]]
    if len(pixels) != sum(3 * height * width for height, width in tiles):
        raise ProcessLostError("it said what is no picture")
    (rows, columns), (high, wide), (height, width), alone = answer["layout"]
    layout = PictureLayout((int(rows), int(columns)), (int(high), int(wide)), (int(height), int(width)), bool(alone))
    return DecodedPicture(tiles, layout, pixels, bytes.fromhex(str(answer["digest"])))
