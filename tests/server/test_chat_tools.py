"""Tools, thoughts and their streams in /v1/chat/completions, on a scripted model that writes what a test wants."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from starlette.requests import Request

from homenode.server.apis.openai.chat_messages import Messages, template_messages
from tests.server.test_completions import events
from tests.server.written_answers import CALL, CALLS, LOOK, THINKS, Writer

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": LOOK}
OTHER = {"type": "function", "function": {"name": "wait"}}


def ask(writer: Writer, messages: Any = HELLO, **fields: Any) -> httpx.Response:
    return writer.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 400, **fields})


def choice(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def joined(answer: httpx.Response) -> dict[str, Any]:
    """The choice that a stream makes, and how many pieces of arguments there were."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    chunks = events(answer)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    for chunk in chunks:
        for part in chunk["choices"]:
            delta = part["delta"]
            message["content"] += delta.get("content", "")
            message["reasoning_content"] += delta.get("reasoning_content", "")
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert call["type"] == "function"
                    message["tool_calls"].append({"id": call["id"], "type": "function", "function": {"arguments": ""}})
                    message["tool_calls"][-1]["function"]["name"] = call["function"]["name"]
                else:
                    assert "id" not in call and "name" not in call["function"]
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            reason = part["finish_reason"] or reason
    return {"message": message, "finish_reason": reason}


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message to compare: without ids, and with nothing for what is not there."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": message.get("content") or "",
        "thoughts": message.get("reasoning_content") or "",
        "calls": [(call["name"], call["arguments"]) for call in calls],
    }


TEXTS = [
    "Hello, wörld 🦊 العربية",
    f"Let me look.\n{CALL}",
    f"{CALL}\n{CALL}\n behind",
    '<tool_call>\n{"name": "look", "arguments": {"pl',
    f"<think>Hm, 猫? {CALL}</think>\n\nWell.\n{CALL}",
    "<think>no end",
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_makes_the_whole_answer(text: str, chunk: int) -> None:
    writer = Writer(text, CALLS + THINKS, chunk)
    whole = choice(ask(writer, tools=[TOOL, OTHER]))
    stream = joined(ask(writer, tools=[TOOL, OTHER], stream=True))
    assert plain(stream["message"]) == plain(whole["message"])
    assert stream["finish_reason"] == whole["finish_reason"]
    assert whole["finish_reason"] == ("tool_calls" if whole["message"].get("tool_calls") else "stop")
    again = plain(choice(ask(Writer(text, CALLS + THINKS, 7), tools=[TOOL, OTHER]))["message"])
    assert plain(whole["message"]) == again


@pytest.mark.parametrize("chunk", [1, 8, 256])
def test_a_stream_has_an_event_for_each_token_however_they_came(chunk: int) -> None:
    text = "Many tokens of one step are events each."
    writer = Writer(text, chunk=chunk)
    chunks = events(ask(writer, stream=True, stream_options={"include_usage": True}))
    pieces = [part["delta"].get("content") for each in chunks for part in each["choices"]]
    assert [piece for piece in pieces if piece] == list(text)
    assert chunks[-1]["usage"]["completion_tokens"] == len(text) + 1  # and the end


TWICE = f"{CALL}\n{CALL}\n" + " and much behind it" * 8


@pytest.mark.parametrize("chunk", [1, 8, 200])
@pytest.mark.parametrize("stream", [False, True])
def test_what_comes_with_a_second_call_that_is_not_wanted_counts_nowhere(chunk: int, stream: bool) -> None:
    fields = {"tools": [TOOL, OTHER], "parallel_tool_calls": False}
    alone = ask(Writer(TWICE, CALLS), **fields).json()["usage"]["completion_tokens"]
    assert len(CALL.encode()) < alone <= len(f"{CALL}\n{CALL}".encode())
    writer = Writer(TWICE, CALLS, chunk)
    answer = ask(writer, stream=stream, stream_options={"include_usage": True}, **fields)
    made = joined(answer) if stream else choice(answer)
    usage = events(answer)[-1]["usage"] if stream else answer.json()["usage"]
    assert made["finish_reason"] == "tool_calls" and len(made["message"]["tool_calls"]) == 1
    assert usage["completion_tokens"] == alone
    assert writer.aborts[0] == (writer.requests[-1].id, "stop")


def test_a_call_and_the_text_before_it() -> None:
    message = choice(ask(Writer(f"Let me look.\n{CALL}", CALLS), tools=[TOOL]))["message"]
    (call,) = message["tool_calls"]
    assert message["content"] == "Let me look." and call["type"] == "function" and call["id"]
    assert call["function"]["name"] == "look" and json.loads(call["function"]["arguments"]) == {"place": "wörld 🦊"}


def test_only_a_call_has_no_content() -> None:
    answer = choice(ask(Writer(CALL, CALLS), tools=[TOOL]))
    assert answer["message"]["content"] is None and answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("fields", [{"tools": [TOOL], "tool_choice": "none"}, {"tools": []}, {}])
def test_without_tools_nothing_is_a_call(fields: dict[str, Any]) -> None:
    answer = choice(ask(Writer(CALL, CALLS), **fields))
    assert answer["message"]["content"] == CALL and "tool_calls" not in answer["message"]
    assert answer["finish_reason"] == "stop"


def test_old_clients_get_a_function_call() -> None:
    writer = Writer(CALL, CALLS)
    answer = choice(ask(writer, functions=[LOOK]))
    assert answer["message"]["function_call"]["name"] == "look" and answer["finish_reason"] == "function_call"
    chunks = [part for chunk in events(ask(writer, functions=[LOOK], stream=True)) for part in chunk["choices"]]
    pieces = [part["delta"]["function_call"] for part in chunks if "function_call" in part["delta"]]
    assert pieces[0]["name"] == "look"
    assert "".join(piece["arguments"] for piece in pieces) == answer["message"]["function_call"]["arguments"]
    history = [*HELLO, answer["message"], {"role": "function", "name": "look", "content": "snow"}]
    assert ask(writer, history, functions=[LOOK]).status_code == 200
    _, called, told = writer.seen()[1:]
    assert called["tool_calls"][0]["function"] == {"name": "look", "arguments": {"place": "wörld 🦊"}}
    assert told == {"role": "tool", "content": "snow", "name": "look"}


def test_one_call_where_several_are_not_wanted() -> None:
    writer = Writer(f"{CALL}\n{CALL}\nand more", CALLS, 1000)
    assert len(choice(ask(writer, tools=[TOOL]))["message"]["tool_calls"]) == 2


def test_thoughts_have_both_names_and_can_be_left_out() -> None:
    writer = Writer("<think>Hm.</think>\n\nYes.", THINKS)
    message = choice(ask(writer))["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm." and message["content"] == "Yes."
    for fields in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        message = choice(ask(writer, **fields))["message"]
        assert "reasoning_content" not in message and "reasoning" not in message and message["content"] == "Yes."
    raw = Writer("<think>Hm.</think>\n\nYes.", THINKS, reasoning_format="none")
    assert choice(ask(raw))["message"]["content"] == "<think>Hm.</think>\n\nYes."


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning": {"effort": "low"}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({}, None),
    ],
)
def test_every_spelling_reaches_the_templates_switch(fields: dict[str, Any], wanted: bool | None) -> None:
    writer = Writer("Yes.", THINKS)
    assert ask(writer, **fields).status_code == 200
    values = writer.seen()[-1].get("values", {})
    assert values.get("enable_thinking") is wanted


