"""The Responses API: what items become, what comes back, and what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest

from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.models.served_model import ModelParts
from tests.server.fakes import ByteTokenizer, ScriptedClient
from tests.server.written_answers import CALL, CALLS, LOOK, THINKS, Writer

PATH = "/v1/responses"
TOOL = {"type": "function", **LOOK}
EDIT = {"type": "custom", "name": "edit", "description": "Takes a text."}
NOTES = {"type": "namespace", "name": "mcp__notes", "description": "Notes.", "tools": [TOOL]}
ARGUMENTS = {"place": "wörld 🦊"}
SHOWS_ALL = (
    """{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ message.reasoning_content }}
{% for call in message.tool_calls %}<tool_call>{{ call.function }}</tool_call>{% endfor %}{% endfor %}"""
    + THINKS
)


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


class Service(Writer):
    """A writer whose application keeps responses from one request to the next."""

    def __init__(
        self,
        text: str | bytes,
        source: str = "",
        chunk: int | Sequence[int] = 1,
        max_model_len: int = 65536,
        **settings: Any,
    ) -> None:
        super().__init__(text, source, chunk)
        client = ScriptedClient(self._script)
        client.ready = msgspec.structs.replace(client.ready, max_model_len=max_model_len)
        client.requests = self.requests
        config = ServerConfig(port=0, **settings)
        self.state = ServerState([ModelParts(client, self.tokenizer, config)], config)
        self.app = create_app(self.state)

    def ask(self, path: str, body: Any = None, method: str = "POST", **headers: str) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
                return await asking.request(method, path, json=body, headers=headers)

        return asyncio.run(run())

    def respond(self, input: Any = "hi", **fields: Any) -> dict[str, Any]:
        answer = self.ask(PATH, {"model": "story-teller", "input": input, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, id: str, rest: str = "") -> httpx.Response:
        return self.ask(f"{PATH}/{id}{rest}", method="GET")


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types and whose numbers go up."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found = []
    for block in answer.text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    return found


DELTAS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}


def joined(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of a stream whose items are added, told in pieces and done, one after the other."""
    done: list[dict[str, Any]] = []
    added: dict[str, Any] | None = None
    pieces: dict[str, str] = {}
    for event in stream[2:-1]:
        kind, _, what = event["type"].rpartition(".")
        if event["type"] == "response.output_item.added":
            assert added is None and event["output_index"] == len(done)
            assert event["item"]["status"] == "in_progress"
            added, pieces = event["item"], {}
            continue
        assert added is not None and event["output_index"] == len(done)
        if event["type"] == "response.output_item.done":
            assert all(event["item"][key] == added[key] for key in ("id", "type"))
            done.append(event["item"])
            added = None
            continue
        assert event["item_id"] == added["id"]
        if what == "delta":
            pieces[kind] = pieces.get(kind, "") + event["delta"]
            assert event["delta"]
        elif kind in DELTAS:
            assert event[DELTAS[kind]] == pieces.get(kind, "")
    final: dict[str, Any] = stream[-1]["response"]
    assert added is None and final["output"] == done and stream[-1]["type"] == f"response.{final['status']}"
    return final


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two equal ones; which tokens were thoughts is told by the output."""
    output = [{**item, "id": "", **({"call_id": ""} if "call_id" in item else {})} for item in response["output"]]
    usage = {**response["usage"], "output_tokens_details": {}}
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": output, "usage": usage}


TEXTS = [
    ("Once upon a wörld of 猫 🦊 and שלום.", ["message"]),
    (f"<think>Hm, 猫?</think>\n\nLet me look.\n{CALL}", ["reasoning", "message", "function_call"]),
    (f"{CALL}\n{CALL}", ["function_call", "function_call"]),
    (f"{CALL}\nand then\n{CALL}", ["function_call", "message", "function_call"]),
    ("<think>\nonly thoughts 🦊", ["reasoning"]),
    (called("edit", {"input": '*** 🦊\n"שלום"\t\\n'}), ["custom_tool_call"]),
    (called("mcp__notes__look", ARGUMENTS), ["function_call"]),
    ('<tool_call>\n{"name": "look", "arguments": {"pl', ["message"]),
    ("", ["message"]),
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize(("text", "kinds"), TEXTS, ids=range(len(TEXTS)))
def test_a_stream_makes_the_whole_answer(text: str, kinds: list[str], chunk: int) -> None:
    asked = {"model": "story-teller", "input": "hi", "tools": [TOOL, EDIT, NOTES]}
    for summary in (None, "auto"):
        asked["reasoning"] = {"summary": summary}
        whole = Service(text, THINKS + CALLS, 1000).respond(**asked)
        streamed = joined(events(Service(text, THINKS + CALLS, chunk).ask(PATH, {**asked, "stream": True})))
        assert [item["type"] for item in whole["output"]] == kinds
        assert without_ids(streamed) == without_ids(whole)
        assert whole["status"] == "completed" and whole["completed_at"] >= whole["created_at"]


def test_a_stream_makes_the_whole_answer_wherever_a_call_is_cut() -> None:
    """Within the mark, the name, an escape, a character of several bytes, and the end."""
    text = called("edit", {"input": '*** a🦊\n"שלום"\\'}) + "\n" + CALL
    asked = {"input": "hi", "tools": [TOOL, EDIT]}
    whole = without_ids(Service(text, CALLS, 1000).respond(**asked))
    for cut in range(1, len(text.encode())):
        streamed = Service(text, CALLS, [cut, 1000]).ask(PATH, {**asked, "stream": True})
        assert without_ids(joined(events(streamed))) == whole, cut


@pytest.mark.parametrize(
    "text", [b"a \xf0\x9f\xa6", b"\xff\xfe and \xe7\x8c then \xf0\x9f\xa6\x8a", "שלום עולם 🏳️\u200d🌈 e\u0301".encode()]
)
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_characters_that_are_cut_are_told_once(text: bytes, chunk: int) -> None:
    whole = Service(text, "", 1000).respond()
    streamed = joined(events(Service(text, "", chunk).ask(PATH, {"input": "hi", "stream": True})))
    assert without_ids(streamed) == without_ids(whole)
    assert whole["output"][0]["content"][0]["text"] == text.decode("utf-8", "replace")


@pytest.mark.parametrize("limit", [*range(1, 96, 3), 400])
def test_a_cut_answer_says_so_wherever_it_is_cut(limit: int) -> None:
    text = f"<think>猫</think>Let 🦊\n{called('edit', {'input': 'a猫🦊'})}"
    asked = {"input": "hi", "tools": [EDIT], "max_output_tokens": limit}
    whole = Service(text, THINKS + CALLS).respond(**asked)
    streamed = joined(events(Service(text, THINKS + CALLS).ask(PATH, {**asked, "stream": True})))
    assert without_ids(streamed) == without_ids(whole)
    cut = limit <= len(text.encode())
    assert (whole["status"], whole["incomplete_details"]) == (
        ("incomplete", {"reason": "max_output_tokens"}) if cut else ("completed", None)
    )
    assert whole["output"][-1]["status"] == whole["status"] and whole["usage"]["output_tokens"] <= limit
    assert all(item["status"] == "completed" for item in whole["output"][:-1])


def test_usage() -> None:
    usage = Service("<think>ab</think>c", THINKS).respond()["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 3
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 2 <= usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


def test_calls_have_the_names_of_the_request() -> None:
    service = Service(called("mcp__notes__look", ARGUMENTS), SHOWS_ALL + CALLS)
    [call] = service.respond(tools=[NOTES])["output"]
    assert (call["name"], call["namespace"], json.loads(call["arguments"])) == ("look", "mcp__notes", ARGUMENTS)
    service.respond([{"role": "user", "content": "hi"}, call, output_of(call, "seen")], tools=[NOTES])
    [tools, _, said, result] = service.seen()
    assert [tool["function"]["name"] for tool in tools["tools"]] == ["mcp__notes__look"]
    assert said["tool_calls"][0]["function"]["name"] == "mcp__notes__look"
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == call["call_id"]
    assert (result["role"], result["name"], result["content"]) == ("tool", "mcp__notes__look", "seen")


def output_of(call: dict[str, Any], text: Any) -> dict[str, Any]:
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": text}


def test_two_namespaces_may_have_a_function_of_one_name() -> None:
    service = Service(called("team__look", ARGUMENTS), CALLS)
    [call] = service.respond(tools=[NOTES, {**NOTES, "name": "team"}, TOOL])["output"]
    assert (call["name"], call["namespace"]) == ("look", "team")
    names = [tool["function"]["name"] for tool in service.seen()[0]["tools"]]
    assert names == ["mcp__notes__look", "team__look", "look"]


def test_names_that_would_be_equal_are_told_apart() -> None:
    twin = {**TOOL, "name": "mcp__notes__look"}
    service = Service(called("mcp__notes__look_", ARGUMENTS), CALLS)
    [call] = service.respond(tools=[twin, NOTES])["output"]
    assert (call["name"], call["namespace"]) == ("look", "mcp__notes")


def test_a_custom_tool_takes_a_text() -> None:
    service = Service(called("edit", {"input": "a\n🦊"}), SHOWS_ALL + CALLS)
    [call] = service.respond(tools=[EDIT])["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "edit", "a\n🦊")
    function = service.seen()[0]["tools"][0]["function"]
    assert function["parameters"]["required"] == ["input"] and function["description"] == "Takes a text."
    for result in ("done", [{"type": "input_text", "text": "done"}]):
        service.respond([{"role": "user", "content": "hi"}, call, output_of(call, result)], tools=[EDIT])
        said, given = service.seen()[2:]
        assert said["tool_calls"][0]["function"]["arguments"] == {"input": "a\n🦊"}
        assert given["content"] == "done"


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_tools_may_come_within_the_input(kind: str) -> None:
    service = Service(called("look", ARGUMENTS), CALLS)
    inner = {"type": "namespace", "name": "functions", "description": "", "tools": [TOOL]}
    items = [{"type": kind, "tools": [inner, {"type": "web_search"}]}, {"role": "user", "content": "hi"}]
    answer = service.ask(PATH, {"input": items})
    [call] = answer.json()["output"]
    assert (call["name"], call["namespace"]) == ("look", "functions")
    assert answer.headers["x-homenode-ignored"] == "web_search"


def test_what_is_left_out_is_named() -> None:
    items = [
        {"type": "web_search_call", "status": "completed"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi", "tone": 1}]},
    ]
    body = {
        "input": items,
        "tools": [TOOL, {"type": "image_generation"}],
        "client_metadata": {},
        "include": ["odd.thing"],
    }
    body |= {"text": {"verbosity": "low"}, "prompt_cache_key": "k", "store": False, "parallel_tool_calls": True}
    answer = Service("x", CALLS).ask(PATH, body)
    named = set(answer.headers["x-homenode-ignored"].split(", "))
    assert named == {"web_search_call", "tone", "image_generation", "client_metadata", "odd.thing", "verbosity"}
    refused = Service("x", CALLS, strict_requests=True).ask(PATH, {"input": items})
    assert refused.status_code == 400 and "`web_search_call`" in refused.json()["error"]["message"]


def test_roles_and_instructions() -> None:
    service = Service("x")
    said = [("user", "hi"), ("developer", "plan"), ("assistant", "yes"), ("system", "French"), ("user", "go")]
    service.respond([{"role": role, "content": text} for role, text in said], instructions="Be brief.")
    seen = service.seen()
    assert [message["content"] for message in seen if message["role"] == "user"] == ["hi", "go"]
    assert {"role": "assistant", "content": "yes"} in seen
    shown = json.dumps(seen)
    assert all(text in shown for text in ("Be brief.", "plan", "French"))


def test_what_the_assistant_did_in_a_row_is_one_message() -> None:
    service = Service("x", SHOWS_ALL + CALLS)
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "content": None},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me "}, {"type": "refusal", "refusal": "no"}],
        },
        call,
        {**call, "call_id": "call_2"},
        {"role": "assistant", "content": "!"},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_image", "image_url": "x"}]},
    ]
    answer = service.ask(PATH, {"input": items, "tools": [TOOL]})
    assert answer.headers["x-homenode-ignored"] == "image"
    _, user, said, first, second = service.seen()
    assert (user["content"], said["content"], said["reasoning_content"]) == ("hi", "Let me no!", "Hm.")
    assert [each["id"] for each in said["tool_calls"]] == ["call_1", "call_2"]
    assert first["content"] == "1" and "[image]" in json.dumps(second["content"])


def test_thoughts_come_back_sealed() -> None:
    service = Service("<think>猫?</think>yes", SHOWS_ALL)
    [thought, _] = service.respond()["output"]
    assert "encrypted_content" not in thought and thought["content"][0]["text"] == "猫?"
    [thought, said] = service.respond(include=["reasoning.encrypted_content"], reasoning={"summary": "auto"})["output"]
    assert thought["content"] == [] and thought["summary"][0]["text"] == "猫?" and thought["encrypted_content"]
    past = [{"role": "user", "content": "hi"}, {**thought, "summary": []}, said, {"role": "user", "content": "go"}]
    service.respond(past)
    assert service.seen()[1]["reasoning_content"] == "猫?"
    other = Service("x", SHOWS_ALL)
    answer = other.ask(PATH, {"input": past})
    assert answer.headers["x-homenode-ignored"] == "encrypted_content" and "猫?" not in other.tokenizer.rendered[-1]
    assert (
        Service("x", THINKS, thoughts_secret="s").state.thought_seal.open(
            Service("x", THINKS, thoughts_secret="s").state.thought_seal.seal("a")
        )
        == "a"
    )


def test_a_conversation_goes_on_from_a_response() -> None:
    service = Service("yes", SHOWS_ALL + CALLS)
    first = service.respond("My name is Ada.", instructions="Be brief.")
    second = service.respond("What is it?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    assert [message["content"] for message in service.seen()] == ["My name is Ada.", "yes", "What is it?"]
    service.ask(f"{PATH}/{first['id']}", method="DELETE")
    service.respond([{"role": "user", "content": "And?"}], previous_response_id=second["id"])
    assert [message["content"] for message in service.seen()][-3:] == ["What is it?", "yes", "And?"]


def test_a_response_is_kept_and_removed() -> None:
    service = Service("yes")
    made = service.respond("hi")
    assert service.get(made["id"]).json() == made
    listed = service.get(made["id"], "/input_items").json()
    assert [item["content"] for item in listed["data"]] == [[{"type": "input_text", "text": "hi"}]]
    assert service.ask(f"{PATH}/{made['id']}/cancel").status_code == 400
    gone = service.ask(f"{PATH}/{made['id']}", method="DELETE").json()
    assert gone == {"id": made["id"], "object": "response", "deleted": True}
    for answer in (
        service.get(made["id"]),
        service.get(made["id"], "/input_items"),
        service.ask(f"{PATH}/{made['id']}", method="DELETE"),
        service.ask(f"{PATH}/{made['id']}/cancel"),
        service.ask(PATH, {"input": "x", "previous_response_id": made["id"]}),
    ):
        assert answer.status_code == 404 and made["id"] in answer.json()["error"]["message"]


def test_a_stream_is_kept_before_its_end_is_told() -> None:
    service = Service("yes")
    final = joined(events(service.ask(PATH, {"input": "hi", "stream": True})))
    assert service.get(final["id"]).json() == final


@pytest.mark.parametrize("settings", [{}, {"max_stored_responses": 0}])
def test_store_false_keeps_nothing(settings: dict[str, Any]) -> None:
    service = Service("yes", **settings)
    made = service.respond(store=False) if not settings else service.respond()
    assert made["store"] is False and service.get(made["id"]).status_code == 404


def test_items_are_listed_in_pages() -> None:
    service = Service("yes")
    made = service.respond([{"role": "user", "content": str(number)} for number in range(5)])
    oldest = service.get(made["id"], "/input_items?order=asc&limit=2").json()
    assert [item["content"][0]["text"] for item in oldest["data"]] == ["0", "1"] and oldest["has_more"]
    rest = service.get(made["id"], f"/input_items?order=asc&after={oldest['last_id']}").json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "3", "4"] and not rest["has_more"]
    newest = service.get(made["id"], "/input_items?limit=1").json()
    assert newest["first_id"] == rest["last_id"]
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nobody"):
        wrong = service.get(made["id"], f"/input_items?{query}")
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == query.partition("=")[0]


def test_an_item_may_be_named_by_its_id() -> None:
    service = Service("yes", SHOWS_ALL)
    [said] = service.respond("hi")["output"]
    items = [{"type": "item_reference", "id": said["id"]}, {"id": said["id"]}, {"role": "user", "content": "go"}]
    made = service.respond(items)
    assert [message["content"] for message in service.seen()] == ["yes", "yes", "go"]
    assert len(service.get(made["id"], "/input_items").json()["data"]) == 3
    for id in ("msg_1", f"msg_{'0' * 32}_0", said["id"][:-1] + "7"):
        wrong = service.ask(PATH, {"input": [{"type": "item_reference", "id": id}]})
        assert wrong.status_code == 404 and wrong.json()["error"]["param"] == "input[0].id"


def test_logprobs() -> None:
    asked: dict[str, Any] = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = httpx_answer(asked)
    scored = answer["output"][0]["content"][0]["logprobs"]
    assert "".join(token["token"] for token in scored) == "Once " and len(scored[0]["top_logprobs"]) == 2
    assert answer["top_logprobs"] == 2


def httpx_answer(asked: dict[str, Any]) -> dict[str, Any]:
    """From the client that scores its tokens."""

    async def run() -> dict[str, Any]:
        config = ServerConfig(port=0)
        state = ServerState([ModelParts(ScriptedClient(), ByteTokenizer(), config)], config)
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            whole = (await asking.post(PATH, json={**asked, "max_output_tokens": 5})).json()
            stream = await asking.post(PATH, json={**asked, "max_output_tokens": 5, "stream": True})
            assert without_ids(joined(events(stream))) == without_ids(whole)
            found: dict[str, Any] = whole
            return found

    return asyncio.run(run())


def test_the_oldest_turns_give_way_where_that_is_asked_for() -> None:
    service = Service("x", max_model_len=600)
    turns = [{"role": role, "content": f"{n}" + "." * 60} for n in range(9) for role in ("user", "assistant")]
    asked = {"instructions": "Be brief.", "input": [*turns, {"role": "user", "content": "now"}], "max_output_tokens": 1}
    refused = service.ask(PATH, asked)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input" and "`input`" in refused.json()["error"]["message"]
    service.respond(**{**asked, "truncation": "auto"})
    shown = service.requests[-1].prompt_ids
    seen = json.loads(bytes(shown).decode().removesuffix("<assistant>"))
    assert seen[0]["content"] == "Be brief." and seen[-1]["content"] == "now"
    assert seen[1]["role"] == "user" and seen[1]["content"] != turns[0]["content"]
    assert len(shown) < 600 <= len(shown) + 2 * len(json.dumps(turns[0]))
    alone = service.ask(PATH, {"input": "x" * 700, "truncation": "auto"})
    assert alone.status_code == 400 and alone.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "missing"),
        ({"input": 5}, "input", "expected"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"type": 5}]}, "input[0].type", "expected"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "robot"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "an image",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "a b", "arguments": ""}]},
            "input[0].name",
            "regex",
        ),
        ({"input": "x", "tools": [{}]}, "tools[0].type", "expected"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"input": "x", "tools": [{**NOTES, "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name", "missing"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice", "no tool"),
        ({"input": "x", "tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice", "no tool"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "`f`"),
        ({"input": "x", "tool_choice": {"type": "web_search_preview"}}, "tool_choice", "web_search_preview"),
        ({"input": "x", "background": True, "stream": True}, "background", "not streamed"),
        ({"input": "x", "background": True, "store": False}, "background", "store"),
        ({"input": "x", "conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"input": "x", "reasoning": {"effort": "huge"}}, "reasoning.effort", "huge"),
        ({"input": "x", "temperature": -1}, "temperature", ">= 0"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", ">= 1"),
        ({"input": "x", "include": [5]}, "include[0]", "expected"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(body: dict[str, Any], param: str, word: str) -> None:
    answer = Service("x", CALLS).ask(PATH, body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and (error["param"] or "").startswith(param) and word in error["message"], error


def test_allowed_tools_are_those_that_are_offered() -> None:
    service = Service("x", CALLS)
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "edit"}, {"type": "mcp"}]}
    service.respond(tools=[TOOL, EDIT], tool_choice=choice)
    assert [tool["function"]["name"] for tool in service.seen()[0]["tools"]] == ["edit"]
    choice["tools"] = [{"type": "function", "name": "edit"}]
    wrong = service.ask(PATH, {"input": "x", "tools": [TOOL, EDIT], "tool_choice": choice})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "tool_choice.tools[0].name"


def test_deeply_nested_tools_are_a_refusal_or_left_out() -> None:
    nested: dict[str, Any] = TOOL
    for _ in range(60):
        nested = {"type": "namespace", "name": "n", "tools": [nested]}
    answer = Service("x", CALLS).ask(PATH, {"input": "x", "tools": [nested]})
    assert answer.status_code == 200 and answer.headers["x-homenode-ignored"] == "namespace"


def test_what_is_asked_of_the_text_reaches_the_engine() -> None:
    service = Service("{}", CALLS)
    schema = {"type": "object", "properties": {"zebra": {"type": "integer"}}, "required": ["zebra"]}
    service.respond(text={"format": {"type": "json_schema", "name": "form", "strict": True, "schema": schema}})
    assert "zebra" in (service.requests[-1].params.grammar or "")
    service.respond(text={"format": {"type": "json_object"}})
    assert service.requests[-1].params.grammar
    service.respond(text={"format": {"type": "text"}})
    assert service.requests[-1].params.grammar is None
    wrong = {"format": {"type": "json_schema", "name": "form", "schema": {"type": "zebra"}}}
    refused = service.ask(PATH, {"input": "hi", "text": wrong})
    assert refused.status_code == 400 and (refused.json()["error"]["param"] or "").startswith("text.format")


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "name": "look"}, {"type": "function", "name": "look", "namespace": "mcp__notes"}],
)
def test_calls_that_must_come_are_bound(choice: Any) -> None:
    service = Service(CALL, CALLS)
    service.respond(tools=[TOOL, NOTES, EDIT], tool_choice=choice, parallel_tool_calls=False)
    grammar = service.requests[-1].params.grammar or ""
    assert "look" in grammar and ("edit" in grammar) == (choice == "required")
    wanted = choice["namespace"] + "__look" if isinstance(choice, dict) and "namespace" in choice else "look"
    assert wanted in grammar


@pytest.mark.parametrize(
    ("syntax", "definition", "shown"),
    [("regex", "[A-Z]{2}/[0-9]\n", "{2,2}"), ("lark", 'start: "zebra" /[a-z]/\n', "zebra")],
)
def test_the_grammar_of_a_custom_tool_binds_its_input(syntax: str, definition: str, shown: str) -> None:
    service = Service(called("edit", {"input": "AB/1\n"}), CALLS)
    tool = {**EDIT, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}
    [call] = service.respond(tools=[tool])["output"]
    assert call["input"] == "AB/1\n" and shown in (service.requests[-1].params.grammar or "")
    told = service.seen()[0]["tools"][0]["function"]["parameters"]["properties"]["input"]["description"]
    assert definition in told
    service.respond(tools=[tool], tool_choice="none")
    assert service.requests[-1].params.grammar is None
    tool["format"] = {"type": "grammar", "syntax": syntax, "definition": "start: (" if syntax == "lark" else "([a-z"}
    refused = service.ask(PATH, {"input": "hi", "tools": [TOOL, tool]})
    assert refused.status_code == 400 and "tools[1].format.definition" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("auto", "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "required"}, "required"),
        ({"type": "any"}, "required"),
        ("any", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "name": "look"}),
        ({"type": "function", "function": {"name": "look"}}, {"type": "function", "name": "look"}),
    ],
)
def test_a_choice_has_the_forms_of_the_field(choice: Any, told: Any) -> None:
    service = Service("x")
    answer = service.ask(PATH, {"input": "hi", "tools": [TOOL], "tool_choice": choice, "max_output_tokens": 5})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tool_choice"] == told
    assert (service.requests[-1].params.grammar is not None) == (told not in ("auto", "none"))


def test_a_choice_of_no_name_is_refused() -> None:
    answer = Service("x").ask(PATH, {"input": "hi", "tools": [TOOL], "tool_choice": {"type": "function"}})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice.name"
