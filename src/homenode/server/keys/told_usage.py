"""The tokens of an answer, as a server tells the proxy that asks for them: a header of a whole answer, a comment before
the end of a stream of events. Pure.

A line of Ollama's streams cannot be a comment; there the last line has the tokens anyway.
"""

from __future__ import annotations

import re
from typing import NamedTuple

USAGE_HEADER = "x-homenode-usage"
_TOLD = re.compile(rb"(\d{1,18}) (\d{1,18})")
_COMMENT = re.compile(rb": x-homenode-usage: (\d{1,18}) (\d{1,18})\n\n")
_LINE = re.compile(rb'"prompt_eval_count":(\d{1,18}).*"eval_count":(\d{1,18})')


class ToldUsage(NamedTuple):
    """Tokens of an answer."""

    prompt: int
    generated: int

    def header(self) -> str:
        """The value of the header."""
        return f"{self.prompt} {self.generated}"

    def comment(self) -> bytes:
        """Return what stands before the end of a stream."""
        return f": {USAGE_HEADER}: {self.header()}\n\n".encode()


def usage_of_header(value: bytes) -> ToldUsage | None:
    """None where it is none."""
    found = _TOLD.fullmatch(value)
    return None if found is None else ToldUsage(int(found[1]), int(found[2]))


def usage_of_line(line: bytes) -> ToldUsage | None:
    """Return the usage of the last line of a stream of lines; None where it has none."""
    found = _LINE.search(line)
    return None if found is None else ToldUsage(int(found[1]), int(found[2]))


def without_usage(events: bytes) -> tuple[bytes, ToldUsage | None]:
    """Whole events without the comment, and what it said; None where there is none."""
    found = _COMMENT.search(events)
    if found is None:
        return events, None
    return events[: found.start()] + events[found.end() :], ToldUsage(int(found[1]), int(found[2]))