def test_results_as_parts_and_pictures_among_them() -> None:
    writer = Writer("Yes.", CALLS)
    parts = [{"type": "text", "text": "snow"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    called = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": {}}}]}
    answer = ask(writer, [*HELLO, called, {"role": "tool", "tool_call_id": "a", "content": parts}], tools=[TOOL])
    assert answer.headers["x-homenode-ignored"] == "image"
    assert writer.seen()[-1]["content"] == "snow\n[image]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "functions": [LOOK]}, "functions"),
        (
            {
                "tools": [{**OTHER, "function": {"name": "x", "parameters": {"type": "strin"}}}],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        ({"reasoning_effort": "banana"}, "reasoning_effort"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    answer = ask(Writer("Yes.", CALLS), **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"].startswith(param) and param in error["message"]


def test_hosted_tools_are_left_out_and_named() -> None:
    writer = Writer("Yes.", CALLS)
    answer = ask(writer, tools=[{"type": "web_search"}, TOOL, TOOL])
    assert answer.headers["x-homenode-ignored"] == "web_search, tools_2_"
    assert [tool["function"]["name"] for tool in writer.seen()[0]["tools"]] == ["look"]


def test_a_function_may_have_its_fields_beside_its_type() -> None:
    writer = Writer("Yes.", CALLS)
    assert ask(writer, tools=[{"type": "function", **LOOK}, {"name": "wait"}]).status_code == 200
    assert [tool["function"]["name"] for tool in writer.seen()[0]["tools"]] == ["look", "wait"]


def test_messages_as_clients_of_other_apis_write_them() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": None}}
    thought = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "output_text", "text": "Yes."},
    ]
    said = msgspec.convert(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"role": "assistant", "content": thought, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "output_text", "text": "snow"}]},
        ],
        Messages,
    )
    user, assistant, result = template_messages(Request({"type": "http"}), said)
    assert user["content"][0]["text"] == "hi" and result["content"][0]["text"] == "snow"
    assert assistant["reasoning_content"] == "Hm." and assistant["content"] == [{"type": "text", "text": "Yes."}]
    assert assistant["tool_calls"][0]["function"]["arguments"] == ""


