"""One attempt of a test in which a call fails."""

from __future__ import annotations

from typing import Any, NamedTuple

KINDS = ("none", "files", "core", "large")


class Attempt(NamedTuple):
    """`number`: of the call that was to fail, and with `all_after` all that followed it; `calls`: how many there were; `failed`: the name of the one that did, empty when there were fewer."""

    number: int
    all_after: bool
    calls: int
    failed: str
    outcome: str
    message: str
    left: dict[str, Any]
