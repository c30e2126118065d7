"""A regular expression without what looks around: what remains matches all that the whole one does, and more."""

from __future__ import annotations

import re
from collections.abc import Callable

_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_BOUNDARIES = ("\\b", "\\B")


def kept_pattern(pattern: str, fault: Callable[[str], str | None]) -> str | None:
    """Return what of a pattern a grammar can keep: all of it, or what is left without look-arounds and word boundaries;
    None where that is nothing. `fault`: why a pattern cannot be kept, None if it can be.
    """
    if fault(pattern) is None:
        return pattern
    rest = without_looks(pattern)
    return rest if rest not in (None, "", pattern, "^", "$", "^$") and fault(rest) is None else None


def is_pattern(pattern: str) -> bool:
    """Return whether a pattern that cannot be kept is a regular expression all the same."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def without_looks(pattern: str) -> str | None:
    """The pattern without groups that look ahead or behind and without word boundaries, each of which takes no
    character; None where its brackets do not match.
    """
    kept: list[str] = []
    at, dropped, depth, in_class = 0, 0, 0, False  # `dropped`: the depth of the group that is left out, 0: none is
    while at < len(pattern):
        size = 2 if pattern[at] == "\\" else 1
        piece = pattern[at : at + size]
        if in_class:
            in_class = piece != "]"
        elif piece == "[":
            in_class = True
            size += len(re.match(r"\^?\]?", pattern[at + 1 :]).group())  # type: ignore[union-attr]
        elif piece == "(":
            depth += 1
            if not dropped and pattern.startswith(_AROUND, at):
                dropped = depth
        at += size
        if not dropped and piece not in _BOUNDARIES:
            kept.append(pattern[at - size : at])
        elif not dropped and in_class:
            kept.append(piece)
        if piece == ")" and not in_class:
            dropped = 0 if dropped == depth else dropped
            depth -= 1
    return None if depth or in_class else "".join(kept)