def test_timings_where_they_are_asked_for() -> None:
    writer = Writer("Yes.", "")
    for field in ("timings_per_token", "return_timings"):
        timings = ask(writer, **{field: True}).json()["timings"]
        assert timings["cache_n"] == 3 and timings["predicted_n"] == 5 and timings["prompt_n"] > 10
        assert timings["draft_n"] == timings["draft_n_accepted"] == 0
        assert all(value >= 0 for value in timings.values())
    assert "timings" not in ask(writer).json()
    told = [("timings" in chunk) for chunk in events(ask(writer, stream=True, return_timings=True))]
    assert sum(told) == 1 and told[-1]
    told = [("timings" in chunk) for chunk in events(ask(writer, stream=True, timings_per_token=True))]
    assert sum(told) == len(told) - 1


def test_the_template_can_be_looked_at() -> None:
    writer = Writer("Yes.", CALLS + THINKS)
    body = {"messages": HELLO, "tools": [TOOL], "reasoning_effort": "none"}
    shown = writer.ask("/apply-template", body).json()
    assert (
        ask(writer, HELLO, tools=[TOOL], reasoning_effort="none", return_token_ids=True).json()["prompt_token_ids"]
        == (shown["token_ids"])
    )
    assert bytes(shown["token_ids"]).decode() == shown["prompt"] and '"enable_thinking": false' in shown["prompt"]


def test_tokenize_takes_tools() -> None:
    writer = Writer("Yes.", CALLS)
    with_tools = writer.ask("/tokenize", {"messages": HELLO, "tools": [TOOL]}).json()
    assert (
        with_tools["tokens"] == writer.ask("/apply-template", {"messages": HELLO, "tools": [TOOL]}).json()["token_ids"]
    )


@pytest.mark.parametrize(
    "choice_of_tool",
    [
        "required",
        "any",
        {"type": "function", "function": {"name": "look"}},
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}},
    ],
)
def test_a_call_that_must_come_is_bound_and_shown_as_it_comes(choice_of_tool: Any) -> None:
    writer = Writer(CALL, CALLS)
    fields = {"tools": [OTHER, TOOL], "tool_choice": choice_of_tool, "parallel_tool_calls": False}
    whole = choice(ask(writer, **fields))
    assert writer.requests[-1].params.grammar is not None and whole["finish_reason"] == "tool_calls"
    stream = ask(writer, stream=True, **fields)
    assert plain(joined(stream)["message"]) == plain(whole["message"])
    deltas = [part["delta"] for chunk in events(stream) for part in chunk["choices"]]
    pieces = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert sum(map(bool, pieces)) > 10


def test_numbers_in_calls_do_not_go_on_for_ever() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    writer = Writer(CALL, CALLS)
    counting = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    assert ask(writer, tools=[counting], tool_choice="required").status_code == 200
    assert '"maximum": 9000000000000000000' in str(writer.requests[-1].params.grammar)


def test_a_call_that_is_cut_stays_a_call_where_it_is_bound() -> None:
    writer = Writer(CALL, CALLS)
    cut = choice(ask(writer, tools=[TOOL], tool_choice="required", max_tokens=50))
    (call,) = cut["message"]["tool_calls"]
    assert cut["finish_reason"] == "length" and call["function"]["arguments"].startswith('{"place')


def test_without_a_bound_nothing_is_bound() -> None:
    writer = Writer("Yes.", CALLS)
    assert ask(writer, tools=[TOOL]).status_code == 200 and writer.requests[-1].params.grammar is None
    strict = {"type": "function", "function": {**LOOK, "strict": True}}
    assert ask(writer, tools=[strict]).status_code == 200 and writer.requests[-1].params.grammar is not None
    assert ask(writer, tools=[strict], tool_choice="none").status_code == 200
    assert writer.requests[-1].params.grammar is None


