"""/v1/completions: what comes back for what is asked, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from homenode.engine.messages import QueueLimits
from tests.server.conftest import Running, Start
from tests.server.fakes import BOS, EOS, MAX_MODEL_LEN, STORY, VOCAB, ScriptedClient, scripted


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_defaults(server: Running) -> None:
    answer = server.complete().json()
    assert (
        answer["object"] == "text_completion" and answer["model"] == "story-teller" and answer["id"].startswith("cmpl-")
    )
    assert answer["choices"] == [{"index": 0, "text": STORY[:16], "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 16,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert server.client.requests[-1].prompt_ids == [BOS, *b"hi"]


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("a", [[BOS, 97]]),
        (["a", "bc"], [[BOS, 97], [BOS, 98, 99]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [[BOS]]),
    ],
)
def test_every_form_of_prompt(server: Running, prompt: Any, ids: list[list[int]]) -> None:
    answer = server.complete(prompt=prompt, max_tokens=2, return_token_ids=True).json()
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == ids
    assert [choice["token_ids"] for choice in answer["choices"]] == [list(b"On")] * len(ids)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize(
    ("queue", "sent", "flag"),
    [
        (QueueLimits(2, 3), {"prompt": ["a"] * 6}, "--max-num-queued-requests"),
        (QueueLimits(2, 3), {"prompt": ["a"] * 2, "n": 3}, "--max-num-queued-requests"),
        (QueueLimits(2, 0, 5), {"prompt": [[5] * 3] * 4}, "--max-num-queued-tokens"),
        (QueueLimits(2, 9, 5), {"prompt": [5] * 3, "n": 4}, "--max-num-queued-tokens"),
    ],
)
def test_more_at_once_than_the_queue_ever_takes(
    start: Start, queue: QueueLimits, sent: dict[str, Any], flag: str
) -> None:
    """Such a request was told to try again later, whenever it came."""
    client = ScriptedClient()
    client.ready = msgspec.structs.replace(client.ready, queue=queue)
    server = start(client)
    refused = server.complete(**sent)
    assert refused.status_code == 400 and flag in refused.json()["error"]["message"], refused.text
    if "n" in sent:
        sent = {**sent, "n": sent["n"] - 1}
    else:
        sent = {**sent, "prompt": sent["prompt"][1:]}
    assert server.complete(**sent, max_tokens=1).status_code == 200


def test_parameters_reach_the_engine(server: Running) -> None:
    sent = {
        "max_tokens": 7, "min_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "top_n_sigma": 1.5,
        "min_p": 0.1, "presence_penalty": 1.0,
        "frequency_penalty": -1.0, "repetition_penalty": 1.1, "seed": -5, "stop_token_ids": [9], "ignore_eos": True,
        "logprobs": 2,
    }  # fmt: skip
    assert server.complete(**sent, logit_bias={"65": -100}, priority=3, cache_salt="mine", echo=True).status_code == 200
    request = server.client.requests[-1]
    for name, value in sent.items():
        assert getattr(request.params, name) == (tuple(value) if isinstance(value, list) else value), name
    assert request.params.logit_bias == {65: -100.0} and request.params.prompt_logprobs == 2
    assert request.priority == 3 and request.cache_salt == "mine"


_SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": _SAID}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"model": "story-teller", "messages": _SAID, "max_tokens": 5}),
        ("/api/chat", {"model": "story-teller", "messages": _SAID, "stream": False}),
        ("/api/generate", {"model": "story-teller", "prompt": "hi", "stream": False}),
    ],
)
def test_a_request_of_any_api_may_leave_drafts_out(server: Running, path: str, body: dict[str, Any]) -> None:
    for more, speculative in (({}, True), ({"speculative": True}, True), ({"speculative": False}, False)):
        answer = server.post(path, {**body, **more})
        assert answer.status_code == 200, answer.text
        assert server.client.requests[-1].speculative is speculative
    assert server.post(path, {**body, "speculative": 3}).status_code == 400


def test_the_models_own_sampling_defaults_fill_what_is_left_open(start: Start) -> None:
    own = {"temperature": 0.5, "top_p": 0.9, "top_k": 40.0, "repetition_penalty": 1.1}
    found = []
    for settings in ({}, {"generation_config": "none"}):
        client = ScriptedClient()
        client.ready = msgspec.structs.replace(client.ready, sampling_defaults=own)
        server = start(client, **settings)
        server.complete(top_p=0.25)
        params = client.requests[-1].params
        found.append((params.temperature, params.top_p, params.top_k, params.repetition_penalty))
        name = server.http.get("/v1/models").json()["data"][0]["id"]
        shown = server.post("/api/show", {"model": name}).json()["parameters"]
        assert shown == ("" if settings else "temperature 0.5\ntop_p 0.9\ntop_k 40.0\nrepetition_penalty 1.1")
    assert found == [(0.5, 0.25, 40, 1.1), (1.0, 0.25, 0, 1.0)]


def test_nulls_mean_the_defaults(server: Running) -> None:
    names = (
        "max_tokens temperature top_p n stop stream logprobs echo seed logit_bias user suffix best_of "
        "stream_options model"
    )
    answer = server.complete(**dict.fromkeys(names.split()))
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == STORY[:16]
    params = server.client.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.logprobs) == (1.0, 1.0, 0, None, None)


def test_n_choices_of_each_prompt_are_told_apart(server: Running) -> None:
    answer = server.complete(prompt=["a", "b"], n=3, max_tokens=2, seed=2**63 - 1).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == 4 and answer["usage"]["completion_tokens"] == 12
    assert [r.params.seed for r in server.client.requests[-6:]] == [2**63 - 1, -(2**63), -(2**63) + 1] * 2
    assert len({request.id for request in server.client.requests}) == len(server.client.requests)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_a_stop_string_ends_the_text_before_it(start: Start, stream: bool, chunk: int) -> None:
    server = start(ScriptedClient(lambda request: scripted(request, chunk)))
    for stop, text in (
        ("wör", "Once upon a time, a "),
        (["zzz", "猫 and", "time!"], "Once upon a time, a wörld of "),
        ("O", ""),
    ):
        response = server.complete(stop=stop, max_tokens=100, stream=stream, logprobs=0, return_token_ids=True)
        choices = [c for e in events(response) for c in e["choices"]] if stream else response.json()["choices"]
        assert "".join(choice["text"] for choice in choices) == text
        assert choices[-1]["finish_reason"] == "stop"
        assert len(server.client.requests[-1].prompt_ids) == 3
        assert server.client.aborts[-1][0] == server.client.requests[-1].id  # the engine was told to stop
        # log-probabilities cover the shown text and no token of the stop string, the ids everything that was generated
        tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
        assert len(tokens) == len(text.encode())
        ids = [token for choice in choices for token in choice["token_ids"]]
        matched = next(s for s in ([stop] if isinstance(stop, str) else stop) if s in STORY)
        assert bytes(ids).decode() == text + matched


@pytest.mark.parametrize("stream", [False, True])
def test_the_token_that_ends_has_no_text(server: Running, stream: bool) -> None:
    response = server.complete(prompt="the end", return_token_ids=True, logprobs=1, stream=stream)
    choices = [c for e in events(response) for c in e["choices"]] if stream else response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "Once "
    assert [token for choice in choices for token in choice["token_ids"]] == [*b"Once ", EOS]
    assert [token for choice in choices for token in choice["logprobs"]["tokens"]][-1] == "</s>"
    assert choices[-1]["finish_reason"] == "stop"
    stopped = server.complete(prompt="x", stop_token_ids=[ord("c")], return_token_ids=True).json()["choices"][0]
    assert stopped["text"] == "On" and stopped["token_ids"] == [*b"Onc"] and stopped["finish_reason"] == "stop"


def test_a_stream_adds_up_to_the_whole(server: Running) -> None:
    fields = {"max_tokens": 90, "logprobs": 2, "return_token_ids": True, "echo": True, "stop": ["never"]}
    whole = server.complete(**fields).json()["choices"][0]
    streamed = events(server.complete(**fields, stream=True))
    choices = [event["choices"][0] for event in streamed]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for choice in choices for entry in choice["logprobs"][name]] == whole["logprobs"][name]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"] and "prompt_token_ids" not in choices[1]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert all("usage" not in event for event in streamed)


def test_a_character_is_never_cut(server: Running) -> None:
    texts = [event["choices"][0]["text"] for event in events(server.complete(max_tokens=60, stream=True))]
    assert "".join(texts) == (STORY * 2).encode()[:60].decode()
    assert "�" not in "".join(texts)
    cut = server.complete(max_tokens=22).json()["choices"][0]["text"]
    assert cut == STORY.encode()[:22].decode("utf-8", "replace") and cut.endswith("�")


def test_usage_in_a_stream(server: Running) -> None:
    last = events(server.complete(max_tokens=5, stream=True, stream_options={"include_usage": True}))
    assert [event["usage"] for event in last[:-1]] == [None] * 5
    assert last[-1]["choices"] == [] and last[-1]["usage"]["completion_tokens"] == 5
    running = events(server.complete(max_tokens=3, stream=True, stream_options={"continuous_usage_stats": True}))
    assert [event["usage"]["completion_tokens"] for event in running] == [1, 2, 3]


def test_echo_and_scores_of_the_prompt(server: Running) -> None:
    choice = server.complete(prompt=[BOS, *"wö".encode(), 33], max_tokens=1, echo=True, logprobs=1).json()["choices"][0]
    assert choice["text"] == "wö!O"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["<s>", "w", "�", "�", "!", "O"]
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 3]
    assert logprobs["token_logprobs"] == pytest.approx([None, -1.19, -1.95, -1.82, -0.33, -0.79])
    assert logprobs["top_logprobs"][0] is None and logprobs["top_logprobs"][1] == {"w": pytest.approx(-1.19)}


@pytest.mark.parametrize("stream", [False, True])
def test_no_new_tokens_only_scores_the_prompt(server: Running, stream: bool) -> None:
    response = server.complete(
        prompt=[1, 2, 3], max_tokens=0, echo=True, logprobs=1, stream=stream, return_token_ids=True
    )
    body = events(response)[0] if stream else response.json()
    choice = body["choices"][0]
    assert choice["text"] == "\x01\x02\x03" and choice["finish_reason"] == "length" and choice["token_ids"] == []
    assert choice["logprobs"]["token_logprobs"] == [None, -0.02, -0.03]
    if not stream:
        assert body["usage"]["completion_tokens"] == 0


def test_logprobs_zero_has_the_drawn_tokens_only(server: Running) -> None:
    logprobs = server.complete(max_tokens=2, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["O", "n"] and logprobs["top_logprobs"] is None


def test_max_tokens_is_cut_to_the_context(server: Running) -> None:
    answer = server.complete(prompt=[5] * (MAX_MODEL_LEN - 4), max_tokens=10**9).json()
    assert answer["usage"]["completion_tokens"] == 4
    assert server.client.requests[-1].params.max_tokens == 4


@pytest.mark.parametrize(
    "fields", [{"max_tokens": -1}, {"max_completion_tokens": -1}, {"max_completion_tokens": -1, "max_tokens": 3}]
)
def test_minus_one_is_no_limit_but_the_contexts(server: Running, fields: dict[str, int]) -> None:
    answers = [server.chat(**fields)]
    if "max_completion_tokens" not in fields:
        answers.append(server.complete(**fields))
    for answer, request in zip(answers, server.client.requests[-len(answers) :], strict=True):
        assert answer.status_code == 200, answer.text
        assert request.params.max_tokens == MAX_MODEL_LEN - len(request.prompt_ids)


def test_other_numbers_of_tokens_below_one_are_refused_with_what_to_do(server: Running) -> None:
    for answer in (
        server.complete(max_tokens=-2),
        server.chat(max_tokens=0),
        server.chat(max_tokens=-2),
        server.chat(max_completion_tokens=-(2**40)),
    ):
        assert answer.status_code == 400 and "leave it out, or send -1" in answer.json()["error"]["message"]


def test_special_tokens_show_when_asked(server: Running) -> None:
    assert server.complete(prompt="a", add_special_tokens=False, echo=True, max_tokens=0, return_token_ids=True).json()[
        "choices"
    ][0]["prompt_token_ids"] == [97]
    assert server.complete(skip_special_tokens=False, max_tokens=1).status_code == 200
    assert VOCAB > EOS
