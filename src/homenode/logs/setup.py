"""How a long-running process begins and ends its log."""

from __future__ import annotations

import logging
import sys

from homenode.logs.repetition import CountingHandler
from homenode.logs.stream import drain_standard_error, queue_standard_error


def log_to_standard_error(line: str, time: str | None = None) -> None:
    """Log from INFO on to standard error, without waiting for its reader. `line` and `time`: formats as `logging` has
    them.
    """
    queue_standard_error()
    logging.basicConfig(level=logging.INFO, handlers=[CountingHandler(sys.stderr)], format=line, datefmt=time)
    logging.captureWarnings(True)


def end_log() -> None:
    """Write what is queued, for a process that ends at once."""
    logging.shutdown()
    drain_standard_error()