SHOUT = {"type": "custom", "custom": {"name": "shout", "description": "Say it aloud."}}
SAID = 'hé "you"\n🦊'
SHOUTED = f"<tool_call>\n{json.dumps({'name': 'shout', 'arguments': {'input': SAID}})}\n</tool_call>"


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_custom_tool_gets_a_text(chunk: int) -> None:
    writer = Writer(f"Well.\n{SHOUTED}\n{CALL}", CALLS, chunk)
    answer = choice(ask(writer, tools=[SHOUT, TOOL]))
    custom, function = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls" and function["type"] == "function"
    assert (
        custom["type"] == "custom" and custom["custom"] == {"name": "shout", "input": SAID} and "function" not in custom
    )
    pieces = [
        call
        for part in events(ask(writer, tools=[SHOUT, TOOL], stream=True))
        for each in part["choices"]
        for call in each["delta"].get("tool_calls", ())
    ]
    of_custom = [piece for piece in pieces if piece["index"] == 0]
    assert [(piece.get("type"), piece["custom"].get("name")) for piece in of_custom[:1]] == [("custom", "shout")]
    assert "".join(piece["custom"]["input"] for piece in of_custom) == SAID
    assert all("function" in piece and "custom" not in piece for piece in pieces if piece["index"] == 1)
    history = [*HELLO, answer["message"], {"role": "tool", "tool_call_id": custom["id"], "content": "done"}]
    assert ask(writer, history, tools=[SHOUT, TOOL]).status_code == 200
    assert writer.seen()[2]["tool_calls"][0]["function"] == {"name": "shout", "arguments": {"input": SAID}}


def test_a_custom_tool_can_be_bound_by_a_grammar_and_named() -> None:
    def tool(syntax: str, definition: str) -> dict[str, Any]:
        grammar = {"syntax": syntax, "definition": definition}
        return {"type": "custom", "custom": {"name": "shout", "format": {"type": "grammar", "grammar": grammar}}}

    writer = Writer(SHOUTED, CALLS)
    for bound in (tool("regex", "[A-Z]+!"), tool("lark", "start: /[A-Z]+!/")):
        assert ask(writer, tools=[bound]).status_code == 200
        assert "{41}-" in (writer.requests[-1].params.grammar or "")
    named = {"type": "custom", "custom": {"name": "shout"}}
    assert choice(ask(writer, tools=[SHOUT, TOOL], tool_choice=named))["finish_reason"] == "tool_calls"
    refused = ask(writer, tools=[TOOL, tool("regex", "([a-z")])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[1].custom.format.grammar.definition"
    assert ask(writer, tools=[tool("regex", "([a-z")], tool_choice="none").status_code == 200


def test_a_call_of_nothing_in_the_history_is_refused_by_name() -> None:
    refused = ask(Writer("Yes.", CALLS), [*HELLO, {"role": "assistant", "tool_calls": [{"id": "a"}]}])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "messages[1].tool_calls[0].function"


@pytest.mark.parametrize("chunk", [1, 1000])
def test_the_stop_string_can_stay(chunk: int) -> None:
    writer = Writer("One. STOP two.", CALLS, chunk)
    answer = choice(ask(writer, stop=["STOP"], include_stop_str_in_output=True))
    assert answer["message"]["content"] == "One. STOP" and answer["finish_reason"] == "stop"
    stream = joined(ask(writer, stop=["STOP"], include_stop_str_in_output=True, stream=True))
    assert stream["message"]["content"] == "One. STOP"
    assert choice(ask(writer, stop=["STOP"]))["message"]["content"] == "One. "


def test_samplers_as_letters() -> None:
    writer = Writer("Yes.")
    assert ask(writer, samplers="edt", top_k=5).status_code == 200 and writer.requests[-1].params.top_k == 0
    assert ask(writer, samplers="edkypmxt", top_k=5).status_code == 200 and writer.requests[-1].params.top_k == 5
    assert ask(writer, samplers="ez").json()["error"]["param"] == "samplers"


BEGUN = [{"role": "user", "content": "Give JSON."}, {"role": "assistant", "content": "Sure: "}]
GOES_ON: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"continue_final_message": True}),
    ("/v1/chat/completions", {"messages": [BEGUN[0], {**BEGUN[1], "prefix": True}]}),
    ("/v1/messages", {"max_tokens": 100}),
    ("/api/chat", {"stream": False}),
]


@pytest.mark.parametrize("template", ["<minimax:tool_call> <think>", "<think>"])
@pytest.mark.parametrize(("path", "more"), GOES_ON)
def test_an_answer_that_is_gone_on_with_is_content(path: str, more: dict[str, Any], template: str) -> None:
    """Also by models whose thoughts are open from the start of an answer on."""
    writer = Writer('{"a": 1}', template)
    answer = writer.ask(path, {"model": "story-teller", "messages": BEGUN, **more}).json()
    message = answer["choices"][0]["message"] if "choices" in answer else answer.get("message", answer)
    content = message["content"]
    assert (content if isinstance(content, str) else content[0]["text"]) == '{"a": 1}'
    assert not (message.get("reasoning_content") or message.get("thinking"))
