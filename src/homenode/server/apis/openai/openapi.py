"""Parts that the types of the OpenAI API cannot say of the served model in the OpenAPI document: limits, and fields
that depend on each other.
"""

from __future__ import annotations

from typing import Any, get_args

from homenode.server.apis.openai.chat_messages import PartType, ResultPart, SaidPart
from homenode.server.apis.openai.requests import NEUTRAL
from homenode.server.apis.openai.tools import TOOL_TYPES, ToolDefinition
from homenode.server.core.generation_fields import KEPT_VERBOSITY
from homenode.server.core.media.content import read_types
from homenode.server.core.setting_fields import SAMPLER_LETTERS, SAMPLER_NAMES
from homenode.server.core.state import ServerState

# A tool has a function or is a custom one, unless it is of a type that is left out.
GIVEN_TOOL: dict[str, Any] = {
    "anyOf": [
        {"properties": {"type": {"const": "custom"}, "custom": {"type": "object"}}, "required": ["type", "custom"]},
        {
            "properties": {"type": {"not": {"const": "custom"}}, "function": {"type": "object"}},
            "required": ["function"],
        },
        {"properties": {"type": {"not": {"const": "custom"}}, "name": {"type": "string"}}, "required": ["name"]},
        {"properties": {"type": {"not": {"enum": ["function", "custom"]}}}, "required": ["type"]},
    ],
}
HISTORY_CALL: list[dict[str, Any]] = [
    {"properties": {kind: {"type": "object"}}, "required": [kind]} for kind in ("function", "custom")
]
_SINGLE: dict[str, Any] = {"properties": {"n": {"enum": [1, None]}, "stream": {"enum": [False, None]}}}


def tighten_sampling(schema: dict[str, Any], state: ServerState) -> None:
    """The names of the model, the range of its token ids, and the names of samplers."""
    tighten_model(schema, state)
    tighten_unbuilt(schema)
    _first(schema, "logit_bias")["propertyNames"] = {"pattern": below_pattern(state.limits.vocab_size)}
    _first(schema, "stop_token_ids")["items"] = token_schema(state)
    names = {"type": "array", "items": {"enum": list(SAMPLER_NAMES)}, "maxItems": 32}
    letters = {"type": "string", "pattern": f"^[{SAMPLER_LETTERS}]*$", "maxLength": 32}
    schema["properties"]["samplers"] = {"anyOf": [names, letters, {"type": "null"}], "default": None}


def tighten_unbuilt(schema: dict[str, Any]) -> None:
    """The values of fields that ask for nothing here."""
    for name, neutral in NEUTRAL.items():
        schema["properties"][name] = {"enum": [neutral, None], "default": None}


def tighten_tools(schema: dict[str, Any]) -> None:
    """Say that what can be chosen depends on what is offered, under one of the two names."""
    few: dict[str, Any] = {"enum": ["none", "auto", None], "default": None}
    schema["properties"]["tool_choice"] = {
        **few,
        "description": 'Or "required", or an object that names one of the tools, where `tools` has one to call: '
        '{"type": "function", "function": {"name": NAME}}.',
    }
    schema["properties"]["function_call"] = {
        **few,
        "description": 'Or an object that names one of the functions: {"name": NAME}.',
    }
    none = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}
    schema.setdefault("allOf", []).extend(
        ({"anyOf": [{"properties": {"functions": none}}, {"properties": {"tools": none}}]},)
    )


def tighten_model(schema: dict[str, Any], state: ServerState) -> None:
    """The names that models answer to."""
    schema["properties"]["model"] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}


def tighten_template(schema: dict[str, Any]) -> None:
    """Say what a request with messages may not give to the chat template, and which of its switches exclude
    each other.
    """
    own = ["messages", "tools", "add_generation_prompt", "continue_final_message"]
    _first(schema, "chat_template_kwargs")["propertyNames"] = {"not": {"enum": own}}
    _either(
        schema,
        "continue_final_message",
        {"not": {"properties": {"add_generation_prompt": {"const": True}}, "required": ["add_generation_prompt"]}},
    )


