"""A front's process over the scripted engine's tokens: `python -m tests.server.scripted_front FDS PARENT NAME`.

The path of its model is a folder. While there is a file `unreadable` in it no vocabulary is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from homenode.errors import CheckpointError
from homenode.server.fronts.main import main
from homenode.server.fronts.messages import Prepare
from tests.server.fakes import ByteTokenizer


def load(prepare: Prepare) -> ByteTokenizer:
    if (Path(prepare.model) / "unreadable").exists():
        raise CheckpointError("this vocabulary cannot be read")
    return ByteTokenizer()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load))
