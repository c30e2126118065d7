"""Recorded arrivals: the formats of the published serving traces, read with bounds.

CSV    TIMESTAMP,ContextTokens,GeneratedTokens
       a time of day and two numbers of tokens (the Azure LLM inference traces)
JSONL  {"timestamp": ms, "input_length": ..., "output_length": ..., "hash_ids": [...]}
       an id for each 512 tokens of the prompt (Mooncake's)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeGuard

from homenode.errors import UserError
from homenode.simulate.workload import BLOCK, MOST_REQUESTS, MOST_TOKENS, Job, Workload
from homenode.units import format_count

_LONGEST_LINE = 1 << 20  # characters: ids of half a million tokens and more
_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_trace(path: str, limit: int | None = None, speed: float = 1.0) -> Workload:
    """The requests of a trace file, the first at 0 s. `limit`: of the first ones only. `speed`: times as fast as they
    were recorded.

    UserError, naming file, line and fault, for anything that is no such trace; at most 5 million requests are read.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            jobs = list(islice(_jobs(file, path), (limit or MOST_REQUESTS) + 1))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(
            f"cannot read the trace {path}: {getattr(error, 'strerror', None) or error}", param="workload"
        ) from error
    if limit is None and len(jobs) > MOST_REQUESTS:
        raise UserError(
            f"the trace {path} has more than {MOST_REQUESTS} requests; take the first ones with --requests N",
            param="workload",
        )
    if not jobs:
        raise UserError(f"the trace {path} has no requests", param="workload")
    chosen = sorted(jobs[:limit], key=lambda job: job.at)
    first = chosen[0].at
    return Workload(
        Path(path).name, [Job((job.at - first) / speed, job.prompt, job.output, job.blocks) for job in chosen]
    )


def _jobs(file: IO[str], path: str) -> Iterator[Job]:
    lines = _lines(file, path)
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith("{"):
        yield _of_object(path, *first)
        for number, line in lines:
            yield _of_object(path, number, line)
    elif next(csv.reader([first[1]])) == _HEADER:
        for number, line in lines:
            yield _of_row(path, number, line)
    else:
        raise _refusal(path, 1, f"it begins neither with {{ nor with {','.join(_HEADER)}")


def _lines(file: IO[str], path: str) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise _refusal(path, number, f"it is longer than {_LONGEST_LINE} characters")
        if line.strip():
            yield number, line.strip()


def _of_row(path: str, number: int, line: str) -> Job:
    row = next(csv.reader([line]))
    if len(row) != len(_HEADER):
        raise _refusal(path, number, f"it has {format_count(len(row), 'value')}; {len(_HEADER)} are wanted")
    try:
        # The last digit of seven is beyond what a datetime holds.
        at = datetime.fromisoformat(row[0].strip()[:26]).timestamp()
        prompt, output = int(row[1]), int(row[2])
    except (ValueError, OverflowError, OSError):
        raise _refusal(path, number, f"{line[:80]!r} is no time and two whole numbers") from None
    return _checked(path, number, at, prompt, output)


def _of_object(path: str, number: int, line: str) -> Job:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise _refusal(path, number, "it is no JSON") from None
    if not isinstance(found, dict):
        raise _refusal(path, number, "it is no JSON object")
    at, prompt, output = found.get("timestamp"), found.get("input_length"), found.get("output_length")
    if not (_number(at) and _whole(prompt) and _whole(output)):
        raise _refusal(
            path, number, "timestamp, input_length and output_length must be numbers, the latter two whole ones"
        )
    blocks = found.get("hash_ids") or []
    if (
        not isinstance(blocks, list)
        or len(blocks) > MOST_TOKENS // BLOCK
        or not all(_whole(b) and 0 <= b < 1 << 63 for b in blocks)
    ):
        raise _refusal(path, number, "hash_ids must be a list of whole numbers, none negative")
    return _checked(path, number, at / 1000, prompt, output, tuple(blocks))


def _checked(path: str, number: int, at: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> Job:
    if not abs(at) < 1e12:
        raise _refusal(path, number, f"the time {at:g} is out of range")
    for name, value in (("prompt", prompt), ("output", output)):
        if not 0 <= value <= MOST_TOKENS:
            raise _refusal(path, number, f"{value} {name} tokens; wanted 0 to {MOST_TOKENS}")
    return Job(at, max(1, prompt), max(1, output), blocks)


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _refusal(path: str, number: int, fault: str) -> UserError:
    return UserError(f"the trace {path}, line {number}: {fault}", param="workload")
