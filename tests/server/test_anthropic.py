"""The Anthropic Messages API."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from homenode.chat.syntax.parts import CallDelta, ContentDelta, ReasoningDelta
from homenode.server.apis.anthropic.content import BlockWriter, whole_blocks
from tests.server.written_answers import CALL, CALLS, LOOK, SHOWS, THINKS, Writer

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}


def ask(writer: Writer, messages: Any = HELLO, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    return writer.ask(path, {"model": "story-teller", "messages": messages, "max_tokens": 400, **fields})


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found = []
    for block in answer.text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def joined(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream makes."""
    message = stream[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    texts: list[str] = []
    is_open = False
    for event in stream[1:]:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts.append("")
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open and event["index"] == len(texts) - 1
            delta = event["delta"]
            if delta["type"] == "signature_delta":
                message["content"][-1]["signature"] = delta["signature"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
                texts[-1] += delta[key[delta["type"]]]
        elif event["type"] == "content_block_stop":
            assert is_open and event["index"] == len(texts) - 1
            is_open = False
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
    assert not is_open and stream[-1] == {"type": "message_stop"}
    for block, text in zip(message["content"], texts, strict=True):
        key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        block[key] = json.loads(text) if key == "input" else text
    return message


def without_id(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{**block, "id": "toolu"} if "id" in block else block for block in message["content"]]
    return {**message, "id": "msg", "content": blocks}


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize(
    ("text", "kinds", "reason"),
    [
        ("Once upon a wörld of 猫 🦊 and שלום.", ["text"], "end_turn"),
        (f"<think>Hm, 猫?</think>\n\nLet me look.\n{CALL}", ["thinking", "text", "tool_use"], "tool_use"),
        (f"{CALL}\n{CALL}", ["tool_use", "tool_use"], "tool_use"),
        ("<think>\nonly thoughts 🦊", ["thinking"], "end_turn"),
        ("<tool_call>\n{\"name\": \"look\", \"arguments\": {\"pl", ["text"], "end_turn"),
        ("", [], "end_turn"),
    ],
)  # fmt: skip
def test_a_stream_makes_the_whole_answer(text: str, kinds: list[str], reason: str, chunk: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    whole = ask(writer, tools=[TOOL]).json()
    assert [block["type"] for block in whole["content"]] == kinds and whole["stop_reason"] == reason, whole
    stream = events(ask(writer, tools=[TOOL], stream=True))
    assert {"type": "ping"} in stream
    assert without_id(joined(stream)) == without_id(whole)


def test_blocks_of_any_order_of_deltas() -> None:
    deltas = [
        ReasoningDelta("a"), ReasoningDelta("b"), ContentDelta("c"), CallDelta(0, "", "1", "f"), CallDelta(0, '{"x":'),
        CallDelta(0, "1}"), CallDelta(1, "{}", "2", "g"), ContentDelta("d"), ReasoningDelta("e"),
        CallDelta(2, '{"y": [', "3", "h"),
    ]  # fmt: skip
    blocks = whole_blocks(deltas)
    assert [type(block).__name__.removeprefix("Messages") for block in blocks] == [
        "Thought", "Text", "ToolUse", "ToolUse", "Text", "Thought", "ToolUse",
    ]  # fmt: skip
    assert blocks[0].signature and blocks[0].signature != blocks[5].signature
    assert (blocks[2].input, blocks[3].input, blocks[6].input) == ({"x": 1}, {}, {"INVALID_JSON": '{"y": ['})
    hidden = BlockWriter(lambda thoughts: f"sealed {thoughts}")
    shown = [*hidden.feed(deltas[:2]), *hidden.close()]
    assert len(shown) == 3 and shown[1].delta.signature == "sealed ab"


def test_usage_and_ends() -> None:
    writer = Writer("Once upon a time")
    whole = ask(writer).json()
    prompt = len(writer.requests[-1].prompt_ids)
    assert whole["usage"] == {
        "input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 17,
        "service_tier": "standard",
    }  # fmt: skip
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "story-teller")
    assert ask(writer, max_tokens=4).json()["stop_reason"] == "max_tokens"
    assert ask(writer, max_tokens=10**9).json()["stop_reason"] == "end_turn"
    stopped = ask(writer, stop_sequences=["zzz", "upon"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "upon")
    assert stopped["content"] == [{"type": "text", "text": "Once ", "citations": None}]


def test_the_system_text_has_no_line_for_the_bill() -> None:
    writer = Writer("x")
    bill = "x-anthropic-billing-header: cc_version=2; cch=1;"
    ask(writer, system=[{"type": "text", "text": bill}, {"type": "text", "text": "Be brief."}])
    assert writer.seen()[0] == {"role": "system", "content": "Be brief."}
    ask(writer, system=f"{bill}\nBe brief.")
    assert writer.seen()[0] == {"role": "system", "content": "Be brief."}
    ask(writer, system=bill)
    assert writer.seen() == [{"role": "user", "content": "hi"}]
    ask(writer, [{"role": "user", "content": f"What is {bill}?"}])
    assert bill in writer.seen()[0]["content"]  # what a user says stays


def test_a_history_of_tools_and_thoughts() -> None:
    writer = Writer("x", CALLS + SHOWS)
    history = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "redacted_thinking", "data": "AA"},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"place": "x"}},
            {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "Go on."}, {"type": "tool_result", "tool_use_id": "t1", "content": "snow"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [{"type": "text", "text": "no"}]},
        ]},
        {"role": "system", "content": "Hurry."},
        {"role": "user", "content": "Now."}, {"role": "user", "content": "Please."},
    ]  # fmt: skip
    answer = ask(writer, history, tools=[TOOL])
    assert answer.status_code == 200 and answer.headers["x-homenode-ignored"] == "redacted_thinking"
    offered, user, assistant, first, second, more, system, last = writer.seen()
    assert offered["tools"] == [{"type": "function", "function": LOOK}]
    assert user["content"] == "a\nb"
    assert (assistant["content"], assistant["reasoning_content"]) == ("Looking.", "hm")
    called = [call["function"] for call in assistant["tool_calls"]]
    assert called == [{"name": "look", "arguments": {"place": "x"}}, {"name": "look", "arguments": {}}]
    assert first == {"role": "tool", "tool_call_id": "t1", "content": "snow", "name": "look"}
    assert (second["tool_call_id"], second["content"]) == ("t2", "Error: no")
    assert (more, system) == ({"role": "user", "content": "Go on."}, {"role": "system", "content": "Hurry."})
    assert last["content"] == "Now.\nPlease."


