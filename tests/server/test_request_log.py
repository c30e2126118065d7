"""No text of a request is in the log unless it is asked for; then prompts and answers of every API are."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.server.conftest import Running, Start
from tests.server.fakes import STORY
from tests.waiting import wait_until

SECRET = "zyxomatic\nquokka"
CHAT = [{"role": "user", "content": SECRET}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": SECRET, "max_tokens": 9},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 9},
    "/v1/responses": {"input": SECRET, "max_output_tokens": 9},
    "/v1/messages": {"model": "m", "messages": CHAT, "max_tokens": 9},
    "/api/chat": {"model": "m", "messages": CHAT, "options": {"num_predict": 9}},
    "/api/generate": {"model": "m", "prompt": SECRET, "options": {"num_predict": 9}},
}


@pytest.fixture(scope="module")
def logging_all(start: Start) -> Running:
    return start(served_model_name=("m",), log_requests=True, log_outputs=True, max_log_len=40)


@pytest.fixture(scope="module")
def silent(start: Start) -> Running:
    return start(served_model_name=("m",))


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [text for text in caplog.messages if text.startswith(f"request {name}: ")]


def ask(server: Running, path: str, name: str, **more: object) -> None:
    answer = server.post(path, {**ASKED[path], **more}, headers={"x-request-id": name})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKED)
def test_prompt_and_answer_have_a_line_each(
    logging_all: Running, caplog: pytest.LogCaptureFixture, path: str, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    name = f"{path.replace('/', '-')}-{stream}"
    ask(logging_all, path, name, stream=stream)
    wait_until(lambda: len(lines(caplog, name)) == 2)
    prompt, answer = lines(caplog, name)
    assert "zyxomatic\\nquokka" in prompt and '"max_tokens":9' in prompt and "prompt of " in prompt
    assert repr(STORY[:9]) in answer and "answer of 9 tokens (length)" in answer
    assert "\n" not in prompt + answer


def test_long_texts_are_cut_and_each_answer_is_told(logging_all: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask(logging_all, "/v1/completions", "long", prompt="p" * 60, max_tokens=60, n=2)
    wait_until(lambda: len(lines(caplog, "long")) == 3)
    prompt, *answers = lines(caplog, "long")
    assert "p" * 37 in prompt and "p" * 38 not in prompt and prompt.endswith("(and more)")  # `<s>` is shown, too
    assert all(STORY[:40] in text and STORY[:41] not in text and text.endswith("(and more)") for text in answers)


def test_nothing_of_it_is_logged_unasked(silent: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for path in ASKED:
        ask(silent, path, "unasked")
    assert "zyxomatic" not in caplog.text and STORY[:9] not in caplog.text


def test_one_is_asked_for_without_the_other(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = start(log_outputs=True)
    server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 9}, headers={"x-request-id": "one"})
    wait_until(lambda: bool(lines(caplog, "one")))
    assert len(lines(caplog, "one")) == 1 and "zyxomatic" not in caplog.text
    assert json.dumps(STORY[:9])[1:-1] in caplog.text
