"""Parts that the types of the Messages API cannot say in the OpenAPI document: the names of the model, and fields that
depend on each other.
"""

from __future__ import annotations

from typing import Any

from homenode.server.apis.anthropic.blocks import NEEDED_FIELDS, MessagesBlock
from homenode.server.apis.anthropic.request import (
    MessagesCountRequest,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
)
from homenode.server.core.state import ServerState

_NOT_NULL: dict[str, Any] = {"not": {"type": "null"}}
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


def _tighten_request(schema: dict[str, Any], state: ServerState) -> None:
    fields = schema["properties"]
    fields["model"] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}
    fields["chat_template_kwargs"]["anyOf"][0]["propertyNames"] = {"not": {"enum": _OF_TEMPLATES}}
    free = {"properties": {"tool_choice": {"properties": {"type": {"enum": ["auto", "none"]}}}}}
    some = {"properties": {"tools": {"type": "array", "contains": _having("input_schema")}}, "required": ["tools"]}
    schema["allOf"] = [{"anyOf": [free, some]}]


def _having(*names: str) -> dict[str, Any]:
    return {"required": list(names), "properties": dict.fromkeys(names, _NOT_NULL)}