def test_an_answer_goes_on_from_its_beginning() -> None:
    writer = Writer(" B)")
    answer = ask(writer, [*HELLO, {"role": "assistant", "content": "The best is ("}])
    assert answer.json()["content"][0]["text"] == " B)"
    assert bytes(writer.requests[-1].prompt_ids[1:]).endswith(b"The best is (")


def test_pictures_and_documents() -> None:
    writer = Writer("x", CALLS)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    paper = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    scan = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    found = {"type": "search_result", "title": "F", "source": "s", "content": [{"type": "text", "text": "seen"}]}
    for block in (image, scan):
        refused = ask(writer, [{"role": "user", "content": [{"type": "text", "text": "see"}, block]}])
        assert refused.status_code == 400 and "messages[0].content[1]" in refused.json()["error"]["message"]
    assert ask(writer, [{"role": "user", "content": [paper, found]}]).status_code == 200
    assert writer.seen()[0]["content"] == "T\nwords\nF\ns\nseen"
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, paper, scan, {"type": "strange"}]}
    answer = ask(writer, [*HELLO, {"role": "assistant", "content": "ok"}, {"role": "user", "content": [result]}])
    assert answer.headers["x-homenode-ignored"] == "image, document, strange"
    assert writer.seen()[-1]["content"] == "[image]\nT\nwords\n[document]"


def test_a_call_is_not_insisted_on_where_all_tools_are_left_out() -> None:
    writer = Writer("x", CALLS)
    search = {"type": "web_search_20250305", "name": "web_search"}
    answer = ask(writer, tools=[search], tool_choice={"type": "any"})
    assert answer.headers["x-homenode-ignored"] == "web_search_20250305"
    assert "tools" not in writer.seen()[0]


