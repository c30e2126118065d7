"""Parts that the types of the Responses API cannot say in the OpenAPI document: items and tools, which are read one by
one, the names of the model, and fields that depend on each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from homenode.server.apis.responses.conversation import KNOWN_INCLUDES
from homenode.server.apis.responses.items import ITEM_KINDS, ResponsesMessage
from homenode.server.apis.responses.messages import TEXT_PARTS
from homenode.server.apis.responses.request import ResponsesRequest, ResponsesTextOptions
from homenode.server.apis.responses.tools import TOOL_KINDS, ResponsesNamespace
from homenode.server.core.generation_fields import KEPT_VERBOSITY
from homenode.server.core.media.content import MEDIA_TYPES, read_types
from homenode.server.core.state import ServerState

_REFS = "#/components/schemas/{name}"
_TOOLS = {**TOOL_KINDS, "namespace": ResponsesNamespace}
_OFF: dict[str, Any] = {"enum": [False, None]}
_OF_TEMPLATES = ["messages", "tools", "add_generation_prompt", "continue_final_message"]
_TEXT: dict[str, Any] = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
_ITEMS_LEFT_OUT = " Items of other types are left out."
_TOOLS_LEFT_OUT = {"description": "Tools of other types are left out."}
_REFUSAL: dict[str, Any] = {"properties": {"refusal": {"type": "string"}}, "required": ["refusal"]}


def tighten(components: dict[str, Any], state: ServerState) -> None:
    """Adds to the schemas, by type name."""
    strict = state.config.strict_requests
    _add_kinds(components, strict=strict)
    request = components[ResponsesRequest.__name__]
    fields = request["properties"]
    fields["model"] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}
    said = {"required": ["role", "content"], "properties": {"type": {"const": "message"}}}
    items = {"type": "array", "items": _one_of(ITEM_KINDS, others=not strict), "minItems": 1, "contains": said}
    fields["input"] = {
        "anyOf": [{"type": "string"}, items],
        "description": "Not needed with `previous_response_id`." + ("" if strict else _ITEMS_LEFT_OUT),
    }
    request["required"] = ["input"]
    fields["tools"] = {
        "anyOf": [{"type": "array", "items": _one_of(_TOOLS, others=not strict)}, {"type": "null"}],
        "default": None,
        **({} if strict else _TOOLS_LEFT_OUT),
    }
    fields["tool_choice"] = {
        "enum": ["none", "auto", "required", None],
        "default": None,
        "description": 'Or one of the tools, {"type": "function", "name": NAME}, also of the type "custom", or '
        '{"type": "allowed_tools", "mode": "auto", "tools": [TOOL, ...]}.',
    }
    last = state.limits.vocab_size - 1
    fields["stop_token_ids"]["anyOf"][0]["items"] = {"type": "integer", "minimum": 0, "maximum": last}
    fields["chat_template_kwargs"]["anyOf"][0]["propertyNames"] = {"not": {"enum": _OF_TEMPLATES}}
    request["allOf"] = [_choice_rule(), _background_rule(state)]
    if strict:
        _tighten_known(components, state)


def _tighten_known(components: dict[str, Any], state: ServerState) -> None:
    """Say what is not left out, as --strict-requests refuses what would be."""
    known = components[ResponsesRequest.__name__]["properties"]["include"]["anyOf"][0]
    known["items"] = {"enum": list(KNOWN_INCLUDES)}
    text = components[ResponsesTextOptions.__name__]["properties"]
    text["verbosity"] = {"enum": list(KEPT_VERBOSITY), "default": None}
    media = read_types(sorted(MEDIA_TYPES), state.limits.taken)
    components["ResponsesPart"]["properties"]["type"] = {"enum": [*sorted(TEXT_PARTS), "refusal", *media]}
    components["ResponsesReasoning"]["properties"]["encrypted_content"] = {
        "enum": [None, ""],
        "default": None,
        "description": "Or as an answer of this server had it.",
    }


def _add_kinds(components: dict[str, Any], *, strict: bool) -> None:
    """The schemas of items and tools. `strict`: unknown fields are refused."""
    _, kinds = msgspec.json.schema_components({*ITEM_KINDS.values(), *_TOOLS.values()}, ref_template=_REFS)
    for schema in kinds.values():
        if not strict:
            schema.pop("additionalProperties", None)
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    closed = kinds["ResponsesPart"] if strict else {}
    parts = [_part(_TEXT, TEXT_PARTS, closed), _part(_REFUSAL, {"refusal"}, closed)]
    kinds["ResponsesMessage"]["properties"]["content"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": parts}}]
    }
    kinds["ResponsesPart"]["allOf"] = [
        {"if": {"properties": {"type": {"enum": sorted(types)}}}, "then": having}
        for having, types in ((_TEXT, TEXT_PARTS), (_REFUSAL, {"refusal"}))
    ]
    for kind in {*ITEM_KINDS.values()} - {ResponsesMessage}:
        schema = kinds[kind.__name__]
        schema["required"] = [*dict.fromkeys(["type", *schema.get("required", ())])]
    kinds["ResponsesCustomTool"]["properties"]["format"] = {
        "enum": [{"type": "text"}, None],
        "default": None,
        "description": 'Or {"type": "grammar", "syntax": "lark" or "regex", "definition": GRAMMAR}.',
    }
    inner = {name: kind for name, kind in _TOOLS.items() if kind is not ResponsesNamespace}
    kinds["ResponsesNamespace"]["properties"]["tools"]["items"] = _one_of(inner, others=not strict)
    kinds["ResponsesMoreTools"]["properties"]["tools"]["items"] = _one_of(_TOOLS, others=not strict)
    components.update(kinds)


def _part(having: dict[str, Any], types: Collection[str], closed: Mapping[str, Any]) -> dict[str, Any]:
    """A part of one of these types, with the field that such parts must have. `closed`: the schema of parts, if they
    have no fields but those of it.
    """
    properties = {"type": {"enum": sorted(types)}, **having["properties"]}
    part = {"type": "object", "properties": properties, "required": ["type", *having["required"]]}
    return {**part, "properties": closed["properties"] | properties, "additionalProperties": False} if closed else part


def _one_of(kinds: dict[str, type], *, others: bool) -> dict[str, Any]:
    """One of these, by its type, or with `others` something of another type."""
    known = [{"$ref": _REFS.format(name=kind.__name__)} for kind in dict.fromkeys(kinds.values())]
    if not others:
        return {"anyOf": known}
    other = {"type": "string", "not": {"enum": sorted(kinds)}}
    return {"anyOf": [*known, {"type": "object", "properties": {"type": other}, "required": ["type"]}]}


def _choice_rule() -> dict[str, Any]:
    """A call can be required where there is something to call."""
    free = {"properties": {"tool_choice": {"enum": ["none", "auto", None]}}}
    own = {"properties": {"type": {"enum": list(TOOL_KINDS)}}, "required": ["type"]}
    some = {"properties": {"tools": {"type": "array", "contains": own}}, "required": ["tools"]}
    return {"anyOf": [free, some]}


def _background_rule(state: ServerState) -> dict[str, Any]:
    """A response in the background is stored, and no stream."""
    off = {"properties": {"background": _OFF}}
    if not state.config.max_stored_responses:
        return off
    return {"anyOf": [off, {"properties": {"stream": _OFF, "store": {"enum": [True, None]}}}]}
