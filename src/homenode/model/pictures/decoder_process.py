"""The process that decodes pictures, scales and cuts them: `python -m homenode.model.pictures.decoder_process FD`.

FD is one end of a socket pair, on which the process speaks frames: first it is told the family, then it says that it is
ready, then it gives an answer for every request.

    {"family": NAME, "path": ..., "config": ..., "processor": ..., "whole": ...}    -> {"ready": true}
    {"alone": BOOL, "seconds": S} and a frame with the bytes of a picture
        -> {"tiles": [[height, width], ...], "layout": [...], "digest": HEX} and a frame with the pixels of all tiles
        or {"failure": TEXT}

S is the processor time that the kernel allows for the request.
"""

from __future__ import annotations

import hashlib
import socket
import sys
from typing import Any

from homenode.model.pictures.decoded import PictureError, read_picture
from homenode.model.sandbox.frames import FrameStream, encode
from homenode.model.sandbox.limits import allow_cpu, confine

MEMORY_BYTES = 3 << 29  # of address space: a picture of the most pixels, its bytes and what is made of it
_LONGEST_MESSAGE = 300


def main(arguments: list[str]) -> int:
    """Answer requests until the stream ends; the exit code."""
    confine(MEMORY_BYTES)
    frames = FrameStream(socket.socket(fileno=int(arguments[0])))
    frames.send(encode({"ready": True}))
    told = frames.receive()
    if told is None:
        return 0
    family = _family(told)
    while (request := frames.receive()) is not None:
        data = frames.receive_body()
        if data is None:
            return 0
        allow_cpu(float(request["seconds"]))
        answer, pixels = _prepared(family, data, bool(request["alone"]))
        frames.send(encode(answer), *([pixels] if pixels else []))
    return 0


def _family(told: dict[str, Any]) -> Any:
    from homenode.model.pictures.decoder import config_of_words
    from homenode.model.pictures.registry import family_named

    return family_named(str(told["family"])).make(config_of_words(told))


def _prepared(family: Any, data: bytes, alone: bool) -> tuple[dict[str, Any], bytes]:
    try:
        picture = family.prepare(read_picture(data), alone)
    except PictureError as error:
        return _failure(str(error)), b""
    except MemoryError:
        return _failure("scaling it takes too much memory"), b""
    except ValueError as error:
        return _failure(str(error)), b""
    except Exception as error:  # whatever a picture does to the library that scales it
        return _failure(f"it cannot be scaled: {type(error).__name__}: {error}"), b""
    shapes = [[len(tile), len(tile[0])] for tile in picture.tiles]
    pixels = b"".join(tile.tobytes() for tile in picture.tiles)
    layout = [
        list(picture.layout.tiles),
        list(picture.layout.size),
        list(picture.layout.original),
        picture.layout.alone,
    ]
    digest = hashlib.blake2b(repr((shapes, layout)).encode() + pixels, digest_size=32).hexdigest()
    return {"tiles": shapes, "layout": layout, "digest": digest}, pixels


def _failure(message: str) -> dict[str, Any]:
    return {"failure": message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
