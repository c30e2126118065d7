"""Parameters of tools as grammars take them: JSON schemas of objects, each with what is needed to stand alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# White space within values: what models write, and bounded, because a weak one may write nothing else.
_WHITE_SPACE = r"[ ]|\r?\n[ \t]{0,40}"
_SETTINGS = "x-guidance"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
# Beside these, `properties` do not say alone which keys an object has.
_OPENERS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref")


@dataclass(frozen=True)
class CallableTool:
    """A tool that may be called. `bound`: whether its arguments must fit its schema. `strict`: what of the schema cannot
    be kept is an error, and is let go otherwise. `input`: a grammar in Lark for the text that is its one argument.
    """

    name: str
    parameters: Mapping[str, Any]
    bound: bool
    strict: bool
    input: str | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema that the arguments are bound to, with settings of the grammar."""
        return with_settings(self.parameters if self.bound else {"type": "object"}, strict=self.strict)


def with_settings(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """A schema with settings of the grammar in place of those that it may have brought."""
    settings: dict[str, Any] = {"whitespace_pattern": _WHITE_SPACE}
    if not strict:
        settings["lenient"] = True
    return {**schema, _SETTINGS: settings}


def parameters_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object with no keys but those that it names, unless it says
    otherwise.
    """
    given = function.get("parameters")
    if not isinstance(given, Mapping) or not given:
        return dict(_NO_PARAMETERS)
    schema = dict(given)
    if "properties" in schema and not any(word in schema for word in _OPENERS):
        schema["additionalProperties"] = False
    if not any(word in schema for word in ("allOf", "anyOf", "oneOf", "$ref")):
        schema["type"] = "object"
    return schema
