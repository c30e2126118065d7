"""The process that reads files of one medium: `python -m homenode.model.media.decoder_process FD`.

FD is one end of a socket pair, on which the process speaks frames: it says that it is ready, is told the medium and the
family, then it gives an answer for every request.

    {"medium": KIND, "words": FAMILY}
    {"alone": BOOL, "seconds": S} and a frame with the bytes of a file
        -> {"arrays": [[TYPE, LENGTH, ...], ...], "layout": [...], "digest": HEX} and a frame with their elements
        or {"failure": TEXT}

S is the processor time that the kernel allows for the request.
"""

from __future__ import annotations

import hashlib
import socket
import sys
from typing import Any

from homenode.model.media.prepared import FileReader, array_bytes, array_words
from homenode.model.media.readers import file_reader
from homenode.model.sandbox.frames import FrameStream, RefusedFileError, encode
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
    reader = file_reader(str(told["medium"]), told["words"])
    while (request := frames.receive()) is not None:
        data = frames.receive_body()
        if data is None:
            return 0
        allow_cpu(float(request["seconds"]))
        answer, elements = _prepared(reader, data, bool(request["alone"]))
        frames.send(encode(answer), *([elements] if elements else []))
    return 0


def _prepared(read: FileReader, data: bytes, alone: bool) -> tuple[dict[str, Any], bytes]:
    try:
        found = read(data, alone)
    except RefusedFileError as error:
        return _failure(str(error)), b""
    except MemoryError:
        return _failure("scaling it takes too much memory"), b""
    except ValueError as error:
        return _failure(str(error)), b""
    except Exception as error:  # whatever a file does to the library that scales it
        return _failure(f"it cannot be scaled: {type(error).__name__}: {error}"), b""
    words, elements = array_words(found.arrays), array_bytes(found.arrays)
    digest = hashlib.blake2b(repr((words, found.layout)).encode() + elements, digest_size=32).hexdigest()
    return {"arrays": words, "layout": found.layout, "digest": digest}, elements


def _failure(message: str) -> dict[str, Any]:
    return {"failure": message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
