"""/v1/chat/completions with plain HTTP; `test_clients.py` asks the same through the official client."""

from __future__ import annotations

import pytest

from tests.server.conftest import Running, Start
from tests.server.fakes import BOS, MAX_MODEL_LEN, STORY, ByteTokenizer
from tests.server.test_completions import events


def prompt_of(server: Running) -> str:
    return bytes(server.client.requests[-1].prompt_ids).decode()


def test_answer(server: Running) -> None:
    answer = server.chat(max_tokens=4, return_token_ids=True).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Once", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "token_ids": [*b"Once"],
        }
    ]
    assert bytes(answer["prompt_token_ids"]).decode() == "<user>hi</><assistant>"


def test_the_rest_of_the_context_is_the_default_length(server: Running) -> None:
    answer = server.chat().json()
    assert answer["usage"]["total_tokens"] == MAX_MODEL_LEN
    assert server.chat(max_tokens=9, max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_roles_and_parts(server: Running) -> None:
    messages = [
        {"role": "developer", "content": "short"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [],
            "function_call": None,
            "audio": None,
            "annotations": [],
        },
    ]
    assert server.chat(messages=messages, max_tokens=1).status_code == 200
    assert prompt_of(server) == "<system>short</><user>a\nb</><assistant></><assistant>"


def test_template_values_and_open_turns(server: Running) -> None:
    assert (
        server.chat(chat_template_kwargs={"prefix": "P"}, add_generation_prompt=False, max_tokens=1).status_code == 200
    )
    assert prompt_of(server) == "P<user>hi</>"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]
    assert server.chat(messages=messages, continue_final_message=True, max_tokens=1).status_code == 200
    assert prompt_of(server) == "<user>hi</><assistant>well, "
    for word in ("prefix", "partial"):
        begun = [messages[0], {**messages[1], word: True}]
        assert server.chat(messages=begun, max_tokens=1).status_code == 200
        assert prompt_of(server) == "<user>hi</><assistant>well, "
        assert server.chat(messages=begun, add_generation_prompt=True, max_tokens=1).status_code == 200
        assert prompt_of(server) == "<user>hi</><assistant>well, </><assistant>"


@pytest.mark.parametrize("name", ["self", "cls", "args", "kwargs", "values", "name", "template", "state", ""])
def test_values_for_the_template_may_have_any_names(server: Running, name: str) -> None:
    """Those of the code's own parameters too."""
    assert server.chat(chat_template_kwargs={name: 1, "prefix": "P"}, max_tokens=1).status_code == 200
    assert prompt_of(server) == "P<user>hi</><assistant>"
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {name: 1}}
    assert server.http.post("/tokenize", json=body).status_code == 200


def test_stream(server: Running) -> None:
    got = events(server.chat(max_tokens=30, n=2, stream=True, stream_options={"include_usage": True}))
    for index in (0, 1):
        deltas = [c["delta"] for event in got for c in event["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == STORY.encode()[:30].decode("utf-8", "replace")
    assert got[-1]["usage"]["completion_tokens"] == 60 and got[-1]["choices"] == []
    assert {event["object"] for event in got} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(server: Running, stream: bool) -> None:
    response = server.chat(max_tokens=2, logprobs=True, top_logprobs=2, stream=stream)
    choices = [c for e in events(response) for c in e["choices"]] if stream else response.json()["choices"]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["token"] for entry in entries] == ["O", "n"]
    assert entries[0]["bytes"] == [79] and entries[0]["logprob"] == pytest.approx(-0.79)
    assert [top["token"] for top in entries[0]["top_logprobs"]] == ["O", "\x00"]


def test_without_a_template(start: Start) -> None:
    server = start(tokenizer=ByteTokenizer(template=False))
    error = server.chat().json()["error"]
    assert "template" in error["message"] and error["param"] == "messages"


def test_an_empty_prompt_needs_a_token_that_begins_a_text(start: Start) -> None:
    server = start(tokenizer=ByteTokenizer(bos=False))
    assert server.complete(prompt="").status_code == 400
    assert server.complete(prompt="a").status_code == 200


def test_a_turn_in_parts_can_be_continued(server: Running) -> None:
    parts = [{"type": "text", "text": "well"}, {"type": "text", "text": "then "}]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": parts}]
    assert server.chat(messages=messages, continue_final_message=True, max_tokens=1).status_code == 200
    assert prompt_of(server) == "<user>hi</><assistant>well\nthen "


def test_the_tokens_that_end_an_answer_go_with_every_request(start: Start) -> None:
    tokenizer = ByteTokenizer()
    # The second is no token of the model, as with a tokenizer given by --tokenizer.
    tokenizer.stop_token_ids = (ord("u"), 99999)
    server = start(tokenizer=tokenizer)
    for ask in (server.chat, server.complete):
        answer = ask(max_tokens=30, return_token_ids=True).json()["choices"][0]
        assert (answer["finish_reason"], answer["token_ids"]) == ("stop", [*b"Once u"])
        assert ask(max_tokens=30, ignore_eos=True).json()["choices"][0]["finish_reason"] == "length"
        ask(max_tokens=3, stop_token_ids=[5])
        assert server.client.requests[-1].params.stop_token_ids == (5, ord("u"))


def test_what_is_added_to_a_conversation_is_the_tokenizers_to_decide(server: Running) -> None:
    asked: dict[bool | None, list[int]] = {None: [*b"<user>hi</><assistant>"]}
    asked |= {False: asked[None], True: [BOS, *asked[None]]}
    for add, wanted in asked.items():
        fields = {"add_special_tokens": add, "messages": [{"role": "user", "content": "hi"}]}
        assert server.post("/tokenize", fields).json()["tokens"] == wanted
        assert server.chat(max_tokens=1, return_token_ids=True, **fields).json()["prompt_token_ids"] == wanted
