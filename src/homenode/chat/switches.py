"""Thoughts switched on and off, in the words that a chat template has for it."""

from __future__ import annotations

import functools
import re
from typing import Any

_SWITCHES = ("enable_thinking", "thinking")  # variables of templates that are true or false
_EFFORT = "reasoning_effort"
# The efforts that templates know least often, and what stands in where a template does not have the word.
_NEAREST = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
OFF = "none"  # the effort that asks for no thoughts


def thinking_values(template: str, *, thinking: bool | None, effort: str | None) -> dict[str, Any]:
    """The variables of a chat template by which a request's wishes reach it; none where it knows no such variables.

    `thinking`: whether there are to be thoughts; None: as the template does by itself, or as `effort` says, which is a
    word from `none` to `max`.
    """
    wanted = effort != OFF if thinking is None and effort is not None else thinking
    found: dict[str, Any] = {}
    if wanted is not None:
        found = {name: wanted for name in _SWITCHES if _reads(template, name)}
    if effort is not None and _reads(template, _EFFORT):
        found[_EFFORT] = effort if _has_word(template, effort) else _NEAREST.get(effort, effort)
    return found


def same_switch(template: str, values: dict[str, Any]) -> dict[str, Any]:
    """`values` for a chat template, with a switch for thoughts under the name that the template has for it as well."""
    given = next((values[name] for name in _SWITCHES if isinstance(values.get(name), bool)), None)
    return values if given is None else {**thinking_values(template, thinking=given, effort=None), **values}


@functools.lru_cache(maxsize=64)
def _reads(template: str, name: str) -> bool:
    """Whether a template looks at a variable, which is not a field of something and not a text."""
    return re.search(rf"(?<![\w.'\"/<]){name}\b(?!['\"])", template) is not None


def _has_word(template: str, word: str) -> bool:
    return f"'{word}'" in template or f'"{word}"' in template
