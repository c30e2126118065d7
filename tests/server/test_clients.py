"""The official `openai` client against the server: what it sends is taken, what it gets it can read."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.conftest import Start
from tests.server.fakes import STORY, ScriptedClient
from tests.server.test_failures import failing

MESSAGES: list[dict[str, str]] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "tell me"}]


@pytest.fixture(scope="module")
def scripted_client() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture(scope="module")
def client(start: Start, scripted_client: ScriptedClient) -> Iterator[openai.OpenAI]:
    server = start(scripted_client, api_key=("secret",))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0, timeout=20) as official:
        yield official


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["story-teller"]
    assert client.models.retrieve("story-teller").owned_by == "homenode"


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="story-teller", prompt="x", max_tokens=4, logprobs=2, n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["xOnce"] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.text_offset == [0, 0, 1, 2, 3, 4] and logprobs.token_logprobs is not None
    assert answer.usage is not None and answer.usage.total_tokens == 10
    assert answer.usage.prompt_tokens_details is not None and answer.usage.prompt_tokens_details.cached_tokens == 3


def test_completion_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="story-teller", prompt="x", max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == STORY[:20]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 20


def test_chat_and_its_answer_sent_back(client: openai.OpenAI, scripted_client: ScriptedClient) -> None:
    answer = client.chat.completions.create(
        model="story-teller",
        messages=MESSAGES,
        max_completion_tokens=4,
        logprobs=True,
        top_logprobs=2,
        seed=1,
        user="me",
        metadata={"a": "b"},
    )  # type: ignore[call-overload]
    message = answer.choices[0].message
    assert message.content == "Once" and message.role == "assistant" and message.tool_calls is None
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "O"
    again = client.chat.completions.create(
        model="story-teller", messages=[*MESSAGES, message.model_dump(), MESSAGES[1]], max_tokens=1
    )
    assert again.choices[0].finish_reason == "length"
    assert bytes(scripted_client.requests[-1].prompt_ids).decode().count("<assistant>Once</>") == 1


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="story-teller", messages=MESSAGES, stop=["wör"], n=2) as stream:
        whole = stream.get_final_completion()
    assert [choice.message.content for choice in whole.choices] == [STORY[:20]] * 2


def test_extra_fields(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="story-teller",
        prompt="x",
        max_tokens=3,
        extra_body={"top_k": 5, "ignore_eos": True, "return_token_ids": True},
    )
    assert answer.choices[0].token_ids == [*b"Onc"]  # type: ignore[attr-defined]


def test_errors_become_the_clients_own(client: openai.OpenAI, start: Start) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.completions.create(model="nope", prompt="x")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="story-teller", messages=MESSAGES, audio={"voice": "alloy", "format": "wav"}
        )
    assert refused.value.code == "unsupported_parameter" and refused.value.param == "audio"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    broken = start(failing("InternalError"))
    with pytest.raises(openai.InternalServerError):
        client.with_options(base_url=f"{broken.url}/v1").completions.create(model="story-teller", prompt="x")
    halfway = start(failing("InternalError", at=2))
    with pytest.raises(openai.APIError, match="failed on this request"):
        list(
            client.with_options(base_url=f"{halfway.url}/v1").completions.create(
                model="story-teller", prompt="x", stream=True
            )
        )
