"""Beginning and end of a process's log.

What serves writes dated lines, each with the name of its process; a command that ends by itself writes lines as its
other messages are. Which lines are written is chosen by a level, and what those of a service look like by a format;
child processes inherit both by variables.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TextIO, cast

from homenode.logs.forms import FORMATS, JSON, TEXT, CommandForm, form_of, plain_line
from homenode.logs.held import HeldStream
from homenode.logs.repetition import CountingHandler
from homenode.logs.stream import drain_standard_error, queue_standard_error

LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "HOMENODE_LOG_LEVEL"
FORMAT_VARIABLE = "HOMENODE_LOG_FORMAT"
_SERVICE_LEVEL = "info"
_COMMAND_LEVEL = "warning"


def begin_service_log(process: str, level: str | None = None, format: str | None = None) -> None:
    """Log to standard error, dated and with the name of this process, without waiting for its reader.

    `level`: one of `LEVELS`; None for the one that was inherited, else info. `format`: None for the one that was
    inherited, else text.
    """
    chosen = format or _inherited_format()
    queue_standard_error(lambda text: plain_line(text, process, chosen))
    if chosen != _inherited_format():
        os.environ[FORMAT_VARIABLE] = chosen
    if chosen == JSON:
        _log_what_nobody_caught()
    _begin(sys.stderr, form_of(process, chosen), level, _SERVICE_LEVEL)


def service_level(level: str | None) -> str:
    """Return the level of a service's log that is asked for `level`: without one it is the inherited one, else info."""
    return _chosen_level(level, _SERVICE_LEVEL)


def command_level(level: str | None) -> str:
    """Return the same of the log of a command that ends by itself: without any it is warning."""
    return _chosen_level(level, _COMMAND_LEVEL)


def _chosen_level(level: str | None, usual: str) -> str:
    inherited = os.environ.get(LEVEL_VARIABLE)
    return level or (inherited if inherited in LEVELS else usual)


def _inherited_format() -> str:
    inherited = os.environ.get(FORMAT_VARIABLE, TEXT)
    return inherited if inherited in FORMATS else TEXT


def _log_what_nobody_caught() -> None:
    """Write exceptions that end the process or a thread as lines of the log, too."""

    def told(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
            logging.getLogger("homenode").critical("nobody caught this", exc_info=(kind, error, trace))

    sys.excepthook = told
    threading.excepthook = lambda told_of: told(told_of.exc_type, told_of.exc_value, told_of.exc_traceback)


def begin_command_log(level: str | None = None) -> None:
    """Log to standard error as a command speaks; `hold_log` keeps lines back. `level`: None for warning."""
    _begin(HeldStream(sys.stderr), CommandForm("%(message)s"), level, _COMMAND_LEVEL)


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
    chosen = _chosen_level(level, usual)
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
