"""The joined deltas of a stream are the answer that is not streamed, whatever the model wrote and however it was cut."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.test_anthropic import TOOL, events, joined, without_id
from tests.server.test_ollama import TOOLS, lines, message_of
from tests.server.written_answers import CALL, CALLS, LOOK, THINKS, Writer

_PIECES = [
    b"<think>", b"</think>", b"\n", b" ", b"words ", "🦊".encode(), "שלום".encode(), "猫".encode(), b"\xf0\x9f", b"\xff",
    CALL.encode(), b"<tool_call>", b"</tool_call>", b'{"name": "look", "arguments": {"place": "x', b'"}}', b'{"', b"\\u00",
]  # fmt: skip
answers = st.lists(st.sampled_from(_PIECES), max_size=9).map(b"".join)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)
limits = st.one_of(st.just(4000), st.integers(1, 60))
HELLO = [{"role": "user", "content": "hi"}]


@settings(max_examples=25, deadline=None)
@given(answers, sizes, limits)
def test_messages(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    body = {"model": "story-teller", "messages": HELLO, "max_tokens": limit, "tools": [TOOL]}
    whole = writer.ask("/v1/messages", body).json()
    stream = events(writer.ask("/v1/messages", {**body, "stream": True}))
    assert without_id(joined(stream)) == without_id(whole)


@settings(max_examples=25, deadline=None)
@given(answers, sizes, limits)
def test_ollama(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    body = {"model": "story-teller", "messages": HELLO, "options": {"num_predict": limit}, "tools": TOOLS}
    whole = writer.ask("/api/chat", {**body, "stream": False}).json()
    found = lines(writer.ask("/api/chat", body))
    assert message_of(found) == message_of([whole]) and found[-1]["done_reason"] == whole["done_reason"]


@settings(max_examples=25, deadline=None)
@given(answers, sizes, limits)
def test_chats(text: bytes, chunk: list[int], limit: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    body = {"messages": HELLO, "max_tokens": limit, "tools": [{"type": "function", "function": LOOK}]}
    whole = writer.ask("/v1/chat/completions", body).json()["choices"][0]
    stream = writer.ask("/v1/chat/completions", {**body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert joined_chat([one["choices"][0] for one in chunks]) == (plain(whole["message"]), whole["finish_reason"])


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
