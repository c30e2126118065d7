"""The engine's process, killed in the middle of loading as often as told: `python -m tests.engine.mortal_engine FD
PARENT [NAME]`.

The folder of its model may have a file `dies-N` with a number in it: so often engine N is killed when half of what it
reads is there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from homenode.engine.assignment import EngineAssignment
from homenode.engine.runtime.build import build_engine
from homenode.engine.runtime.engine import Engine
from homenode.engine.runtime.process import main


def build(assignment: EngineAssignment, progress: Callable[[int, int], None], experts: Sequence[int]) -> Engine:

    def told(done: int, total: int) -> None:
        progress(done, total)
        if 2 * done >= total:
            with suppress(FileNotFoundError):
                _meet(Path(str(assignment.config.model.path)) / f"dies-{assignment.number}")

    return build_engine(assignment, told, own_process=True, experts=experts)


def _meet(mark: Path) -> None:
    if times := int(mark.read_text()):
        mark.write_text(str(times - 1))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build))
