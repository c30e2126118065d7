"""Paths to values within a request, as messages name them, and refusals that do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from homenode.errors import UserError

_PLAIN = re.compile(r"[\w$-]{1,100}")
_LONGEST = 260  # characters of a place; the middle of a longer one is left out
_LONGEST_TAIL = 60
_LONGEST_WORD = 80


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A value in a body of JSON: keys and indexes below the field `param`. Equal places share their beginning."""

    param: str
    parent: FieldPath | None = None
    step: str | int = ""

    def __truediv__(self, step: str | int) -> FieldPath:
        return FieldPath(self.param, self, step)

    def steps(self) -> list[str | int]:
        """Return the steps from the field on."""
        found: list[str | int] = []
        place = self
        while place.parent is not None:
            found.append(place.step)
            place = place.parent
        return found[::-1]

    @property
    def name(self) -> str:
        """The word at this place, with that before it: a property's name before what is said of it."""
        steps = self.steps()
        return ".".join(map(str, steps[-2:])) if steps else self.param

    def __str__(self) -> str:
        text = self.param + "".join(map(_written, self.steps()))
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST - _LONGEST_TAIL]}...{text[-_LONGEST_TAIL:]}"

    def refusal(self, problem: str) -> UserError:
        """The error for what is wrong here."""
        return UserError(f"`{self}`: {problem}", param=self.param)


def shown(value: object) -> str:
    """A value of a client in a message, at a bounded length."""
    text = json.dumps(value, ensure_ascii=False, default=repr) if not isinstance(value, dict | list) else _kind(value)
    return text if len(text) <= _LONGEST_WORD else f"{text[:_LONGEST_WORD]}..."


def _kind(value: dict[str, object] | list[object]) -> str:
    return "an object" if isinstance(value, dict) else f"a list of {len(value)}"


def _written(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN.fullmatch(step) else f"[{json.dumps(step, ensure_ascii=False)[:_LONGEST_TAIL]}]"
