"""The time that a request has its model kept for after it, in Ollama's words: seconds, or a text such as `5m`; below 0:
for ever, 0: not at all.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from msgspec import Meta
from starlette.requests import Request

from homenode.server.core.state import ServerState
from homenode.server.http.ignored import note_ignored
from homenode.server.keys.caller import caller
from homenode.server.models.served_model import ServedModel

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|ms|s|m|h)")
_FORM = rf"^[+-]?(?:{_NUMBER}|(?:{_NUMBER}(?:ns|us|µs|ms|s|m|h))+)$"

_LONGEST = 64
_NOT_ZERO = "[1-9]"  # a digit of a text of that form which is not zero seconds

KeepAlive: TypeAlias = float | Annotated[str, Meta(pattern=_FORM, max_length=_LONGEST)]


def keep_alive_seconds(value: float | str | None) -> float | None:
    """Return the seconds, of a value as `KeepAlive` has it; None where the request leaves it open."""
    if value is None:
        return None
    parts = _PART.findall(value) if isinstance(value, str) else []
    if not parts or not isinstance(value, str):
        return _positive(float(value))
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _positive(-seconds if value.startswith("-") else seconds)


def _positive(seconds: float) -> float:
    return seconds if 0 <= seconds < 1e9 else float("inf")


def kept_schema(state: ServerState) -> dict[str, Any]:
    """The schema of the values that `keep_as_asked` tells nothing of, whatever the key of the request."""
    schema: dict[str, Any] = {"anyOf": [{"type": "null"}], "default": None}
    if state.models.changes and state.config.api_key_file is not None:
        return {**schema, "description": "Or a time, of a key that may load and unload models."}
    text = {"type": "string", "pattern": _FORM, "maxLength": _LONGEST}
    number: dict[str, Any] = {"type": "number"}
    if not state.models.changes:
        text, number = {**text, "allOf": [{"pattern": _NOT_ZERO}]}, {**number, "not": {"const": 0}}
    schema["anyOf"] += [number, text]
    return schema


def keep_as_asked(state: ServerState, request: Request, model: ServedModel, value: float | str | None) -> None:
    """Have the model kept for so long after this request. A server of one model never unloads it, which is told where
    it would have to.
    """
    seconds = keep_alive_seconds(value)
    if seconds is None:
        return
    if state.models.changes and caller().is_admin:
        state.models.keep(model, seconds)
    elif state.models.changes:
        note_ignored(request, "keep_alive", "keep_alive")  # this key may not say which models are loaded
    elif seconds == 0:
        note_ignored(request, "keep_alive", "keep_alive")  # the model is never unloaded
