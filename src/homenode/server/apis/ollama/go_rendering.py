"""The rules of what happens when a template of Ollama is rendered: its values, its functions, and the bounds
of both.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_STEPS = 100_000  # of a rendering
_MOST_CHARS = 2**24  # that a rendering writes and hands to functions


class GoTemplateError(ValueError):
    """A template that cannot be read or rendered; the text says why."""


class RenderingEnded(Exception):
    """The rendering ends here."""


@dataclass(slots=True)
class Rendering:
    """One rendering. `dot`: what `.` is. `ends_at_response`: the text ends where `.Response` would be."""

    dot: Any
    variables: ChainMap[str, Any]
    ends_at_response: bool
    written: list[str] = field(default_factory=list)
    steps: int = 0
    chars: int = 0

    def write(self, text: str) -> None:
        """Add to what is rendered."""
        self.count_chars(text)
        self.written.append(text)

    def count_chars(self, *values: Any) -> None:
        """Count the characters of the texts among `values`."""
        self.chars += sum(len(value) for value in values if isinstance(value, str))
        if self.chars > _MOST_CHARS:
            raise GoTemplateError("it writes too much")

    def step(self) -> None:
        """Count what is done."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise GoTemplateError("it takes too many steps")


TemplateValue = Callable[[Rendering], Any]
TemplateNode = Callable[[Rendering], None]


def text_of(value: Any) -> str:
    """A value as it is written: other values than texts as JSON, and nothing for nil."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        try:
            value = value[key]
        except (LookupError, TypeError):
            raise GoTemplateError(f"`index` finds nothing at {text_of(key)[:80]}") from None
    return value


def _slice(value: Any, *ends: int) -> Any:
    begin, end = (*ends, len(value))[:2] if ends else (0, len(value))
    if not 0 <= begin <= end <= len(value):
        raise GoTemplateError(f"`slice` from {begin} to {end} of {len(value)}")
    return value[begin:end]


def _printf(form: str, *values: Any) -> str:
    given = list(values)

    def one(verb: re.Match[str]) -> str:
        if verb[0] == "%%":
            return "%"
        if not given:
            raise GoTemplateError("`printf` has more verbs than values")
        value = given.pop(0)
        return json.dumps(value, ensure_ascii=False) if verb[0] == "%q" else text_of(value)

    return re.sub("%[svdq%]", one, form)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "not": lambda value: not value,
    "eq": lambda value, *others: any(value == other for other in others),
    "ne": lambda value, other: value != other,
    "lt": lambda value, other: value < other,
    "le": lambda value, other: value <= other,
    "gt": lambda value, other: value > other,
    "ge": lambda value, other: value >= other,
    "len": len,
    "index": _index,
    "slice": _slice,
    "print": lambda *values: "".join(map(text_of, values)),
    "println": lambda *values: " ".join(map(text_of, values)) + "\n",
    "printf": _printf,
    "json": lambda value: json.dumps(value, ensure_ascii=False),
}
FUNCTION_NAMES = ", ".join(("and", "or", *FUNCTIONS))


def choice_of(name: str, arguments: Sequence[TemplateValue]) -> TemplateValue:
    """The first of the arguments that decides, of `and` one that is empty, or the last of them."""
    if not arguments:
        raise GoTemplateError(f"`{name}` has no arguments")

    def choose(run: Rendering) -> Any:
        run.step()
        for argument in arguments:
            value = argument(run)
            if bool(value) is (name == "or"):
                break
        return value

    return choose


def call_of(name: str, arguments: Sequence[TemplateValue]) -> TemplateValue:
    """Return what a function makes of its arguments."""
    function = FUNCTIONS[name]

    def call(run: Rendering) -> Any:
        run.step()
        values = [argument(run) for argument in arguments]
        run.count_chars(*values)
        try:
            result = function(*values)
        except (TypeError, LookupError):
            raise GoTemplateError(f"`{name}` does not go with what it is given") from None
        run.count_chars(result)
        return result

    return call


def written_text(text: str) -> TemplateNode:
    """Text that is written as it is."""
    return lambda run: run.write(text)


def render_each(nodes: Sequence[TemplateNode], run: Rendering) -> None:
    """One after the other."""
    for node in nodes:
        run.step()
        node(run)


def render_within(run: Rendering, dot: Any, variables: dict[str, Any], nodes: Sequence[TemplateNode]) -> None:
    """A block with its own dot and variables."""
    before, run.dot, run.variables = (run.dot, run.variables), dot, run.variables.new_child(variables)
    render_each(nodes, run)
    run.dot, run.variables = before


def looked_up(run: Rendering, first: str, names: Sequence[str]) -> Any:
    """The value of a path. `first`: a variable, or "" for dot."""
    if first and first not in run.variables:
        raise GoTemplateError(f"`{first}` was not declared")
    if run.ends_at_response and list(names) == ["Response"]:
        raise RenderingEnded
    return fields_of(run.variables[first] if first else run.dot, names)


def fields_of(value: Any, names: Sequence[str]) -> Any:
    """The field of a field, and so on; nil where there is none of that name."""
    for name in names:
        if not isinstance(value, Mapping):
            raise GoTemplateError(f"`.{name[:80]}` of what has no fields")
        value = value.get(name)
    return value
