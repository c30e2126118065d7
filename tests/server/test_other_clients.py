"""The official clients of Anthropic and of Ollama, where they are installed: what they send is taken, what they get they
can read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from homenode.engine.messages import EngineReady
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient
from tests.server.written_answers import CALL, CALLS, LOOK, THINKS, SignedTokenizer, written

SAID = f"<think>Hm, 猫?</think>\n\nLet me look.\n{CALL}"
TOOL = {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}
HELLO = [{"role": "user", "content": "hi"}]
Serve = Callable[[str], Running]


@pytest.fixture
def serve(start: Start) -> Serve:
    """A server whose model writes a text."""

    def begin(text: str) -> Running:
        client = ScriptedClient(lambda request: written(request, text.encode(), [3]))
        client.ready = EngineReady("/models/story-teller", 65536, 258, 100, 32, 2048, 128, True)
        return start(client, SignedTokenizer(THINKS + CALLS))

    return begin


def test_anthropic(serve: Serve) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=serve(SAID).url, api_key="x", max_retries=0, timeout=20)
    asked: dict[str, Any] = {"model": "story-teller", "max_tokens": 400, "messages": HELLO, "tools": [TOOL]}
    answer = client.messages.create(**asked)
    thoughts, text, call = answer.content
    assert (thoughts.thinking, text.text, call.input) == ("Hm, 猫?", "Let me look.", {"place": "wörld 🦊"})
    assert thoughts.signature and answer.stop_reason == "tool_use"
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == "Let me look."
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert (final.content[0], final.content[2].input) == (thoughts, call.input)
    assert final.usage == answer.usage
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "snow"}
    past = [*HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**asked | {"messages": past}).content
    count = client.messages.count_tokens(model="story-teller", messages=HELLO, tools=[TOOL]).input_tokens
    assert count == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    assert [model.id for model in client.models.list()] == ["story-teller"]
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**asked | {"model": "nobody"})
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_ollama(serve: Serve) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=serve(SAID).url)
    assert client.list().models[0].model == "story-teller:latest" and client.ps().models[0].context_length == 65536
    shown = client.show("story-teller")
    assert shown.template and "thinking" in shown.capabilities
    tools = [{"type": "function", "function": LOOK}]
    said = client.chat("story-teller", HELLO, tools=tools, think=True).message
    assert (said.thinking, said.content) == ("Hm, 猫?", "Let me look.")
    assert said.tool_calls[0].function.arguments == {"place": "wörld 🦊"}
    parts = list(client.chat("story-teller", HELLO, tools=tools, stream=True))
    assert "".join(part.message.content for part in parts) == "Let me look."
    assert "".join(part.message.thinking or "" for part in parts) == "Hm, 猫?"
    assert [call for part in parts for call in part.message.tool_calls or ()] == said.tool_calls
    past = [*HELLO, said, {"role": "tool", "tool_name": "look", "content": "snow"}]
    assert client.chat("story-teller", past, options={"temperature": 0, "num_predict": 3}).done_reason == "length"
    generated = client.generate("story-teller", "hi")
    assert generated.thinking == "Hm, 猫?" and generated.eval_count > 0
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("nobody", HELLO)
    assert caught.value.status_code == 404 and "not found" in caught.value.error
