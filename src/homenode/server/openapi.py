"""/openapi.json, built from the structs that decode the requests, with the limits of the models that are served."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.middleware import OPEN_PATHS
from homenode.server.http.sse import LINES

_STRANGE = re.compile(r"[^A-Za-z0-9]+")  # in a path
_REFS = "#/components/schemas/{name}"
_Refs: TypeAlias = Mapping[type, dict[str, Any]]  # of each struct, {"$ref": where the document has its schema}
_IN_PATH = re.compile(r"\{(\w+)\}")
_FAILURES = {
    400: "The request is not valid; the body names the field.",
    401: "The API key is missing or wrong.",
    403: "This is not done here.",
    404: "There is no such model or path.",
    405: "The path does not take this method.",
    408: "The body did not arrive in time.",
    409: "It is no longer, or not yet, in the state that this needs.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    429: "The key has used what it may use in a minute; Retry-After says when to come again.",
    500: "A fault of the server.",
    503: "Full, draining, or without its engine; Retry-After says when to come again.",
}


def with_document(state: ServerState, apis: Sequence[Api]) -> tuple[Api, ...]:
    """The APIs, and one more, which serves the document of all of them at /openapi.json. The first who asks for it has
    it made: that takes some ten milliseconds, which no start and no other request waits for.
    """
    made: list[bytes] = []

    async def openapi_json(state: ServerState, request: Request) -> Response:
        if state.models.changes:
            made.clear()
        if not made:
            made.append(await state.text_work.run(lambda: msgspec.json.encode(document(state, served))))
        return Response(made[0], media_type="application/json")

    own = Operation(path="/openapi.json", method="get", summary="This document.", handler=openapi_json, answer=dict)
    served = (*apis, Api(operations=(own,)))
    return served


def document(state: ServerState, apis: Sequence[Api]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server with these APIs."""
    operations = [operation for api in apis for operation in api.operations]
    types = {
        t
        for operation in operations
        for t in (operation.answer, operation.body, *operation.stream_types)
        if t not in (None, dict)
    }
    named = sorted(types | {api.error_body for api in apis}, key=lambda t: t.__name__)
    found, components = msgspec.json.schema_components(named, ref_template=_REFS)
    refs: _Refs = dict(zip(named, found, strict=True))
    for schema in components.values():
        if not state.config.strict_requests:
            schema.pop("additionalProperties", None)  # unknown fields are ignored
        if "description" in schema:  # a docstring, indented as in its source
            schema["description"] = cleandoc(schema["description"])
    for api in apis:
        api.tighten(components, state)
    paths: dict[str, Any] = {}
    for api in apis:
        for operation in filter(lambda one: _documented(one, state), api.operations):
            paths.setdefault(operation.path, {})[operation.method] = _operation(operation, api.error_body, refs, state)
    for methods in paths.values():
        for method, entry in methods.items():
            if len(methods) > 1:  # each has a name of its own
                entry["operationId"] += f"_{method}"
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
    if state.config.root_path:
        text["servers"] = [{"url": state.config.root_path}]
    if state.config.asks_keys:
        require_key(text)
    return text


def require_key(document: dict[str, Any]) -> None:
    """Say of a document that all but probes take an API key."""
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values() if path not in OPEN_PATHS else ():
            operation["security"] = [{"key": []}]


def _documented(operation: Operation, state: ServerState) -> bool:
    """Return whether any model can do it, as far as that is known."""
    return state.models.changes or any(map(operation.documented, state.models))


def _operation(operation: Operation, error_body: type, refs: _Refs, state: ServerState) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _STRANGE.sub("_", operation.path.strip("/")).strip("_") or "root",
        "responses": {"200": {"description": "Success.", "content": _content(operation, refs)}},
    }
    for status in operation.failures:
        if (status != 401 or state.config.asks_keys) and (status != 429 or state.config.api_key_file):
            entry["responses"][str(status)] = {
                "description": _FAILURES[status],
                "content": _json(refs[error_body]),
            }
    if operation.body is not None:
        entry["requestBody"] = {"required": True, "content": _json(refs[operation.body])}
    if operation.form is not None:
        fields = {"type": "object", "properties": operation.form, "required": list(operation.form)}
        entry["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": fields}}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _IN_PATH.findall(operation.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    if parameters:
        entry["parameters"] = parameters
    return entry


def _content(operation: Operation, refs: _Refs) -> dict[str, Any]:
    if operation.answer is None:
        return {operation.media_type: {"schema": {"type": "string"}}}
    schema: dict[str, Any] = {"type": "object"} if operation.answer is dict else refs[operation.answer]
    content = _json({"anyOf": [schema, {"type": "array", "items": schema}]} if operation.may_be_list else schema)
    if operation.stream_types:
        content |= _stream_content(operation, refs)
    return content


def _stream_content(operation: Operation, refs: _Refs) -> dict[str, Any]:
    """Return what a stream is, by its content type."""
    kinds = " or ".join(refs[kind]["$ref"] for kind in operation.stream_types)
    if operation.stream_form is LINES:
        text = {"type": "string", "description": f"JSON of {kinds} on each line"}
        return {"application/x-ndjson": {"schema": text}}
    end = "" if isinstance(operation.streams, tuple) else "; after the last one the text [DONE]"
    data = {"type": "string", "description": f"JSON of {kinds}{end}"}
    return {"text/event-stream": {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
