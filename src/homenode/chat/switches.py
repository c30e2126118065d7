"""Thoughts switched on and off, in the words that a chat template has for it."""

from __future__ import annotations

import functools
import re
from typing import Any

_SWITCHES = ("enable_thinking", "thinking")  # variables of templates that are true or false
_MODE, _MODES = "thinking_mode", {True: "enabled", False: "disabled"}
_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
# The efforts that templates know least often, and what stands in where a template does not have the word.
_NEAREST = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
OFF = "none"  # the effort that asks for no thoughts
_NO_THOUGHTS = "no_think"  # what some templates call it, which think only when they are asked to


def thinking_values(template: str, *, thinking: bool | None, effort: str | None) -> dict[str, Any]:
    """The variables of a chat template by which a request's wishes reach it; none where it knows no such variables.

    `thinking`: whether there are to be thoughts; None: as the template does by itself, or as `effort` says, which is a
    word from `none` to `max`.
    """
    wanted = effort != OFF if thinking is None and effort is not None else thinking
    found: dict[str, Any] = {}
    if wanted is not None:
        found = {name: wanted for name in _SWITCHES if _reads(template, name)}
        if _reads(template, _MODE):
            found[_MODE] = _MODES[wanted]
    if effort is None and wanted is not None:
        effort = OFF if not wanted else "high" if _has_word(template, _NO_THOUGHTS) else None
    if effort is not None:
        found |= {name: _word(template, effort) for name in _EFFORTS if _reads(template, name)}
    return found


def _word(template: str, effort: str) -> str:
    """A template's word for an effort."""
    if _has_word(template, effort):
        return effort
    if effort == OFF and _has_word(template, _NO_THOUGHTS):
        return _NO_THOUGHTS
    if effort == "medium" and _has_word(template, "low") and _has_word(template, "high"):
        return "high"  # where a template refuses words that it does not have
    return _NEAREST.get(effort, effort)


def same_switch(template: str, values: dict[str, Any]) -> dict[str, Any]:
    """`values` for a chat template, with a switch for thoughts under the name that the template has for it as well."""
    given = next((values[name] for name in _SWITCHES if isinstance(values.get(name), bool)), None)
    return values if given is None else {**thinking_values(template, thinking=given, effort=None), **values}


@functools.lru_cache(maxsize=64)
def _reads(template: str, name: str) -> bool:
    """Return whether a template looks at a variable, which is not a field of something and not a text."""
    return re.search(rf"(?<![\w.'\"/<]){name}\b(?!['\"])", template) is not None


def _has_word(template: str, word: str) -> bool:
    return f"'{word}'" in template or f'"{word}"' in template
