"""The process that a model's tower computes in: `python -m homenode.engine.encoder.process FD`.

FD is one end of a socket pair, on which the process speaks frames: it says that it is ready, is told what to load, says
that it has or why not, and then gives an answer for every file that was decoded.

    {"medium": KIND, "words": FAMILY, "model": PATH, "cpus": [...], "isa": ..., "storage": ...}
        -> {"tower": DIGEST} or {"failure": TEXT}
    {"arrays": [[TYPE, LENGTH, ...], ...], "layout": [...]} and a frame with their elements
        -> {"rows": N, "columns": C, "grid": [...]} and frames with the rows, float32, or {"failure": TEXT}

It computes on the CPUs of the text model, behind it: what that computes meanwhile goes first.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import numpy as np

from homenode.engine.encoder.towers import TowerFiles, load_tower
from homenode.errors import HomenodeError
from homenode.model.media.prepared import arrays_of
from homenode.model.sandbox.frames import FrameStream, encode
from homenode.model.sandbox.limits import end_with_parent

PIECE = 32 << 20  # bytes of rows in one frame
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
    frames.send(encode({"tower": work.tower.digest.hex()}))
    while (request := frames.receive()) is not None:
        data = frames.receive_body()
        if data is None:
            return 0
        frames.send(*work.answer(request, data))
    return 0


class _Work:
    """A tower on its CPUs."""

    def __init__(self, told: dict[str, Any]) -> None:
        from homenode.compute.native import NativeBackend

        cpus = [int(cpu) for cpu in told["cpus"]]
        backend = NativeBackend(cpus, spin_us=0, level=told["isa"])
        if min(cpus) >= 0:  # between runs, where NumPy computes, this thread is not pinned by the backend
            os.sched_setaffinity(0, cpus)
        files = TowerFiles(told["words"], str(told["model"]), told["storage"])
        self.tower = load_tower(str(told["medium"]), files, backend)

    def answer(self, request: dict[str, Any], data: bytes) -> list[bytes]:
        try:
            found = self.tower.encode(arrays_of(request["arrays"], data), request["layout"])
        except (HomenodeError, ValueError, MemoryError) as error:
            return [encode({"failure": str(error) or type(error).__name__})]
        rows = np.ascontiguousarray(found.rows, "<f4")
        told = rows.tobytes()
        head = encode({"rows": len(rows), "columns": rows.shape[1], "grid": list(found.grid)})
        return [head, *(told[begin : begin + PIECE] for begin in range(0, len(told), PIECE))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
