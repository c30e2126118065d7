"""No text of a request is in the log unless it is asked for; then prompts and answers of every API are."""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request
from homenode.logs.forms import JSON, TEXT, form_of
from homenode.sampling import SamplingParams
from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServedModelConfig, ServerConfig
from homenode.server.models.request_log import RequestLog
from homenode.server.models.served_model import ModelParts
from homenode.server.models.text_work import TextWork
from tests.server.conftest import Running, Start
from tests.server.fakes import STORY, ByteTokenizer, ScriptedClient
from tests.server.written_answers import Writer
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


@pytest.fixture(scope="module")
def answers_alone(start: Start) -> Running:
    return start(log_outputs=True)


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_one_is_asked_for_without_the_other(
    answers_alone: Running, caplog: pytest.LogCaptureFixture, echo: bool, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    name = f"one-{echo}-{stream}"
    answer = answers_alone.post(
        "/v1/completions",
        {"prompt": SECRET, "max_tokens": 9, "echo": echo, "stream": stream},
        headers={"x-request-id": name},
    )
    assert ("zyxomatic" in answer.text) == echo
    wait_until(lambda: bool(lines(caplog, name)))
    assert len(lines(caplog, name)) == 1 and "zyxomatic" not in caplog.text
    assert json.dumps(STORY[:9])[1:-1] in caplog.text


def test_of_many_prompts_and_answers_the_first_have_lines(
    logging_all: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ask(logging_all, "/v1/completions", "many", prompt=[f"p{i:03}" for i in range(40)], n=2, max_tokens=1)
    wait_until(lambda: bool(lines(caplog, "many")) and lines(caplog, "many")[-1].endswith("answers"))
    told = [text.removeprefix("request many: ") for text in lines(caplog, "many")]
    assert [f"p{i:03}" in text for i, text in enumerate(told[:16])] == [True] * 16
    assert told[16] == "and 24 more prompts" and told[33] == "and 64 more answers" and len(told) == 34
    assert all(text.startswith("answer of 1 token ") for text in told[17:33])


def test_of_many_texts_of_which_vectors_are_made_the_first_have_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    writer = Writer("", log_requests=True)
    writer.pooling = PoolingReady("mean", 2)
    vector = array("f", [1.0, 2.0]).tobytes()
    writer._script = lambda request: [Output(request.id, finish_reason="stop", pooled=vector)]
    asked = {"input": [f"p{i:03}" for i in range(20)]}
    answer = writer.ask("/v1/embeddings", asked, **{"x-request-id": "vectors"})
    assert answer.status_code == 200, answer.text
    told = lines(caplog, "vectors")
    assert [f"p{i:03}" in text for i, text in enumerate(told[:16])] == [True] * 16
    assert told[16:] == ["request vectors: and 4 more prompts"]


async def write_prompts(requests: Sequence[Request], tokenizer: ByteTokenizer, most: int = 2048) -> int:
    """Have the lines of these requests written. The result is the number of turns that others had meanwhile."""
    log = RequestLog(ServedModelConfig(log_requests=True, max_log_len=most), tokenizer, TextWork(1))
    writes, turns = asyncio.create_task(log.write_prompts(requests)), 0
    while not writes.done():
        await asyncio.sleep(0)
        turns += 1
    await writes
    return turns


class Reads(ByteTokenizer):
    """Counts the tokens of which it has made text."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.tokens += len(ids)
        return super().decode(ids, skip_special_tokens)


def test_one_large_request_lets_others_have_turns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    params = SamplingParams(grammar="g" * 2**20, logit_bias=dict.fromkeys(range(100_000), 1.0), max_tokens=77)
    requests = [Request(id=i, prompt_ids=[65] * 4096, params=params, name="large") for i in range(2048)]
    tokenizer = Reads()
    assert asyncio.run(write_prompts(requests, tokenizer)) >= 16
    assert tokenizer.tokens == 16 * 2048
    told = lines(caplog, "large")
    assert len(told) == 17 and told[-1].endswith("and 2032 more prompts")
    assert all(len(text) < 2048 + 1024 + 100 for text in told)


@pytest.mark.parametrize("text", ["a", "\n", "\\", "\x00", "é", "猫", "🦊", "\U000e0001", "\"'"])
@pytest.mark.parametrize("form", [TEXT, JSON])
def test_no_line_is_too_long_for_the_log(caplog: pytest.LogCaptureFixture, text: str, form: str) -> None:
    caplog.set_level(logging.INFO)
    most = 2**18
    data = (text * most)[:most].encode()

    class Whole(ByteTokenizer):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            return data.decode()

    params = SamplingParams(grammar='"' * 2048)
    asyncio.run(write_prompts([Request(id=1, prompt_ids=[65], params=params, name="long")], Whole(), most))
    (record,) = (each for each in caplog.records if each.getMessage().startswith("request long: "))
    line = form_of("server", form).format(record)
    assert len(line.encode()) < 2**20
    assert (text == "a") <= (f"'{'a' * most}'" in line), "what fits is there as a whole"


def test_nothing_of_a_request_is_left_where_its_prompt_cannot_be_logged() -> None:
    class Broken(ByteTokenizer):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            raise RuntimeError("no text")

    config = ServerConfig(port=0, log_requests=True)
    client = ScriptedClient()
    state = ServerState([ModelParts(client, Broken(), config)], config)

    async def ask_once() -> int:
        transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            return (await asking.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1})).status_code

    assert asyncio.run(ask_once()) == 500
    (model,) = state.models
    assert not model.active and not client.requests
