"""The official `openai` client against the Responses API: what it sends is taken, what it gets it can read."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from homenode.engine.messages import Output
from homenode.engine.request import Request
from tests.server.conftest import Start
from tests.server.fakes import STORY, ScriptedClient
from tests.server.written_answers import CALLS, LOOK, THINKS, SignedTokenizer, written

ANSWER = (
    '<think>Hm, 猫?</think>Let me look. 🦊\n<tool_call>\n{"name": "look", "arguments": {"place": "שלום"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def client(start: Start) -> Iterator[openai.OpenAI]:
    """Over a model that tells a story."""
    with openai.OpenAI(base_url=f"{start().url}/v1", api_key="x", max_retries=0, timeout=20) as official:
        yield official


@pytest.fixture(scope="module")
def calling(start: Start) -> Iterator[openai.OpenAI]:
    """Over a model that thinks, speaks and calls."""

    def script(request: Request) -> list[Output]:
        return written(request, ANSWER.encode(), [3])

    scripted = ScriptedClient(script)
    scripted.ready = type(scripted.ready)("/models/story-teller", 65536, 258, 100, 32, 2048, 128, True)
    server = start(scripted, SignedTokenizer(THINKS + CALLS))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=20) as official:
        yield official


def test_a_conversation_is_kept_looked_at_and_removed(client: openai.OpenAI) -> None:
    first = client.responses.create(model="story-teller", input="hi", max_output_tokens=5, metadata={"a": "b"})
    assert first.output_text == STORY[:5] and first.status == "incomplete" and first.metadata == {"a": "b"}
    assert first.incomplete_details is not None and first.incomplete_details.reason == "max_output_tokens"
    assert first.usage is not None and first.usage.input_tokens_details.cached_tokens == 3
    second = client.responses.create(
        model="story-teller", previous_response_id=first.id, input="go on", max_output_tokens=3
    )
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message"] * 3  # the client asks for further pages by itself
    assert (
        client.responses.input_tokens.count(model="story-teller", input="hi").input_tokens == first.usage.input_tokens
    )
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(second.id)


def test_its_own_stream_object_gathers_all_items(calling: openai.OpenAI) -> None:
    tools = [{"type": "function", **LOOK, "strict": False}]
    asked = {"model": "story-teller", "input": "hi", "tools": tools, "reasoning": {"summary": "auto"}}
    whole = calling.responses.create(**asked)
    with calling.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert [item.type for item in whole.output] == [item.type for item in final.output]
    assert whole.output_text == final.output_text == "Let me look. 🦊"
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    arguments = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert arguments and arguments[-1].snapshot == final.output[-1].arguments == '{"place": "שלום"}'
    thoughts = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(thoughts) == final.output[0].summary[0].text == "Hm, 猫?"


def test_its_items_are_taken_back(calling: openai.OpenAI) -> None:
    tools = [{"type": "function", **LOOK, "strict": None}]
    asked = {"model": "story-teller", "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    first = calling.responses.create(input="hi", **asked)
    call = first.output[-1]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
    again = calling.responses.create(input=[{"role": "user", "content": "hi"}, *first.output, result], **asked)
    assert again.usage is not None and first.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens + len("Hm, 猫?Let me look.seen")


def test_a_stream_that_fails_says_so(start: Start) -> None:
    def failing(request: Request) -> list[Output]:
        lost = Output(request.id, finish_reason="error", error="the worker is gone", error_kind="WorkerLostError")
        return [*written(request, b"one two", [3])[:1], lost]

    server = start(ScriptedClient(failing))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=20) as official:
        events = list(official.responses.create(model="story-teller", input="hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error is not None and last.response.error.message == "the worker is gone"


def test_errors_are_its_classes(client: openai.OpenAI) -> None:
    for wrong, error in (
        ({"model": "nobody"}, openai.NotFoundError),
        ({"temperature": -3}, openai.BadRequestError),
        ({"input": "x" * 9999}, openai.BadRequestError),
    ):
        with pytest.raises(error) as raised:
            client.responses.create(**{"model": "story-teller", "input": "hi", **wrong})
        assert isinstance(raised.value.body, dict) and raised.value.body["message"]
