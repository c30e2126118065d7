"""The joined deltas of a stream are the answer that is not streamed, whatever the model wrote and wherever
it was cut.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.server import test_responses as of_responses
from tests.server.test_anthropic import TOOL, events, joined, without_id
from tests.server.test_ollama import TOOLS, lines, message_of
from tests.server.written_answers import CALL, CALLS, LOOK, THINKS, Writer

_PIECES = [
    b"<think>", b"</think>", b"\n", b" ", b"words ", "🦊".encode(), "שלום".encode(), "猫".encode(), b"\xf0\x9f", b"\xff",
    CALL.encode(), b"<tool_call>", b"</tool_call>", b'{"name": "look", "arguments": {"place": "x', b'"}}', b'{"',
    b"\\u00",
]  # fmt: skip
answers = st.lists(st.sampled_from(_PIECES), max_size=9).map(b"".join)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)
limits = st.one_of(st.just(4000), st.integers(1, 60))
HELLO = [{"role": "user", "content": "hi"}]
ENDS = ("done_reason", "eval_count", "context")


@settings(max_examples=examples(25), deadline=None)
@given(answers, sizes, limits)
def test_messages(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    body = {"model": "story-teller", "messages": HELLO, "max_tokens": limit, "tools": [TOOL]}
    whole = writer.ask("/v1/messages", body).json()
    stream = events(writer.ask("/v1/messages", {**body, "stream": True}))
    assert without_id(joined(stream)) == without_id(whole)


@settings(max_examples=examples(25), deadline=None)
@given(answers, sizes, limits)
def test_ollama(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    body = {"model": "story-teller", "messages": HELLO, "options": {"num_predict": limit}, "tools": TOOLS}
    whole = writer.ask("/api/chat", {**body, "stream": False}).json()
    found = lines(writer.ask("/api/chat", body))
    assert message_of(found) == message_of([whole]) and found[-1]["done_reason"] == whole["done_reason"]


@settings(max_examples=12, deadline=None)
@given(answers, sizes, limits)
def test_ollama_prompts(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS, chunk)
    body = {"model": "story-teller", "prompt": "hi", "options": {"num_predict": limit}}
    for more in ({}, {"raw": True}):
        whole = writer.ask("/api/generate", {**body, **more, "stream": False}).json()
        found = lines(writer.ask("/api/generate", {**body, **more}))
        for key in ("response", "thinking"):
            assert "".join(line.get(key, "") for line in found) == whole.get(key, "")
        assert [found[-1].get(key) for key in ENDS] == [whole.get(key) for key in ENDS]


@settings(max_examples=examples(25), deadline=None)
@given(answers, sizes, limits)
def test_completions(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, chunk=chunk)
    body = {"prompt": "hi", "max_tokens": limit}
    whole = writer.ask("/v1/completions", body).json()["choices"][0]
    choices = choices_of(writer.ask("/v1/completions", {**body, "stream": True}))
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


@settings(max_examples=examples(25), deadline=None)
@given(answers, sizes, limits)
def test_responses(text: bytes, chunk: list[int], limit: int) -> None:
    asked = {"input": "hi", "tools": [of_responses.TOOL], "max_output_tokens": limit}
    whole = of_responses.Service(text, THINKS + CALLS, chunk).respond(**asked)
    stream = of_responses.events(
        of_responses.Service(text, THINKS + CALLS, chunk).ask("/v1/responses", {**asked, "stream": True})
    )
    assert of_responses.without_ids(of_responses.joined(stream)) == of_responses.without_ids(whole)


@settings(max_examples=examples(25), deadline=None)
@given(answers, sizes, limits)
def test_chats(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    body = {"messages": HELLO, "max_tokens": limit, "tools": [{"type": "function", "function": LOOK}]}
    whole = writer.ask("/v1/chat/completions", body).json()["choices"][0]
    choices = choices_of(writer.ask("/v1/chat/completions", {**body, "stream": True}))
    assert joined_chat(choices) == (plain(whole["message"]), whole["finish_reason"])


def test_a_call_is_whole_wherever_it_is_cut() -> None:
    """Within the mark, the name, an escape, a character of several bytes, and the end."""
    arguments = json.dumps({"place": 'a🦊\n"שלום"\\'}, ensure_ascii=False)
    text = f'<think>猫</think>é\n<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'
    for cut in range(1, len(text.encode())):
        writer = Writer(text, THINKS + CALLS, [cut, 1000])
        body = {"model": "story-teller", "messages": HELLO, "stream": True}
        functions = [{"type": "function", "function": LOOK}]
        choices = choices_of(writer.ask("/v1/chat/completions", {**body, "tools": functions}))
        said = {"content": "é", "reasoning_content": "猫", "calls": [["look", arguments]]}
        assert joined_chat(choices) == (said, "tool_calls"), cut
        blocks = joined(events(writer.ask("/v1/messages", {**body, "max_tokens": 4000, "tools": [TOOL]})))["content"]
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"], cut
        assert (blocks[0]["thinking"], blocks[1]["text"], blocks[2]["input"]) == ("猫", "é", json.loads(arguments))
        message = message_of(lines(writer.ask("/api/chat", {**body, "tools": TOOLS})))
        assert (message["thinking"], message["content"]) == ("猫", "é"), cut
        assert message["calls"] == [{"index": 0, "name": "look", "arguments": json.loads(arguments)}], cut


def choices_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The choice of each chunk of a stream."""
    found = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return [one["choices"][0] for one in found]


def joined_chat(choices: list[dict[str, Any]]) -> tuple[dict[str, Any], str | None]:
    """The message and the reason that chunks make."""
    said: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    for choice in choices:
        delta = choice["delta"]
        said["content"] += delta.get("content") or ""
        said["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(said["calls"]):
                said["calls"].append([call["function"]["name"], ""])
            said["calls"][call["index"]][1] += call["function"].get("arguments") or ""
    return said, choices[-1]["finish_reason"]


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A whole message as `joined_chat` has it."""
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    thoughts = message.get("reasoning_content") or ""
    return {"content": message["content"] or "", "reasoning_content": thoughts, "calls": calls}
