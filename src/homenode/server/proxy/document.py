"""/openapi.json of the proxy: the document of a decode server, with what differs here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from homenode.server.http.endpoint import json_response
from homenode.server.http.failures import ApiError
from homenode.server.openapi import require_key
from homenode.server.proxy.health import ProxyHealth
from homenode.server.proxy.overview import ProxyOverview
from homenode.server.proxy.passed_requests import passed
from homenode.server.proxy.state import ProxyState

_OWN = {"/health": ProxyHealth, "/overview": ProxyOverview}  # answers that are not those of a server
_READY = frozenset({"/health", "/readyz", "/ping"})
_PREFIX = "proxy."  # of their schemas, which may have the names of a server's
_REFS = f"#/components/schemas/{_PREFIX}{{name}}"
_BY_THE_PROXY = "kv_transfer_params"  # a field of bodies that no client sets here
_FAILURES = {
    "401": "The API key is missing or wrong.",
    "502": "A server's answer was lost or cannot be read.",
    "503": "No server is usable; Retry-After says when to come again.",
    "504": "A server did not answer in time.",
}


class ProxyDocument:
    """Makes the document of a proxy when somebody asks. `own`: what it answers itself; `passed`: what servers answer.
    `forwarded`: paths of those, whose requests are handed over between servers.
    """

    def __init__(self, own: Sequence[Route], passed: Sequence[Route], forwarded: Collection[str]) -> None:
        self._own, self._passed, self._forwarded = own, passed, forwarded

    async def answer(self, state: ProxyState, request: Request) -> Response:
        """The answer to one who asks. Raises ApiError 502 where the decode server's is none."""
        response = await passed(state, request)
        if response.status_code != 200:
            return response
        try:
            told = msgspec.json.decode(response.body, type=dict[str, Any])
            document = self._of_proxy(told)
            _set_keys(document, asked=state.keys.asked, has_own=state.config.upstream_api_key is not None)
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
            raise ApiError(502, "the decode server's answer is no OpenAPI document", code="decoder_failed") from None
        document.pop("servers", None)
        if root := state.config.root_path:
            document["servers"] = [{"url": root}]
        return json_response(document)

    def _of_proxy(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document of a decode server, changed in place."""
        schemas: dict[str, Any] = document["components"]["schemas"]
        refs, own = msgspec.json.schema_components(_OWN.values(), ref_template=_REFS)
        answers = dict(zip(_OWN, refs, strict=True))
        schemas |= {_PREFIX + name: schema for name, schema in own.items()}
        paths, passed_on = {}, _operations(self._passed)
        here = passed_on | _operations(self._own)
        for path, operations in document["paths"].items():
            paths[path] = {method: each for method, each in operations.items() if (method, path) in here}
            for method, operation in paths[path].items():
                if (method, path) in passed_on:
                    _set_failures(operation)
                else:
                    operation.pop("security", None)
                if path in answers:
                    _set_answer(operation, answers[path])
                if path in _READY:
                    _set_not_ready(operation, answers["/health"])
                if path in self._forwarded:
                    _set_no_params(operation, schemas)
        document["paths"] = {path: operations for path, operations in paths.items() if operations}
        return document


def _operations(routes: Sequence[Route]) -> set[tuple[str, str]]:
    """The methods and paths of routes, as a document has them."""
    return {(method.lower(), route.path.replace(":path}", "}")) for route in routes for method in route.methods or ()}


def _set_keys(document: dict[str, Any], *, asked: bool, has_own: bool) -> None:
    """Say which requests take a key. `asked`: the proxy asks for one; `has_own`: it has one for the servers. With
    neither whoever asks what is passed on brings the servers' own.
    """
    if asked or has_own:
        document["components"].pop("securitySchemes", None)
        for operation in (each for operations in document["paths"].values() for each in operations.values()):
            operation.pop("security", None)
            operation["responses"].pop("401", None)
    if asked:
        require_key(document)
        for operation in (each for operations in document["paths"].values() for each in operations.values()):
            if "security" in operation:
                _add_failure(operation, "401")


def _set_answer(operation: dict[str, Any], ref: Mapping[str, Any]) -> None:
    """Describe an answer of the proxy's own."""
    operation.pop("parameters", None)
    operation["responses"]["200"]["content"] = {"application/json": {"schema": ref}}


def _set_not_ready(operation: dict[str, Any], health: Mapping[str, Any]) -> None:
    """Say that one who asks while no request would be taken gets what /health tells."""
    content = {"application/json": {"schema": health}}
    operation["responses"]["503"] = {"description": _FAILURES["503"], "content": content}


def _set_failures(operation: dict[str, Any]) -> None:
    """Add how passing on can fail."""
    for status in ("502", "503", "504"):
        _add_failure(operation, status)


def _add_failure(operation: dict[str, Any], status: str) -> None:
    responses = operation["responses"]
    if failure := responses.get("500"):
        responses[status] = {**failure, "description": _FAILURES[status]}


def _set_no_params(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> None:
    """Say that no client sets the field that the proxy sets."""
    for schema in _bodies(operation, schemas):
        if _BY_THE_PROXY in (fields := schema.get("properties", {})):
            fields[_BY_THE_PROXY] = {"type": "null"}


def _bodies(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of what an operation takes."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        if name in schemas:
            yield schemas[name]
