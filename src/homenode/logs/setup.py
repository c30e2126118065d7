"""Beginning and end of a process's log.

What serves writes dated lines, each with the name of its process; a command that ends by itself writes lines as its
other messages are. Which lines are written is chosen by a level, which child processes inherit by a variable.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO, cast

from homenode.logs.held import HeldStream
from homenode.logs.repetition import CountingHandler
from homenode.logs.stream import drain_standard_error, queue_standard_error

LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "HOMENODE_LOG_LEVEL"
_SERVICE_LEVEL = "info"
_COMMAND_LEVEL = "warning"


class _ServiceForm(logging.Formatter):
    """`warning 2026-11-26 18:04:45,123 server: text`, with the name of the process."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(level)s %(asctime)s {process}: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        return super().format(record)


class _CommandForm(logging.Formatter):
    """`homenode: warning: text`, as the messages of a command are that are no log."""

    def format(self, record: logging.LogRecord) -> str:
        return f"homenode: {record.levelname.lower()}: {super().format(record)}"


def begin_service_log(process: str, level: str | None = None) -> None:
    """Log to standard error, dated and with the name of this process, without waiting for its reader.

    `level`: one of `LEVELS`; None for the one that was inherited, else info.
    """
    queue_standard_error()
    _begin(sys.stderr, _ServiceForm(process), level, _SERVICE_LEVEL)


def begin_command_log(level: str | None = None) -> None:
    """Log to standard error as a command speaks; `hold_log` keeps lines back. `level`: None for warning."""
    _begin(HeldStream(sys.stderr), _CommandForm("%(message)s"), level, _COMMAND_LEVEL)


@contextmanager
def hold_log() -> Iterator[None]:
    """Keep back what a command logs, until the end of this context."""
    with ExitStack() as held:
        for handler in logging.getLogger().handlers:
            stream = getattr(handler, "stream", None)
            if isinstance(stream, HeldStream):
                held.enter_context(stream.hold())
        yield


def end_log() -> None:
    """Write what is queued, for a process that ends at once."""
    logging.shutdown()
    drain_standard_error()


def _begin(stream: TextIO | HeldStream, form: logging.Formatter, level: str | None, usual: str) -> None:
    """Nothing is done where the log has been set up already, as by a test or a program that this one is a part of."""
    root = logging.getLogger()
    if root.handlers:
        return
    inherited = os.environ.get(LEVEL_VARIABLE)
    chosen = level or (inherited if inherited in LEVELS else usual)
    if chosen != (inherited or _SERVICE_LEVEL):  # else those that are started choose it by themselves
        os.environ[LEVEL_VARIABLE] = chosen
    number = logging.getLevelNamesMapping()[chosen.upper()]
    handler = CountingHandler(cast(TextIO, stream))
    handler.setFormatter(form)
    handler.setLevel(number)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))  # of libraries it is told what is wrong, not what they do
    logging.getLogger("homenode").setLevel(number)
    # It warns of each write to a client that has left, which is no fault.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.captureWarnings(True)