def test_tools_of_other_servers_are_left_out() -> None:
    writer = Writer("x", CALLS)
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    answer = ask(writer, tools=[search, {**TOOL, "cache_control": {"type": "ephemeral"}, "defer_loading": True}])
    assert answer.headers["x-homenode-ignored"] == "web_search_20250305"
    assert [tool["function"]["name"] for tool in writer.seen()[0]["tools"]] == ["look"]
    ask(writer, tools=[TOOL, TOOL])
    assert len(writer.seen()[0]["tools"]) == 1
    assert "tools" not in ask(writer, tools=[search]).text and "tools" not in writer.seen()[0]


def test_what_is_known_is_not_named_as_ignored() -> None:
    answer = ask(
        Writer("x", THINKS), [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": None}]}],
        path="/v1/messages?beta=true", metadata={"user_id": "u"},
        thinking={"type": "adaptive", "display": "summarized"},
        output_config={"effort": "max"}, service_tier="auto", cache_control={"type": "ephemeral"}, top_k=3, seed=1,
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )  # fmt: skip
    assert answer.status_code == 200 and "x-homenode-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("thinking", "seen"),
    [({"type": "enabled", "budget_tokens": 1024}, True), ({"type": "adaptive"}, True), ({"type": "disabled"}, False)],
)
def test_thoughts_are_switched(thinking: dict[str, Any], seen: bool) -> None:
    writer = Writer("x", THINKS)
    assert ask(writer, thinking=thinking).status_code == 200
    assert writer.seen()[-1]["values"] == {"enable_thinking": seen}


def test_thoughts_that_nobody_wants_to_read() -> None:
    omitted = {"type": "adaptive", "display": "omitted"}
    writer = Writer("<think>secret</think>x", THINKS + SHOWS, thoughts_secret="s")
    content = ask(writer, thinking=omitted).json()["content"]
    assert content[0]["thinking"] == "" and content[1]["text"] == "x" and "secret" not in content[0]["signature"]
    assert "secret" not in ask(writer, thinking=omitted, stream=True).text
    ask(writer, [*HELLO, {"role": "assistant", "content": content}, *HELLO])
    assert writer.seen()[1]["reasoning_content"] == "secret"


MARK = {"cache_control": {"type": "ephemeral"}}
NESTED = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x", **MARK}]}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {"place": "x"}}]}


@pytest.mark.parametrize(
    "marked",
    [
        MARK,
        {"system": [{"type": "text", "text": "s", **MARK}]},
        {"tools": [{**TOOL, **MARK}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **MARK}]}]},
        {"messages": [*HELLO, CALLED, {"role": "user", "content": [NESTED]}]},
    ],
    ids=["top", "system", "tool", "message", "nested"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_told_apart_where_a_prefix_is_marked(marked: dict[str, Any], stream: bool) -> None:
    writer = Writer("x", CALLS)
    for mark, cached in ((MARK["cache_control"], 3), (None, 0)):
        text = json.dumps(marked).replace(json.dumps(MARK["cache_control"]), json.dumps(mark))
        answer = ask(writer, **{"messages": HELLO, "stream": stream, **json.loads(text)})
        usage = joined(events(answer))["usage"] if stream else answer.json()["usage"]
        assert usage["cache_read_input_tokens"] == cached
        assert usage["input_tokens"] == len(writer.requests[-1].prompt_ids) - cached


def test_tokens_are_counted() -> None:
    writer = Writer("x", CALLS)
    body = {"model": "story-teller", "messages": HELLO, "system": "s", "tools": [TOOL]}
    count = writer.ask("/v1/messages/count_tokens", body).json()
    usage = ask(writer, system="s", tools=[TOOL]).json()["usage"]
    assert count == {"input_tokens": usage["input_tokens"]}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "invalid_request_error",
            "content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400, "invalid_request_error",
            "tool_use_id"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "role"),
        ({"model": "nobody"}, 404, "not_found_error", "nobody"),
        ({"tools": [{"name": "f"}]}, 400, "invalid_request_error", "tools[0].input_schema"),
        ({"tools": [TOOL, {**TOOL, "description": "x"}]}, 400, "invalid_request_error", "two unlike tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, 400, "invalid_request_error",
            "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"messages": [{"role": "user", "content": "x" * 70000}]}, 400, "invalid_request_error",
            "prompt is too long: 70"),
    ],
)  # fmt: skip
def test_errors_have_their_shape(fields: dict[str, Any], status: int, kind: str, words: str) -> None:
    answer = ask(Writer("x"), **fields)
    error = answer.json()
    assert answer.status_code == status and error["type"] == "error", answer.text
    assert error["error"]["type"] == kind and words in error["error"]["message"], answer.text


