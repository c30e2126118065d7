"""Parts of messages that are no text: every API refuses them in the same words, and shows those of tools as a word."""

from __future__ import annotations

from typing import Any, get_args

import httpx
import pytest

from homenode.server.apis.openai.chat_messages import PartType
from homenode.server.core.media.content import MEDIA_TYPES, media_kind
from tests.server.written_answers import CALLS, Writer

TEXT = {"type": "text", "text": "what is this?"}
URL = "data:image/png;base64,iVBO"
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
# By kind, what it is called in each API.
PARTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "image": [
        (CHAT, {"type": "image_url", "image_url": {"url": URL}}),
        (RESPONSES, {"type": "input_image", "image_url": URL}),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}),
        (OLLAMA, {"images": ["iVBO"]}),
    ],
    "audio": [
        (CHAT, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        (CHAT, {"type": "audio_url", "audio_url": {"url": URL}}),
        (RESPONSES, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
    ],
    "video": [
        (CHAT, {"type": "video_url", "video_url": {"url": URL}}),
        (RESPONSES, {"type": "input_video"}),
        (MESSAGES, {"type": "video", "source": {"type": "url", "url": "http://127.0.0.1/x"}}),
    ],
    "file": [
        (CHAT, {"type": "file", "file": {"file_id": "x"}}),
        (RESPONSES, {"type": "input_file", "file_id": "x"}),
        (MESSAGES, {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}),
    ],
}
CASES = [(kind, path, part) for kind, parts in PARTS.items() for path, part in parts]
WORDS = {"image": "cannot see", "audio": "cannot hear", "video": "cannot see", "file": "cannot read"}


def said(path: str, part: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A body in which the user says `part` behind a text, and where that is."""
    if path == OLLAMA:
        message = {"role": "user", "content": "what is this?", **part}
        return {"model": "story-teller", "messages": [message]}, "messages[0].images[0]"
    field = "input" if path == RESPONSES else "messages"
    text = {**TEXT, "type": "input_text"} if path == RESPONSES else TEXT
    rest = {"max_tokens": 1, "model": "story-teller"} if path == MESSAGES else {}
    return {field: [{"role": "user", "content": [text, part]}], **rest}, f"{field}[0].content[1]"


def message_of(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(("kind", "path", "part"), CASES)
def test_every_api_refuses_alike(kind: str, path: str, part: dict[str, Any]) -> None:
    body, place = said(path, part)
    answer = Writer("x").ask(path, body)
    message = message_of(answer)
    assert answer.status_code == 400 and message.startswith(f"`{place}` is ") and WORDS[kind] in message
    assert kind in message.removeprefix(f"`{place}`"), "by the word that its name in the API has"
    if path in (CHAT, RESPONSES):
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (place, "unsupported_parameter")


def test_a_kind_is_refused_in_one_sentence() -> None:
    for kind, parts in PARTS.items():
        answers = {message_of(Writer("x").ask(path, said(path, part)[0])).split("` ")[1] for path, part in parts}
        assert len(answers) == 1, (kind, answers)


def test_a_prompt_with_a_picture() -> None:
    answer = Writer("x").ask("/api/generate", {"model": "story-teller", "prompt": "see", "images": ["iVBO"]})
    assert answer.status_code == 400 and message_of(answer).startswith("`images[0]` is an image")


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, path, part in CASES if path == CHAT])
def test_what_a_tool_gave_back_is_a_word(kind: str, part: dict[str, Any]) -> None:
    writer = Writer("x", CALLS)
    called = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": {}}}]}
    result = {"role": "tool", "tool_call_id": "a", "content": [TEXT, part]}
    answer = writer.ask(CHAT, {"messages": [{"role": "user", "content": "hi"}, called, result]})
    assert answer.headers["x-homenode-ignored"] == kind
    assert writer.seen()[-1]["content"] == f"what is this?\n[{kind}]"


def test_text_has_a_text() -> None:
    answer = Writer("x").ask(CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].content[0].text"


def test_every_type_of_a_part_has_a_kind() -> None:
    types = set(get_args(PartType))
    assert {part for part in types if media_kind(part) is None} == {"text", "input_text", "output_text"}
    assert types - {"text", "input_text", "output_text"} <= MEDIA_TYPES
