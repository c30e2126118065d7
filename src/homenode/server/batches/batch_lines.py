"""The lines of a batch file: what each asks for, and what is wrong with a file that cannot be a batch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

MOST_LINES = 50_000
_MOST_ERRORS = 20  # that are told of one file
_LONGEST_ID = 512


class BatchLine(Struct, kw_only=True):
    """A request of a batch. `body`: as it would be posted to `url`."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


class LineError(Struct, kw_only=True):
    """The error of a line; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineOffset(Struct, array_like=True):
    """The place of a line in its file: where its bytes begin, how many there are, and the client's id of it."""

    begin: int
    size: int
    custom_id: str


def read_line(raw: bytes) -> BatchLine:
    """Raises msgspec.DecodeError for what is no request."""
    return msgspec.json.decode(raw, type=BatchLine)


def check_lines(
    lines: Iterable[bytes], endpoint: str | None, paths: Collection[str]
) -> tuple[list[LineOffset], list[LineError]]:
    """Where the lines of a file are, empty ones left out, and what is wrong with it, at most some twenty errors.

    `endpoint`: the one that all lines have to name; None: each may name any of `paths`.
    """
    found: list[LineOffset] = []
    errors: list[LineError] = []
    seen: set[str] = set()
    at = 0
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            found.append(LineOffset(at, len(raw), ""))
            for error in _errors_of(raw, number, found[-1], endpoint, paths, seen):
                errors.append(error)
        at += len(raw)
        if len(found) > MOST_LINES:
            text = f"the file has more than {MOST_LINES} requests; give the rest in another one"
            errors.append(LineError(code="too_many_requests", message=text, line=number))
        if len(errors) >= _MOST_ERRORS or len(found) > MOST_LINES:
            break
    if not found:
        errors.append(LineError(code="empty_file", message="the file has no request"))
    return found, errors


def _errors_of(
    raw: bytes, number: int, place: LineOffset, endpoint: str | None, paths: Collection[str], seen: set[str]
) -> Iterator[LineError]:
    try:
        line = read_line(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield LineError(code="invalid_json_line", message=f"line {number} is no request: {error}"[:500], line=number)
        return
    place.custom_id = line.custom_id
    if not 0 < len(line.custom_id) <= _LONGEST_ID:
        text = f"line {number}: custom_id has {len(line.custom_id)} characters; give 1 to {_LONGEST_ID}"
        yield LineError(code="invalid_custom_id", message=text, param="custom_id", line=number)
    elif line.custom_id in seen:
        text = f"line {number}: the custom_id {line.custom_id!r} stands in an earlier line; give each its own"
        yield LineError(code="duplicate_custom_id", message=text, param="custom_id", line=number)
    seen.add(line.custom_id)
    if line.method.upper() != "POST":
        text = f"line {number}: method is {line.method[:20]!r}; requests of a batch are POST"
        yield LineError(code="invalid_method", message=text, param="method", line=number)
    if line.url not in paths:
        text = f"line {number}: url is {line.url[:100]!r}; a batch can ask {', '.join(sorted(paths))}"
        yield LineError(code="invalid_url", message=text, param="url", line=number)
    elif endpoint is not None and line.url != endpoint:
        text = f"line {number}: url is {line.url!r}, and the batch was made for {endpoint!r}; give all lines one"
        yield LineError(code="mismatched_endpoint", message=text, param="url", line=number)
