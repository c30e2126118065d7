"""A conversation that is longer than the context: the words by which programs know it, and what is dropped of it."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.server.core.prompt_cut import PromptCut, cut_tokens
from homenode.server.core.prompt_forms.truncation import droppable_messages
from tests.server.conftest import Running
from tests.server.fakes import MAX_MODEL_LEN

LONG = "The quick brown fox. " * MAX_MODEL_LEN
SAID = [{"role": "user", "content": LONG}]
KNOWN = re.compile(rf"maximum context length is {MAX_MODEL_LEN} tokens")
DOORS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": SAID}),
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": [1] * MAX_MODEL_LEN}),
    ("/v1/completions", {"prompt": ["a", LONG]}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/responses/input_tokens", {"input": LONG}),
    ("/v1/messages", {"max_tokens": 5, "messages": SAID}),
    ("/v1/messages/count_tokens", {"messages": SAID}),
    ("/api/chat", {"messages": SAID, "truncate": False}),
    ("/api/generate", {"prompt": LONG, "truncate": False}),
    ("/api/generate", {"prompt": LONG, "raw": True, "truncate": False}),
]


def said_of(body: dict[str, Any]) -> tuple[str, str | None]:
    """The words and the code of a failure in any API."""
    error = body["error"]
    return (error, body.get("code")) if isinstance(error, str) else (error["message"], error.get("code"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), DOORS, ids=[f"{path} {number}" for number, (path, _) in enumerate(DOORS)])
def test_every_door_says_it_in_the_words_of_the_field(
    server: Running, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = server.post(path, {"model": "story-teller", **body, **({"stream": stream} if "token" not in path else {})})
    if path == "/v1/responses" and stream:
        assert answer.status_code == 200
        return
    if path == "/v1/messages/count_tokens" and answer.status_code == 200:
        return  # which counts what does not fit, too
    assert answer.status_code == 400, answer.text
    words, code = said_of(answer.json())
    assert KNOWN.search(words), words
    assert re.search(r"has (at least )?\d+ tokens", words), words
    if path.startswith("/v1/messages"):
        assert words.startswith("prompt is too long: ") and f"> {MAX_MODEL_LEN} maximum" in words
    else:
        assert code == "context_length_exceeded"


def test_a_streamed_response_ends_as_failed(server: Running) -> None:
    answer = server.post("/v1/responses", {"input": LONG, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [event["type"] for event in told] == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in told] == [0, 1, 2]
    assert told[0]["response"]["status"] == "in_progress" and told[0]["response"]["error"] is None
    failed = told[-1]["response"]
    assert failed["status"] == "failed" and failed["output"] == [] and failed["id"] == told[0]["response"]["id"]
    assert failed["error"]["code"] == "context_length_exceeded" and KNOWN.search(failed["error"]["message"])
    assert server.post("/v1/responses", {"input": "hi", "stream": True, "tool_choice": "required"}).status_code == 400


TURNS = [
    message
    for number in range(30)
    for message in (
        {"role": "user", "content": f"Question {number}?"},
        {"role": "assistant", "content": f"Answer {number}."},
    )
]
SYSTEM = {"role": "system", "content": "Be short."}
LAST = {"role": "user", "content": "What is NUMA?"}


def test_a_chat_of_ollama_drops_its_oldest_turns(server: Running) -> None:
    asked = {"model": "story-teller", "stream": False, "messages": [SYSTEM, *TURNS, LAST]}
    for more in ({}, {"truncate": True}, {"truncate": None}):
        answer = server.post("/api/chat", {**asked, **more, "options": {"num_predict": 4}})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-homenode-ignored"] == "messages"
        prompt = bytes(server.client.requests[-1].prompt_ids).decode()
        assert prompt.startswith("<system>Be short.</><user>Question ") and "What is NUMA?" in prompt
        assert "Question 0?" not in prompt and "Answer 29." in prompt
        assert len(prompt) + 4 <= MAX_MODEL_LEN < len(prompt) + 4 + len("<user>Question 9?</><assistant>Answer 9.</>")
    whole = server.post("/api/chat", {**asked, "truncate": False})
    assert whole.status_code == 400 and KNOWN.search(whole.json()["error"])
    short = server.post("/api/chat", {**asked, "messages": [SYSTEM, LAST]})
    assert "x-homenode-ignored" not in short.headers


def test_there_is_room_for_an_answer_where_turns_are_dropped(server: Running) -> None:
    for more in ({}, {"options": {"num_predict": 10 * MAX_MODEL_LEN}}):
        server.post("/api/chat", {"model": "story-teller", "stream": False, "messages": [*TURNS, LAST], **more})
        assert server.client.requests[-1].params.max_tokens >= MAX_MODEL_LEN // 4


def test_within_the_last_turn_the_oldest_answers_are_dropped(server: Running) -> None:
    steps = [
        message
        for number in range(30)
        for message in (
            {"role": "assistant", "content": f"Step {number}"},
            {"role": "tool", "content": f"Done {number}", "tool_name": "look"},
        )
    ]
    answer = server.post("/api/chat", {"model": "story-teller", "stream": False, "messages": [SYSTEM, LAST, *steps]})
    prompt = bytes(server.client.requests[-1].prompt_ids).decode()
    assert answer.status_code == 200 and "What is NUMA?" in prompt and "Done 29" in prompt and "Step 0" not in prompt


def test_what_is_dropped_is_whole_and_oldest_first() -> None:
    draw = random.Random(7)
    for _ in range(500):
        roles = draw.choices(["system", "developer", "user", "assistant", "tool"], k=draw.randint(0, 12))
        units = droppable_messages([{"role": role} for role in roles])
        dropped = [*itertools.chain(*units)]
        assert dropped == sorted(set(dropped))
        assert not any(roles[place] in ("system", "developer") for place in dropped)
        said = [place for place, role in enumerate(roles) if role not in ("system", "developer")]
        users = [place for place in said if roles[place] == "user"]
        assert not users or users[-1] not in dropped
        assert not said or said[-1] not in dropped
        for unit in units:  # no result stays whose call is dropped
            behind = next((place for place in said if place > unit[-1]), None)
            assert behind is None or roles[behind] != "tool"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/generate", {"prompt": f"{LONG}The end."}, "prompt"),
        ("/api/generate", {"prompt": f"{LONG}The end.", "raw": True}, "prompt"),
        ("/api/generate", {"prompt": "The end.", "context": [65] * 2 * MAX_MODEL_LEN}, "prompt"),
        ("/api/chat", {"messages": [{"role": "user", "content": f"{LONG}The end."}]}, "messages"),
    ],
)
@pytest.mark.parametrize("keep", [None, 0, 9, -1, 10 * MAX_MODEL_LEN])
def test_ollama_cuts_a_long_prompt_behind_its_first_tokens(
    server: Running, path: str, body: dict[str, Any], field: str, keep: int | None
) -> None:
    options = {"num_predict": 4} | ({} if keep is None else {"num_keep": keep})
    answer = server.post(path, {"model": "story-teller", "stream": False, **body, "options": options})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-homenode-ignored"] == field
    ids = server.client.requests[-1].prompt_ids
    assert len(ids) == MAX_MODEL_LEN - 4
    if keep in (None, 0, 9):
        assert "The end." in bytes(token for token in ids if token < 256).decode()
    refused = server.post(path, {"model": "story-teller", "stream": False, **body, "truncate": False})
    assert refused.status_code == 400 and KNOWN.search(refused.json()["error"])


def test_a_prompt_that_fits_is_not_cut(server: Running) -> None:
    answer = server.post("/api/generate", {"model": "story-teller", "stream": False, "prompt": "Hello"})
    assert answer.status_code == 200 and "x-homenode-ignored" not in answer.headers


@given(
    length=st.integers(1, 60),
    keep=st.integers(-1, 70),
    context=st.integers(2, 40),
    max_tokens=st.none() | st.integers(1, 50),
    begins=st.integers(0, 1),
)
def test_what_is_cut_has_its_beginning_and_its_end_and_leaves_room(
    length: int, keep: int, context: int, max_tokens: int | None, begins: int
) -> None:
    ids = list(range(length))
    kept = cut_tokens(
        ids, PromptCut(keep, "prompt"), most=context - 1, context=context, max_tokens=max_tokens, begins=begins
    )
    if length < context:
        assert kept == ids
        return
    assert 1 <= len(kept) <= context and kept == sorted(set(kept)) and kept[-1] == ids[-1]
    assert len(kept) == max(1, context - min(max_tokens or context, context // 4))
    first = next((at for at, token in enumerate(kept) if token != at), len(kept))
    assert first >= min(keep + begins if keep >= 0 else len(kept) - 1, len(kept) - 1)
