"""Parameters of tools as grammars take them: JSON schemas of objects, whole or one parameter at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homenode.chat.syntax.schema_types import resolve
from homenode.errors import UserError

# JSON on one line, as models write it: white space elsewhere would let a weak one write nothing else, and would part
# the terminals of values from those of the format, of which only one kind may be possible at a place.
_ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_SETTINGS = "x-guidance"
_TOOL = "#/$defs/tool"
# Beside these, `properties` do not say alone which keys an object has.
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref")
_OPENERS = ("additionalProperties", "patternProperties", "unevaluatedProperties", *_COMBINED)
_DEEPEST = 16  # of alternatives within alternatives
_UNKNOWN_KEYS = ("patternProperties", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "if")


@dataclass(frozen=True)
class ToolParameter:
    """One parameter of a tool. `schema` stands alone: what it refers to is in it. `input`: a grammar in Lark that the
    parameter keeps, which is a text.
    """

    name: str
    schema: Any
    required: bool
    input: str | None = None


@dataclass(frozen=True)
class CallableTool:
    """A tool that may be called. `bound`: whether its arguments must fit its schema. `strict`: what of the schema
    cannot be kept is an error, and is let go otherwise. `input`: a grammar in Lark for the text that is its one
    argument.
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

    def parameter_lists(self) -> list[list[ToolParameter]]:
        """The parameters in their order, for formats that write them one by one; several lists where the schema has
        alternatives. UserError for schemas of strict tools that are no such lists.
        """
        if self.input is not None:
            return [[self.input_parameter(self.input)]]
        return [self._parameters(schema) for schema in self._alternatives(self.parameters, 0)]

    def input_parameter(self, grammar: str) -> ToolParameter:
        """The one parameter of a tool whose argument is a text that keeps `grammar`."""
        properties = self.parameters.get("properties")
        name = next(iter(properties), "input") if isinstance(properties, Mapping) else "input"
        return ToolParameter(name, {"type": "string"}, True, grammar)

    def _alternatives(self, schema: Mapping[str, Any], depth: int) -> list[dict[str, Any]]:
        """The objects that a schema allows, with nothing but properties."""
        if depth > _DEEPEST:
            raise self._refusal("alternatives are too deep")
        if "$ref" in schema:
            schema = joined_schemas(resolve(schema, self.parameters), {k: v for k, v in schema.items() if k != "$ref"})
            return self._alternatives(schema, depth + 1)
        for word in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(word)
            if not isinstance(parts, list):
                continue
            rest = {key: value for key, value in schema.items() if key != word}
            if word == "allOf":
                for part in parts:
                    rest = joined_schemas(rest, self._object(part))
                return self._alternatives(rest, depth + 1)
            return [
                one for part in parts for one in self._alternatives(joined_schemas(rest, self._object(part)), depth + 1)
            ]
        if self.strict and (found := next((word for word in _UNKNOWN_KEYS if word in schema), None)):
            raise self._refusal(f"{found} cannot be kept")
        return [dict(schema)]

    def _object(self, schema: Any) -> Mapping[str, Any]:
        if not isinstance(schema, Mapping):
            raise self._refusal("each alternative has to be a schema of an object")
        return resolve(schema, self.parameters)

    def _parameters(self, schema: Mapping[str, Any]) -> list[ToolParameter]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        more = schema.get("additionalProperties", {})
        missing = {name: more for name in required if name not in properties}
        return [
            ToolParameter(name, standing_alone(value, self.parameters), name in required)
            for name, value in {**properties, **missing}.items()
        ]

    def _refusal(self, reason: str) -> UserError:
        text = f"the parameters of the tool {self.name} cannot be written in this model's form of calls: {reason}"
        return UserError(text, param="tools")


def with_settings(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """A schema with settings of the grammar in place of those that it may have brought."""
    return {**schema, _SETTINGS: _ON_ONE_LINE if strict else {**_ON_ONE_LINE, "lenient": True}}


def standing_alone(schema: Any, root: Mapping[str, Any]) -> Any:
    """A part of the schema `root` together with what it refers to."""
    if not isinstance(schema, Mapping) or not _refers(schema):
        return schema
    return {**_moved(schema), "$defs": {"tool": _moved(root)}}


def _refers(schema: Any) -> bool:
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if isinstance(one.get("$ref"), str):
                return True
            left += one.values()
        elif isinstance(one, list):
            left += one
    return False


def _moved(schema: Any) -> Any:
    """A schema whose references into its root are references to where `standing_alone` puts it."""
    if isinstance(schema, list):
        return [_moved(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _TOOL + value[1:] if key == "$ref" and isinstance(value, str) and value[:1] == "#" else _moved(value)
        for key, value in schema.items()
    }


def joined_schemas(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two schemas of objects as one that allows what both do."""
    joined = {**first, **second}
    for word in ("properties", "required"):
        values = [one[word] for one in (first, second) if word in one]
        if len(values) == 2 and word == "required":
            joined[word] = [*values[0], *(name for name in values[1] if name not in values[0])]
        elif len(values) == 2:
            both = values[0].keys() & values[1].keys()
            common = {name: {"allOf": [values[0][name], values[1][name]]} for name in both}
            joined[word] = {**values[0], **values[1], **common}
    return joined


def parameters_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object with no keys but those that it names, unless it says
    otherwise.
    """
    given = function.get("parameters")
    if not isinstance(given, Mapping) or not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = dict(given)
    if "properties" in schema and not any(word in schema for word in _OPENERS):
        schema["additionalProperties"] = False
    if not any(word in schema for word in _COMBINED):
        schema["type"] = "object"
    return schema
