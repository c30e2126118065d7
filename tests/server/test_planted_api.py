"""A further API is one more folder over the generation core: it imports no other API, and the application serves it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.chat.offer import ToolOffer
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.server.app import APIS, create_app
from homenode.server.core.conversation import ConversationRequest, conversation_text
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.models.served_model import ModelParts
from tests.server import planted_api
from tests.server.fakes import ByteTokenizer, ScriptedClient, scripted


def ask(
    method: str, path: str, body: Any = None, client: ScriptedClient | None = None, keys: Sequence[str] = ()
) -> httpx.Response:
    """What the application answers that serves the planted API beside its own."""

    async def run() -> httpx.Response:
        config = ServerConfig(port=0, api_key=tuple(keys))
        state = ServerState([ModelParts(client or ScriptedClient(), ByteTokenizer(), config)], config)
        made = create_app(state, (*APIS, planted_api.API))
        transport = httpx.ASGITransport(made)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            return await asking.request(method, path, json=body)

    return asyncio.run(run())


def test_it_is_written_over_the_core_alone() -> None:
    source = Path(planted_api.__file__).read_text()
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    of_server = {module for module in imported if module and module.startswith("homenode.server.")}
    assert of_server and all(module.split(".")[2] in ("core", "http") for module in of_server)
    assert len(source.splitlines()) <= 100


def test_its_answer_comes_whole() -> None:
    answer = ask("POST", "/lines", {"start": "hi", "tokens": 4, "count": 2})
    completion = ask("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 4, "n": 2, "temperature": 0}).json()
    assert answer.status_code == 200 and answer.headers["x-request-id"]
    assert answer.json()["lines"] == [choice["text"] for choice in completion["choices"]]
    usage = completion["usage"]
    assert answer.json()["spent"] == [usage["prompt_tokens"], usage["completion_tokens"]]
    assert answer.json()["ends"] == ["length", "length"]


def test_its_answer_comes_as_events() -> None:
    whole = ask("POST", "/lines", {"start": "hi", "tokens": 4}).json()
    events = ask("POST", "/lines", {"start": "hi", "tokens": 4, "live": True})
    assert events.headers["content-type"].startswith("text/event-stream")
    kinds = [line.removeprefix("event: ") for line in events.text.splitlines() if line.startswith("event")]
    assert kinds == ["line", "text", "text", "text", "text", "spent"]
    data = [line.removeprefix("data: ") for line in events.text.splitlines() if line.startswith("data")]
    assert "".join(ast.literal_eval(piece)[1] for piece in data[1:-1]) == whole["lines"][0]


def test_its_stop_string_ends_a_line() -> None:
    whole = ask("POST", "/lines", {"start": "hi", "tokens": 8}).json()["lines"][0]
    answer = ask("POST", "/lines", {"start": "hi", "tokens": 8, "until": whole[3:5]}).json()
    assert (answer["lines"][0], answer["ends"]) == (whole[: whole.index(whole[3:5])], ["stop"])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"start": "hi", "rhyme": True}, 400, "the model does not rhyme"),
        ({"start": "hi", "tokens": 0}, 400, "`tokens`"),
        ({"start": "hi", "count": 99999}, 400, "99999 sequences"),
        ({"start": "x" * 5000}, 400, "`start` has"),
    ],
)
def test_what_is_wrong_is_told(body: dict[str, Any], status: int, text: str) -> None:
    answer = ask("POST", "/lines", body)
    assert answer.status_code == status and text in answer.json()["sorry"]


@pytest.mark.parametrize("live", [False, True])
def test_every_failure_is_told_in_its_words(live: bool) -> None:
    """Whatever it is of: the method, the key, the field, the engine that refuses before anything was streamed."""

    def refusing(request: Request) -> list[Output]:
        return [Output(request.id, finish_reason="error", error="no blocks", error_kind="CapacityError")]

    body = {"start": "hi", "live": live}
    for answer, status, said in (
        (ask("GET", "/lines"), 405, "Method Not Allowed"),
        (ask("POST", "/lines", {**body, "tokens": 0}), 400, "`tokens`"),
        (ask("POST", "/lines", body, ScriptedClient(refusing)), 400, "no blocks"),
        (ask("POST", "/lines", body, keys=["k"]), 401, "API key"),
    ):
        assert answer.status_code == status and said in answer.json()["sorry"]
    others = (ask("POST", "/v1/completions", {}), ask("GET", "/elsewhere"))
    assert all(set(answer.json()) == {"error"} for answer in others)


def test_a_failure_in_its_stream_is_told_in_its_words() -> None:
    def failing(request: Request) -> list[Output]:
        return [
            *scripted(request)[:1],
            Output(request.id, finish_reason="error", error="x", error_kind="WorkerLostError"),
        ]

    events = ask("POST", "/lines", {"start": "hi", "tokens": 4, "live": True}, ScriptedClient(failing)).text
    assert "event: text" in events and events.endswith('event: sorry\ndata: "x"\n\n')


def test_tools_reach_the_template_and_bring_no_control_tokens() -> None:
    seen: list[Any] = []

    class Offering(ByteTokenizer):
        def render_chat(
            self,
            /,
            messages: Sequence[Mapping[str, Any]],
            add_generation_prompt: bool = True,
            tools: Sequence[Mapping[str, Any]] | None = None,
            **values: Any,
        ) -> str:
            seen.append((tools, values))
            return f"{[tool['function']['name'] for tool in tools or ()]} {messages[0]['content']}"

        def template_source(self, with_tools: bool = False) -> str | None:
            return "{{ tools }}"

    config = ServerConfig(port=0)
    state = ServerState([ModelParts(ScriptedClient(), Offering(), config)], config)
    turns = [{"role": "user", "content": "hi"}]
    clock = {"type": "function", "function": {"name": "clock"}}
    asked = ConversationRequest(messages=turns, offer=ToolOffer(tools=[clock]))
    assert asyncio.run(conversation_text(state.models.first, asked)).text == "['clock'] hi" and seen == [([clock], {})]
    assert asyncio.run(conversation_text(state.models.first, ConversationRequest(messages=turns))).text == "[] hi"


def test_the_document_tells_of_it() -> None:
    document = ask("GET", "/openapi.json").json()
    refused = document["paths"]["/lines"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    assert refused["$ref"].endswith("/Sorry")
    assert "/lines" in document["paths"] and "LinesRequest" in document["components"]["schemas"]
    assert set(document["paths"]) > {"/v1/completions", "/v1/chat/completions"}
