"""The process of a tokenizer's trial: `python -m homenode.model.tokenizer.trial_process FD PATH MEMORY SECONDS`.

It loads the tokenizer of the model at PATH as the program itself would, uses it on samples, and says over the socket
FD that all is well, {}, or what is wrong, {"failure": KIND OF ERROR, "message": TEXT}. MEMORY is the address space it
may use, SECONDS its processor time.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from homenode.errors import UserError
from homenode.model.sandbox.frames import FrameStream, encode
from homenode.model.sandbox.limits import allow_cpu, confine
from homenode.model.tokenizer.library import named_faults
from homenode.model.tokenizer.tokenizer import load_untried, vocabulary_file
from homenode.model.tokenizer.trial_samples import examine


def try_tokenizer(path: Path) -> dict[str, Any]:
    """The answer of a trial of the model at `path`."""
    file = vocabulary_file(path)
    try:
        with named_faults(f"{file} is not a usable tokenizer"):
            tokenizer = load_untried(path)
        try:
            examine(tokenizer)
        except UserError as error:
            return _failure("CheckpointError", f"{file} is not a usable tokenizer: {error.message}")
    except UserError as error:
        named = error.message if file.name in error.message else f"{file}: {error.message}"
        return _failure(type(error).__name__, named)
    return {}


def _failure(kind: str, message: str) -> dict[str, Any]:
    return {"failure": kind, "message": message}


# An engine loads its weights meanwhile, with as many threads as there are CPUs. At 10 the trial got a fiftieth of a CPU
# beside five other programs, and came near to its deadline.
_NICE = 5


def main(arguments: list[str]) -> int:
    """Try one tokenizer and say what came of it; the exit code."""
    os.nice(_NICE)
    confine(int(arguments[2]))
    allow_cpu(float(arguments[3]))
    frames = FrameStream(socket.socket(fileno=int(arguments[0])))
    frames.send(encode(try_tokenizer(Path(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
