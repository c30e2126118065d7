"""The document of a server with --strict-requests: whatever it allows, the server does not refuse as unknown."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array
from collections.abc import Iterator, MutableMapping
from typing import Any

import msgspec
import pytest

from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request
from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.http.middleware import HttpApplication
from homenode.server.models.served_model import ModelParts
from tests.server.fakes import ScriptedClient, scripted
from tests.server.test_fill_in_middle import MiddleTokenizer

jsonschema = pytest.importorskip("jsonschema_rs")  # comes with schemathesis

WIDTH = 4
REFUSAL = b"it would be ignored, which --strict-requests forbids"
PLAIN: dict[str, tuple[Any, ...]] = {
    "string": ("zebra", ""),
    "integer": (1, 0, 10**6),
    "number": (1, 0),
    "boolean": (True, False),
    "null": (None,),
}
ANYTHING = ({"zebra": 1},)


def answered(request: Request) -> list[Output]:
    """A vector, or a message of one token."""
    if request.pools:
        return [Output(request.id, finish_reason="stop", pooled=array("f", [0.0] * WIDTH).tobytes())]
    return scripted(msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, max_tokens=1)))


def served(*, strict: bool, vectors: bool) -> ServerState:
    client = ScriptedClient(answered)
    pooling = PoolingReady("cls", WIDTH) if vectors else None
    client.ready = msgspec.structs.replace(client.ready, pooling=pooling, max_model_len=131072)
    config = ServerConfig(port=0, strict_requests=strict)
    return ServerState([ModelParts(client, MiddleTokenizer(), config)], config)


class Values:
    """Values of the schemas of a document, each of which differs from a plain one in one place."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]
        self._varied: set[tuple[str, str]] = set()  # schemas of which all fields were tried, within what

    def of(self, schema: dict[str, Any], above: tuple[str, ...] | None = ("",)) -> Iterator[Any]:
        """The plainest value first. Some are none of the schema, as few rules between fields are looked at. `above`:
        the schemas that this one is within, and at the end which kind the last of them is of; None: objects have no
        other fields than they must.
        """
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            kind = above[-1] if above else ""
            yield from self._objects(self._schemas[name], self._within(name, kind, above))
        elif "enum" in schema or "const" in schema:
            yield from schema.get("enum", [schema.get("const")])
        elif schema.get("type") == "object":
            yield from self._objects(schema, self._within(str(id(schema)), "", above))
        elif schema.get("type") == "array":
            first = [next(self.of(schema["items"], None))] if "contains" in schema else []
            yield from ([*first, value] for value in self.of(schema.get("items", {}), above))
            yield []
        elif "pattern" in schema:
            yield from ("zebra", "0", "5m")
        elif "anyOf" in schema:
            for kind in schema["anyOf"]:
                yield from self.of(kind, above)
        else:
            yield from PLAIN.get(schema.get("type", ""), ANYTHING)

    def _within(self, name: str, kind: str, above: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """`above` of what is within a schema; None if all of that was tried before in something of that kind."""
        if above is None or name in above or (name, kind) in self._varied:
            return None
        self._varied.add((name, kind))
        return (*above[:-1], name, "")

    def _objects(self, schema: dict[str, Any], above: tuple[str, ...] | None) -> Iterator[dict[str, Any]]:
        fields = schema.get("properties", {})
        plain = [value for wanted in self._ways(schema) for value in self._of_kinds(wanted)]
        yield from plain
        if above is None:
            return
        for number, one in enumerate(plain):
            kind = json.dumps([value for name, value in one.items() if "enum" in fields.get(name, {})])
            for name, field in fields.items():
                for at, value in enumerate(self.of(field, (*above[:-1], kind))):
                    if number == 0 or at == 0 or isinstance(value, dict | list):  # texts and numbers of the first alone
                        yield {**one, name: value}
            yield {**one, "zebra": 1}

    def _ways(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The fields that an object must have, in each of the ways that there are."""
        own, rules = schema.get("properties", {}), [schema, *schema.get("allOf", ())]
        always = {name: own.get(name, {}) for name in schema.get("required", ())}
        yield always
        for rule in rules:
            for option in (*rule.get("anyOf", ()), *rule.get("oneOf", ()), *([rule] if "if" in rule else [])):
                kinds, needs = option.get("if", option), option.get("then", option)
                if required := needs.get("required", ()):
                    said = kinds.get("properties", {}).items()
                    way = always | {name: own.get(name, {}) for name in required}
                    yield way | {name: kind for name, kind in said if "enum" in kind or "const" in kind}

    def _of_kinds(self, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An object with these fields, for each of the kinds that one of them may say it is of."""
        kinds = [field.get("enum") or [next(self.of(field, None))] for field in fields.values()]
        for chosen in itertools.product(*kinds):
            yield dict(zip(fields, chosen, strict=True))


async def ask(app: HttpApplication, path: str, body: bytes) -> bytes:
    """The body of an answer, without what a client for many servers takes to ask."""
    said: list[dict[str, Any]] = [{"type": "http.request", "body": body}]
    told: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if not said:
            await asyncio.Event().wait()  # whoever asks does not leave
        return said.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        told.append(message.get("body", b""))

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "headers": headers, "query_string": b""}
    await app({**scope, "state": {}}, receive, send)
    return b"".join(told)


def checked(document: dict[str, Any], path: str) -> tuple[dict[str, Any], Any] | None:
    """The schema of the JSON that is sent to a path, and what validates it; None where none is sent."""
    kinds = document["paths"][path].get("post", {}).get("requestBody", {}).get("content", {})
    if "application/json" not in kinds:
        return None
    schema = kinds["application/json"]["schema"]
    return schema, jsonschema.Draft202012Validator({**document, **schema})


def bodies(document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Bodies that a document allows, and their paths."""
    values = Values(document)
    for path in document["paths"]:
        if path == "/plan" or (found := checked(document, path)) is None:  # of a host's text no schema tells
            continue
        schema, validator = found
        tried = {json.dumps(value): value for value in values.of(schema)}
        yield from ((path, text.encode()) for text, value in tried.items() if validator.is_valid(value))


@pytest.mark.parametrize(("vectors", "fewest"), [(False, 2000), (True, 300)], ids=["texts", "vectors"])
def test_what_it_allows_is_not_refused_as_unknown(vectors: bool, fewest: int) -> None:
    async def refused() -> tuple[int, list[str]]:
        app = create_app(served(strict=True, vectors=vectors))
        asked = list(bodies(json.loads(await ask(app, "/openapi.json", b""))))
        answers = [(path, body, await ask(app, path, body)) for path, body in asked]
        return len(asked), [f"{path} {body!r}: {answer!r}" for path, body, answer in answers if REFUSAL in answer]

    number, wrong = asyncio.run(refused())
    assert not wrong, (len(wrong), wrong[:: len(wrong) // 8 + 1])
    assert number > fewest


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://host/a.png"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}
TOOL = {"type": "function", "function": {"name": "a"}}
SAID = {"role": "user", "content": "a"}
SEALED = {"type": "reasoning", "summary": [], "encrypted_content": "by another server"}
MODEL = {"model": "story-teller"}
LEFT_OUT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "zebra": 1}),
    ("/v1/chat/completions", {"messages": [SAID], "verbosity": "low"}),
    ("/v1/chat/completions", {"messages": [SAID, {"role": "tool", "content": [{"type": "image"}]}]}),
    ("/tokenize", {"messages": [SAID], "tools": [{"type": "web_search"}]}),
    ("/tokenize", {"messages": [SAID], "tools": [TOOL, TOOL]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": ""}]}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [RESULT]}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [SAID], "context_management": {"edits": [{"type": "zebra"}]}}),
    ("/v1/messages/count_tokens", {"messages": [SAID], "tools": [{"type": "web_search", "name": "a"}]}),
    ("/v1/responses", {"input": [SAID, {"type": "web_search_call"}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "text", "text": "a", "zebra": 1}]}]}),
    ("/v1/responses", {"input": [SAID, SEALED]}),
    ("/v1/responses", {"input": "a", "tools": [{"type": "namespace", "name": "a", "tools": [{"type": "zebra"}]}]}),
    ("/v1/responses", {"input": "a", "include": ["zebra"]}),
    ("/api/chat", {**MODEL, "messages": [SAID], "options": {"num_ctx": 2**30}}),
    ("/api/chat", {**MODEL, "keep_alive": "-0.0h"}),
    ("/api/generate", {**MODEL, "prompt": "a", "suffix": "b", "system": "c"}),
    ("/api/generate", {**MODEL, "prompt": "a", "options": {"num_gpu": 1}}),
]


def test_what_is_refused_as_unknown_is_in_the_document_of_others_alone() -> None:
    async def answers() -> tuple[list[dict[str, Any]], list[bytes]]:
        apps = [create_app(served(strict=strict, vectors=False)) for strict in (True, False)]
        documents = [json.loads(await ask(app, "/openapi.json", b"")) for app in apps]
        return documents, [await ask(apps[0], path, json.dumps(body).encode()) for path, body in LEFT_OUT]

    documents, told = asyncio.run(answers())
    for (path, body), answer in zip(LEFT_OUT, told, strict=True):
        assert REFUSAL in answer, (path, body, answer)
        found = [checked(document, path) for document in documents]
        assert [each is not None and each[1].is_valid(body) for each in found] == [False, True], (path, body)
