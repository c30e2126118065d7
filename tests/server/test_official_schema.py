"""Our answers against the response schemas of the official API description."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.paths import DATA, needs_data
from tests.server.conftest import Running
from tests.server.test_completions import events
from tests.server.test_responses import EDIT, NOTES, PATH, TOOL, Service, called
from tests.server.test_responses import events as stream_events
from tests.server.written_answers import CALL, CALLS, THINKS

jsonschema = pytest.importorskip("jsonschema_rs")  # comes with schemathesis, as yaml does
yaml = pytest.importorskip("yaml")

pytestmark = needs_data


@pytest.fixture(scope="module")
def official() -> Callable[[str], Any]:
    """The validator of a schema by its name, each made once."""
    text = (DATA / "openai-spec" / "openapi.yaml").read_text()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    schemas = yaml.load(text, Loader=loader)["components"]["schemas"]  # a safe loader either way
    document = {"components": {"schemas": with_nulls(json.loads(json.dumps(schemas, default=str)))}}
    return cache(lambda name: jsonschema.Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"}))


def with_nulls(schema: Any) -> Any:
    """OpenAPI 3.0 writes `nullable: true` where JSON Schema has a type of null."""
    if isinstance(schema, list):
        return [with_nulls(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: with_nulls(value) for key, value in schema.items() if key != "discriminator"}
    return {"anyOf": [inner, {"type": "null"}]} if inner.pop("nullable", False) is True else inner


def check(official: Callable[[str], Any], name: str, answer: Any) -> None:
    official(name).validate(answer)


def test_the_check_can_fail(official: Callable[[str], Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(
            official, "CreateCompletionResponse", {"id": "x", "object": "text_completion", "created": 1, "model": "m"}
        )


def test_completions(official: Callable[[str], Any], server: Running) -> None:
    check(official, "CreateCompletionResponse", server.complete(n=2).json())
    check(official, "CreateCompletionResponse", server.complete(logprobs=2, stop="wör", max_tokens=60).json())


def test_chats(official: Callable[[str], Any], server: Running) -> None:
    check(official, "CreateChatCompletionResponse", server.chat(n=2, max_tokens=3).json())
    check(official, "CreateChatCompletionResponse", server.chat(max_tokens=3, logprobs=True, top_logprobs=3).json())
    for chunk in events(server.chat(max_tokens=3, stream=True, logprobs=True, stream_options={"include_usage": True})):
        check(official, "CreateChatCompletionStreamResponse", chunk)


def test_models_and_errors(official: Callable[[str], Any], server: Running) -> None:
    check(official, "ListModelsResponse", server.http.get("/v1/models").json())
    check(official, "Model", server.http.get("/v1/models/story-teller").json())
    check(official, "ErrorResponse", json.loads(server.complete(n=0).text))


def test_responses(official: Callable[[str], Any]) -> None:
    """Items of every kind, whole and streamed, and what is kept of them."""
    texts = (
        "plain 🦊",
        f"<think>Hm.</think>yes\n{CALL}",
        called("edit", {"input": "a"}),
        called("mcp__notes__look", {}),
    )
    for text in texts:
        for summary in (None, "auto"):
            service = Service(text, THINKS + CALLS, 3)
            asked = {"input": "hi", "tools": [TOOL, EDIT, NOTES], "reasoning": {"summary": summary, "effort": "low"}}
            asked |= {"include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}, "text": {"verbosity": "low"}}
            whole = service.respond(**asked)
            check(official, "Response", whole)
            check(official, "Response", service.get(whole["id"]).json())
            check(official, "ResponseItemList", service.get(whole["id"], "/input_items").json())
            for event in stream_events(service.ask(PATH, {**asked, "stream": True})):
                check(official, "ResponseStreamEvent", event)
    check(official, "Response", Service("too long").respond(max_output_tokens=2))