def tighten_messages(components: dict[str, Any]) -> None:
    """Say that what somebody says is text, as the served model takes nothing else."""
    part = components[SaidPart.__name__]
    part["properties"] = {"type": {"enum": ["text", "input_text", "output_text"]}, "text": {"type": "string"}}
    part["required"] = ["type", "text"]


def tighten_known(components: dict[str, Any], schema: dict[str, Any], state: ServerState) -> None:
    """Say what of a conversation is not left out, as --strict-requests refuses what would be. `schema`: of a request
    for an answer to one.
    """
    components[ToolDefinition.__name__]["properties"]["type"] = {"enum": list(TOOL_TYPES), "default": "function"}
    components[ResultPart.__name__]["properties"]["type"] = {"enum": read_types(get_args(PartType), state.limits.taken)}
    schema["properties"]["verbosity"] = {"enum": list(KEPT_VERBOSITY), "default": None}
    tighten_names(schema, "tools", "functions")


def tighten_names(schema: dict[str, Any], *fields: str) -> None:
    """Say that none of the tools in these fields is there twice, as the second of a name is left out. Of unlike ones
    with one name no schema can say it.
    """
    for field in fields:
        _first(schema, field).update({"uniqueItems": True, "description": "Each has a name of its own."})


def tighten_kv_transfer(schema: dict[str, Any], state: ServerState, *own: dict[str, Any]) -> None:
    """Say what a request must be where its KV is handed over. `own`: what it must be besides, at a sender or a
    receiver.
    """
    role = state.limits.kv_role
    flag = {"sender": "do_remote_decode", "receiver": "do_remote_prefill"}.get(role or "")
    wanted = [*own, *([_SINGLE] if role == "sender" else [])]
    if flag is None or not wanted:
        return
    off = {"properties": {flag: {"enum": [False, None]}}}
    asked = {"properties": {"kv_transfer_params": {"anyOf": [{"type": "null"}, off]}}}
    schema.setdefault("allOf", []).append({"anyOf": [asked, {"allOf": wanted}]})


def token_schema(state: ServerState) -> dict[str, Any]:
    """The schema of a token id."""
    return {"type": "integer", "minimum": 0, "maximum": state.limits.vocab_size - 1}


def prompt_schema(state: ServerState, shortest: int) -> dict[str, Any]:
    """The four forms of a prompt; `shortest`: characters a text must have."""
    text = {"type": "string", "minLength": shortest}
    ids = {"type": "array", "items": token_schema(state), "minItems": 1, "maxItems": state.limits.max_model_len - 1}
    most = state.limits.most_sequences
    return {
        "anyOf": [
            text,
            ids,
            *({"type": "array", "items": each, "minItems": 1, "maxItems": most} for each in (text, ids)),
        ]
    }


def one_prompt() -> dict[str, Any]:
    """A text, token ids, or a list with one of either."""
    forms = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"type": "array", "maxItems": 1}]
    return {"properties": {"prompt": {"anyOf": forms}}}


def below_pattern(limit: int) -> str:
    """A pattern for the decimal numbers from 0 to `limit` - 1, written without leading zeros."""
    largest = str(limit - 1)
    parts = ["0"] + [f"[1-9][0-9]{{{digits - 1}}}" for digits in range(1, len(largest))]
    for place, digit in enumerate(largest):
        low = 1 if place == 0 else 0
        if int(digit) > low:
            parts.append(f"{largest[:place]}[{low}-{int(digit) - 1}][0-9]{{{len(largest) - place - 1}}}")
    return "^(" + "|".join([*parts, largest]) + ")$"


def _first(request: dict[str, Any], field: str) -> dict[str, Any]:
    """The schema of an optional field without its null."""
    schema: dict[str, Any] = request["properties"][field]["anyOf"][0]
    return schema


def _either(request: dict[str, Any], field: str, needs: dict[str, Any]) -> None:
    """`field` is not true, or `needs` holds."""
    off = {"properties": {field: {"enum": [False, None]}}}
    request.setdefault("allOf", []).append({"anyOf": [off, needs]})