def test_other_failures_have_their_shape() -> None:
    writer = Writer("x", api_key=("secret",))
    assert ask(writer).json()["error"]["type"] == "authentication_error"
    assert Writer("x").ask("/v1/messages", method="GET").json()["type"] == "error"
    assert Writer("x").ask("/v1/messages/batches", {}).json()["error"]["type"] == "not_found_error"
    assert Writer("x").ask("/v1/messages", b"{").json()["error"]["type"] == "invalid_request_error"


def test_somebody_is_there() -> None:
    assert Writer("x").ask("/", method="HEAD").status_code == 200
    assert "homenode" in Writer("x").ask("/", method="GET").text


def test_models_are_listed_for_clients_of_this_api() -> None:
    listed = Writer("x").ask("/v1/models?limit=1000", method="GET").json()
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("story-teller", "story-teller", False)
    model = listed["data"][0]
    assert (model["type"], model["display_name"]) == ("model", "story-teller") and model["created_at"].endswith("Z")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
def test_a_call_that_must_come_binds_the_answer(choice: dict[str, str]) -> None:
    writer = Writer(CALL, CALLS, 4)
    asked = {"tools": [TOOL], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    whole = ask(writer, **asked).json()
    assert "look" in (writer.requests[-1].params.grammar or "")
    assert (whole["stop_reason"], whole["content"][0]["input"]) == ("tool_use", {"place": "wörld 🦊"})
    stream = events(ask(writer, stream=True, **asked))
    assert without_id(joined(stream)) == without_id(whole)
    assert sum(event["type"] == "content_block_delta" for event in stream) > 1  # arguments are streamed as they come
    alone = writer.requests[-1].params.grammar
    ask(writer, tools=[TOOL], tool_choice=choice)
    assert writer.requests[-1].params.grammar == alone  # several calls come only where they are asked for
    ask(writer, tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": False})
    assert writer.requests[-1].params.grammar != alone
    assert ask(writer, tools=[TOOL], tool_choice={"type": "none"}).json()["stop_reason"] == "end_turn"
    assert writer.requests[-1].params.grammar is None


def test_a_schema_binds_the_answer() -> None:
    writer = Writer("{}")
    schema = {"type": "object", "properties": {"place": {"enum": ["Bern"]}}, "required": ["place"]}
    for fields in (
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"output_format": {"type": "json_schema", "schema": schema}},
    ):
        assert ask(writer, **fields).status_code == 200 and "Bern" in (writer.requests[-1].params.grammar or "")
    wrong = ask(writer, output_config={"format": {"type": "json_schema", "schema": {"type": "strange"}}})
    assert wrong.status_code == 400 and "output_config.format.schema" in wrong.json()["error"]["message"]


def test_a_call_has_no_id_of_an_earlier_turn_though_the_model_counts_anew() -> None:
    call = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look", "parameters": {}}]<|END_ACTION|>'
    writer = Writer(call, tool_call_parser="cohere_command3")
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look."}]
    for turn in range(3):
        body = {"model": "story-teller", "max_tokens": 200, "messages": messages, "tools": tools}
        (use,) = writer.ask("/v1/messages", body).json()["content"]
        assert (use["type"], use["id"]) == ("tool_use", str(turn))
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "Seen."}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
