"""Parts that the types of the Messages API cannot say in the OpenAPI document: the names of the model, and fields that
depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from homenode.server.apis.anthropic.blocks import (
    ANSWER_TYPES,
    NEEDED_FIELDS,
    RESULT_READERS,
    TOOL_RESULT,
    USER_READERS,
    MessagesBlock,
)
from homenode.server.apis.anthropic.conversation import CLEARS_THOUGHTS
from homenode.server.apis.anthropic.request import (
    MessagesCountRequest,
    MessagesMessage,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
)
from homenode.server.apis.anthropic.tools import OWN_TYPES
from homenode.server.core.media.content import MEDIA_TYPES, read_types
from homenode.server.core.state import ServerState

_NOT_NULL: dict[str, Any] = {"not": {"type": "null"}}
_TEXTS = {"type": "array", "items": {"properties": {"text": {"type": "string"}}, "required": ["text"]}}
# A document whose text can be read: its source is the text, or has it in `data`, or in blocks.
_READABLE: dict[str, Any] = {
    "required": ["source"],
    "properties": {
        "source": {
            "anyOf": [
                {"type": "string"},
                {"properties": {"type": {"const": "text"}, "data": {"type": "string"}}, "required": ["data"]},
                {
                    "properties": {"type": {"const": "content"}, "content": {"anyOf": [{"type": "string"}, _TEXTS]}},
                    "required": ["content"],
                },
            ]
        }
    },
}
_OF_TEMPLATES = ["messages", "tools", "add_generation_prompt", "continue_final_message"]


def tighten(components: dict[str, Any], state: ServerState) -> None:
    """Adds to the schemas, by type name."""
    for kind in (MessagesRequest, MessagesCountRequest):
        _tighten_request(components[kind.__name__], state)
    stop_tokens = components[MessagesRequest.__name__]["properties"]["stop_token_ids"]["anyOf"][0]
    stop_tokens["items"] = {"type": "integer", "minimum": 0, "maximum": state.limits.vocab_size - 1}
    components[MessagesBlock.__name__]["allOf"] = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": _having(*names)}
        for kind, names in NEEDED_FIELDS.items()
    ]
    other = {"required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": ["custom", "function"]}}}}
    components[MessagesTool.__name__]["allOf"] = [{"anyOf": [_having("name", "input_schema"), other]}]
    choice = components[MessagesToolChoice.__name__]["properties"]
    choice["type"] = {"enum": ["auto", "any", "none"], "description": "Or `tool`, with the `name` of one of the tools."}
    if state.config.strict_requests:
        _tighten_known(components, state)


def _tighten_known(components: dict[str, Any], state: ServerState) -> None:
    """Say what is not left out, as --strict-requests refuses what would be."""
    media = read_types(sorted(MEDIA_TYPES), state.limits.taken)
    by_role = {
        "user": (TOOL_RESULT, *USER_READERS, *media),
        "assistant": ANSWER_TYPES,
        "system": tuple(USER_READERS),
    }
    in_results = (*RESULT_READERS, *media)
    block = components[MessagesBlock.__name__]
    known = dict.fromkeys(kind for kinds in (*by_role.values(), in_results) for kind in kinds)
    block["properties"]["type"] = {"enum": list(known)}
    block["allOf"] += [_where("type", TOOL_RESULT, _content_of(in_results)), _where("type", "document", _READABLE)]
    components[MessagesMessage.__name__]["allOf"] = [
        _where("role", role, _content_of(kinds)) for role, kinds in by_role.items()
    ]
    components[MessagesTool.__name__]["properties"]["type"] = {"enum": list(OWN_TYPES), "default": None}
    edits = components[MessagesRequest.__name__]["properties"]["context_management"]["anyOf"][0]
    known_edit = {"anyOf": [{"const": CLEARS_THOUGHTS}, {"not": {"type": "string"}}]}
    edits["properties"] = {"edits": {"items": {"properties": {"type": known_edit}}}}


def _where(field: str, value: str, then: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {field: {"const": value}}}, "then": then}


def _content_of(kinds: Iterable[str]) -> dict[str, Any]:
    """A content whose blocks, or the one that it is, are of these types."""
    block = {"properties": {"type": {"enum": list(kinds)}}}
    return {"properties": {"content": {**block, "items": block}}}


def _tighten_request(schema: dict[str, Any], state: ServerState) -> None:
    fields = schema["properties"]
    fields["model"] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}
    fields["chat_template_kwargs"]["anyOf"][0]["propertyNames"] = {"not": {"enum": _OF_TEMPLATES}}
    free = {"properties": {"tool_choice": {"properties": {"type": {"enum": ["auto", "none"]}}}}}
    some = {"properties": {"tools": {"type": "array", "contains": _having("input_schema")}}, "required": ["tools"]}
    schema["allOf"] = [{"anyOf": [free, some]}]


def _having(*names: str) -> dict[str, Any]:
    return {"required": list(names), "properties": dict.fromkeys(names, _NOT_NULL)}
