"""/openapi.json, built from the structs that decode the requests, with the limits of the model that is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from homenode import __version__
from homenode.server.apis.openai import requests as openai
from homenode.server.apis.openai import responses
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ErrorBody
from homenode.server.openapi_transfer import tighten_transfer
from homenode.transfer.published import Published

_REFS = "#/components/schemas/{name}"
_FAILURES = {
    400: "The request is not valid; the body names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model or path.",
    405: "The path does not take this method.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    500: "A fault of the server.",
    503: "Full, draining, or without its engine; Retry-After says when to come again.",
}


@dataclass(frozen=True)
class Operation:
    """One entry of the document. `streams`: the type of the events, where the answer can be a stream. `may_be_list`: the answer can be a list of these as well."""

    path: str
    method: str
    summary: str
    answer: type | None
    body: type | None = None
    streams: type | None = None
    failures: tuple[int, ...] = (401, 405, 500)
    may_be_list: bool = False


_TO_BODIES = (400, 401, 404, 405, 408, 413, 415, 500, 503)

OPERATIONS = (
    Operation("/v1/models", "get", "The models served here.", responses.ModelList),
    Operation("/v1/models/{model}", "get", "One model.", responses.Model, failures=(401, 404, 405, 500)),
    Operation(
        "/v1/completions",
        "post",
        "Continue a prompt.",
        responses.TextCompletion,
        openai.CompletionRequest,
        responses.TextCompletion,
        _TO_BODIES,
    ),
    Operation(
        "/v1/chat/completions",
        "post",
        "Answer a conversation.",
        responses.ChatCompletion,
        openai.ChatRequest,
        responses.ChatChunk,
        _TO_BODIES,
    ),
    Operation(
        "/tokenize",
        "post",
        "Token ids of a text or a conversation.",
        responses.Tokenized,
        openai.TokenizeRequest,
        failures=_TO_BODIES,
    ),
    Operation(
        "/detokenize",
        "post",
        "Text of token ids.",
        responses.Detokenized,
        openai.DetokenizeRequest,
        failures=_TO_BODIES,
    ),
    Operation(
        "/kv_transfer",
        "get",
        "This server's part in handing KV over.",
        Published,
        failures=(401, 404, 405, 500, 503),
        may_be_list=True,
    ),
    Operation(
        "/kv_transfer/release",
        "post",
        "Give up a hand-over of KV.",
        responses.KvReleased,
        openai.ReleaseRequest,
        failures=_TO_BODIES,
    ),
    Operation("/tokenizer_info", "get", "Special tokens and chat template.", dict),
    Operation("/health", "get", "Whether the engine loop answers.", responses.Health, failures=(405, 500, 503)),
    Operation("/version", "get", "The version of the server.", responses.Version),
    Operation("/metrics", "get", "Metrics as Prometheus text.", None),
    Operation("/openapi.json", "get", "This document.", dict),
)


def document(state: ServerState) -> dict[str, Any]:
    """The OpenAPI 3.1 document of this server."""
    types = {
        t
        for operation in OPERATIONS
        for t in (operation.answer, operation.body, operation.streams)
        if t not in (None, dict)
    }
    named = sorted(types | {ErrorBody}, key=lambda t: t.__name__)
    _, components = msgspec.json.schema_components(named, ref_template=_REFS)
    _tighten(components, state)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, state)
    text: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "homenode",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if state.config.api_key:
        text["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return text


def _operation(operation: Operation, state: ServerState) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_"),
        "responses": {"200": {"description": "Success.", "content": _content(operation)}},
    }
    for status in operation.failures:
        if status != 401 or state.config.api_key:
            entry["responses"][str(status)] = {
                "description": _FAILURES[status],
                "content": _json(_ref(ErrorBody)),
            }
    if operation.body is not None:
        entry["requestBody"] = {"required": True, "content": _json(_ref(operation.body))}
    if "{model}" in operation.path:
        entry["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    if state.config.api_key and operation.path != "/health":
        entry["security"] = [{"key": []}]
    return entry


def _content(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    schema: dict[str, Any] = {"type": "object"} if operation.answer is dict else _ref(operation.answer)
    content = _json({"anyOf": [schema, {"type": "array", "items": schema}]} if operation.may_be_list else schema)
    if operation.streams is not None:
        text = f"JSON of {_ref(operation.streams)['$ref']}; after the last one the text [DONE]"
        data = {"type": "string", "description": text}
        content["text/event-stream"] = {
            "schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}
        }
    return content


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(struct: type) -> dict[str, Any]:
    return {"$ref": _REFS.format(name=struct.__name__)}


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    """Adds what the types cannot say: the limits of this model, and fields that depend on each other."""
    token = {"type": "integer", "minimum": 0, "maximum": state.ready.vocab_size - 1}
    names = {"anyOf": [{"enum": list(state.models)}, {"type": "null"}], "default": None}
    requests = [
        components[t.__name__]
        for t in (
            openai.CompletionRequest,
            openai.ChatRequest,
            openai.TokenizeRequest,
            openai.DetokenizeRequest,
        )
    ]
    for request in requests:
        request["properties"]["model"] = names
    completion, chat, tokenize, detokenize = requests
    begins = bool(state.tokenizer.encode(""))  # an empty text has a token: the one that begins a text
    completion["properties"]["prompt"] = _prompt(state, 0 if begins else 1)
    if begins:
        added = {"properties": {"add_special_tokens": {"enum": [True, None]}}}
        completion.setdefault("allOf", []).append({"anyOf": [added, {"properties": {"prompt": _prompt(state, 1)}}]})
    detokenize["properties"]["tokens"]["items"] = token
    for request in (completion, chat):
        _first(request, "logit_bias")["propertyNames"] = {"pattern": _below(state.ready.vocab_size)}
        _first(request, "stop_token_ids")["items"] = token
    for request in (chat, tokenize):
        own = ["messages", "tools", "add_generation_prompt", "continue_final_message"]
        _first(request, "chat_template_kwargs")["propertyNames"] = {"not": {"enum": own}}
        _either(
            request,
            "continue_final_message",
            {"not": {"properties": {"add_generation_prompt": {"const": True}}, "required": ["add_generation_prompt"]}},
        )
    chat.setdefault("allOf", []).append(
        {
            "anyOf": [
                {"properties": {"top_logprobs": {"type": "null"}}},
                {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]},
            ]
        }
    )
    tighten_transfer(components, state)
    tokenize["oneOf"] = [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
        {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}},
    ]


def _prompt(state: ServerState, shortest: int) -> dict[str, Any]:
    """The four forms of a prompt; `shortest`: characters a text must have."""
    token = {"type": "integer", "minimum": 0, "maximum": state.ready.vocab_size - 1}
    text = {"type": "string", "minLength": shortest}
    ids = {"type": "array", "items": token, "minItems": 1, "maxItems": state.ready.max_model_len - 1}
    most = state.config.max_sequences_per_request
    return {
        "anyOf": [
            text,
            ids,
            *({"type": "array", "items": each, "minItems": 1, "maxItems": most} for each in (text, ids)),
        ]
    }


def _first(request: dict[str, Any], field: str) -> dict[str, Any]:
    """The schema of an optional field without its null."""
    schema: dict[str, Any] = request["properties"][field]["anyOf"][0]
    return schema


def _either(request: dict[str, Any], field: str, needs: dict[str, Any]) -> None:
    """`field` is not true, or `needs` holds."""
    off = {"properties": {field: {"enum": [False, None]}}}
    request.setdefault("allOf", []).append({"anyOf": [off, needs]})


def _below(limit: int) -> str:
    """A pattern for the decimal numbers from 0 to `limit` - 1, written without leading zeros."""
    largest = str(limit - 1)
    parts = ["0"] + [f"[1-9][0-9]{{{digits - 1}}}" for digits in range(1, len(largest))]
    for place, digit in enumerate(largest):
        low = 1 if place == 0 else 0
        if int(digit) > low:
            parts.append(f"{largest[:place]}[{low}-{int(digit) - 1}][0-9]{{{len(largest) - place - 1}}}")
    return "^(" + "|".join([*parts, largest]) + ")$"
