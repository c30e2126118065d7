"""The process that a model's tower computes in: `python -m homenode.engine.encoder.process FD`.

FD is one end of a socket pair, on which the process speaks frames: it says that it is ready, is told what to load, says
that it has or why not, and then gives an answer for every picture.

    {"words": FAMILY, "model": PATH, "cpus": [...], "isa": ..., "storage": ...}
        -> {"tower": DIGEST} or {"failure": TEXT}
    {"tiles": [[height, width], ...], "layout": [...]} and a frame with the pixels
        -> {"rows": N, "columns": C, "grid": [...]} and frames with the rows, float32, or {"failure": TEXT}

It computes on the CPUs of the text model, behind it: what that computes meanwhile goes first.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from homenode.engine.encoder.frames import PIECE, layout_of
from homenode.errors import HomenodeError
from homenode.model.sandbox.frames import FrameStream, encode
from homenode.model.sandbox.limits import end_with_parent

_NICE = 5  # of a core that both want the text gets three quarters


def main(arguments: list[str]) -> int:
    """Answer until the stream ends; the exit code."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    os.nice(_NICE)
    frames = FrameStream(socket.socket(fileno=int(arguments[0])))
    frames.send(encode({"ready": True}))
    if (told := frames.receive()) is None:
        return 0
    try:
        work = _Work(told)
    except (HomenodeError, OSError, ValueError, MemoryError) as error:
        frames.send(encode({"failure": str(error) or type(error).__name__}))
        return 0
    frames.send(encode({"tower": work.digest}))
    while (request := frames.receive()) is not None:
        pixels = frames.receive_body()
        if pixels is None:
            return 0
        frames.send(*work.answer(request, pixels))
    return 0


class _Work:
    """A tower, and the family that it is of."""

    def __init__(self, told: dict[str, Any]) -> None:
        from homenode.compute.native import NativeBackend
        from homenode.engine.encoder.tower_files import tower_digest, tower_tensors
        from homenode.model.pictures.decoder import config_of_words
        from homenode.model.pictures.registry import family_named
        from homenode.model.pictures.tower import Tower

        words = told["words"]
        config = config_of_words(words)
        self._family = family_named(str(words["family"])).make(config)
        cpus = [int(cpu) for cpu in told["cpus"]]
        backend = NativeBackend(cpus, spin_us=0, level=told["isa"])
        if min(cpus) >= 0:  # between runs, where NumPy computes, this thread is not pinned by the backend
            os.sched_setaffinity(0, cpus)
        tensors = tower_tensors(backend, config, Path(str(told["model"])), told["storage"])
        form = self._family.form
        self._tower = Tower(backend, tensors, form.heads, form.head_dim)
        self._family.load(self._tower)
        self.digest = tower_digest(words, tensors, told["storage"]).hex()

    def answer(self, request: dict[str, Any], pixels: bytes) -> list[bytes]:
        import numpy as np

        from homenode.model.pictures.family import PreparedPicture

        tiles, at = [], 0
        for height, width in request["tiles"]:
            size = 3 * height * width
            tiles.append(np.frombuffer(pixels, np.uint8, size, at).reshape(height, width, 3))
            at += size
        try:
            found = self._family.encode(self._tower, PreparedPicture(tiles, layout_of(request["layout"])))
        except (HomenodeError, ValueError, MemoryError) as error:
            return [encode({"failure": str(error) or type(error).__name__})]
        rows = np.ascontiguousarray(found.rows, "<f4")
        data = rows.tobytes()
        head = encode({"rows": len(rows), "columns": rows.shape[1], "grid": list(found.grid)})
        return [head, *(data[begin : begin + PIECE] for begin in range(0, len(data), PIECE))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
