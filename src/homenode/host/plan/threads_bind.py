"""The text that says which CPUs each CPU worker computes on: `auto`, `nobind`, or CPU lists joined by `|`, one for each
worker.

The field knows it as VLLM_CPU_OMP_THREADS_BIND. A list's order is the order of the threads and is kept: `5,2-4` is 5,
2, 3, 4.
"""

from __future__ import annotations

import re

from homenode.errors import PlacementError
from homenode.host.plan.variables import THREADS_BIND_FLAG

AUTO, NOBIND = "auto", "nobind"
_LONGEST = 65536  # characters of all lists together
_MOST_NAMED = 1 << 17  # CPUs in all lists, repeats counted: a bound on the work, above what any machine has
_ITEM = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")

ThreadLists = tuple[tuple[int, ...], ...]


def parse_threads_bind(text: str, origin: str = THREADS_BIND_FLAG) -> str | ThreadLists:
    """AUTO, NOBIND, or the CPUs of each worker in the order of its threads, without repeats. Raises PlacementError
    bad_threads_bind.

    `origin`: the flag or variable that the text comes from.
    """
    try:
        return _parsed(text)
    except _UnreadableError as error:
        raise bad_threads_bind(text, f"cannot be read: {error}", origin=origin) from None


class _UnreadableError(ValueError):
    """An error that says what is wrong with the text."""


def _parsed(text: str) -> str | ThreadLists:
    if text.strip() in (AUTO, NOBIND):
        return text.strip()
    if len(text) > _LONGEST:
        raise _UnreadableError(f"it is longer than {_LONGEST} characters")
    lists, named = [], 0
    for number, part in enumerate(text.split("|")):
        cpus: dict[int, None] = {}
        for low, high in _ranges(part, number):
            named += high - low + 1
            if named > _MOST_NAMED:
                raise _UnreadableError(f"it names more than {_MOST_NAMED} CPUs")
            cpus.update(dict.fromkeys(range(low, high + 1)))
        lists.append(tuple(cpus))
    return tuple(lists)


def _ranges(part: str, number: int) -> list[tuple[int, int]]:
    if not part.strip():
        raise _UnreadableError(f"the list of worker {number} is empty")
    found = []
    for item in map(str.strip, part.split(",")):
        match = _ITEM.fullmatch(item)
        if not match:
            raise _UnreadableError(f"{item[:40]!r} in the list of worker {number} is neither a CPU nor a range")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise _UnreadableError(f"the range {item} in the list of worker {number} descends")
        found.append((low, high))
    return found


def bad_threads_bind(text: str, why: str, wanted: str = "", origin: str = THREADS_BIND_FLAG) -> PlacementError:
    """The refusal of a text, given by the flag or variable `origin`, that says which CPUs workers compute on."""
    return PlacementError(
        "bad_threads_bind",
        f"{origin} {why}",
        seen=repr(text if len(text) <= 80 else text[:77] + "..."),
        wanted=wanted or "auto, nobind, or one CPU list for each worker joined by |, such as 0-15|16-31",
        remedy=f"Mend {origin}.",
        param=THREADS_BIND_FLAG,
    )
