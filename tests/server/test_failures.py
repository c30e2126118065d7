"""Whatever is wrong with a request, the answer is an OpenAI error body with the right status, and the next request
works.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import socket
from collections.abc import Iterator
from typing import Any, cast

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.engine.messages import Output
from tests.examples import examples
from tests.server.conftest import Running, Start
from tests.server.fakes import MAX_MODEL_LEN, VOCAB, ByteTokenizer, ScriptedClient, scripted

MESSAGES = [{"role": "user", "content": "hi"}]
COMPLETIONS = [
    ({"model": "nope"}, 404, "model", "model_not_found"),
    ({"max_tokens": -2}, 400, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, 400, "max_tokens", "invalid_value"),
    ({"max_tokens": 1e300}, 400, "max_tokens", "invalid_value"),
    ({"max_tokens": True}, 400, "max_tokens", "invalid_value"),
    ({"temperature": "hot"}, 400, "temperature", "invalid_value"),
    ({"temperature": 100.1}, 400, "temperature", "invalid_value"),
    ({"temperature": False}, 400, "temperature", "invalid_value"),
    ({"top_p": -0.1}, 400, "top_p", "invalid_value"),
    ({"top_k": -2}, 400, "top_k", "invalid_value"),
    ({"min_p": 2}, 400, "min_p", "invalid_value"),
    ({"top_n_sigma": "wide"}, 400, "top_n_sigma", "invalid_value"),
    ({"presence_penalty": 3}, 400, "presence_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", "invalid_value"),
    ({"seed": 2**63}, 400, "seed", "invalid_value"),
    ({"seed": False}, 400, "seed", "invalid_value"),
    ({"n": 0}, 400, "n", "invalid_value"),
    ({"n": 129}, 400, "n", "invalid_value"),
    ({"stop": ""}, 400, "stop", "invalid_value"),
    ({"stop": ["a"] * 129}, 400, "stop", "invalid_value"),
    ({"stop_token_ids": [VOCAB]}, 400, "stop_token_ids", "invalid_value"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias", "invalid_value"),
    ({"logit_bias": {str(VOCAB): 1}}, 400, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, 400, "logit_bias", "invalid_value"),
    ({"logprobs": 21}, 400, "logprobs", "invalid_value"),
    ({"prompt": []}, 400, "prompt", "invalid_value"),
    ({"prompt": [[]]}, 400, "prompt", "invalid_value"),
    ({"prompt": ["a", 1]}, 400, "prompt", "invalid_value"),
    ({"prompt": [1, -1]}, 400, "prompt[1]", "invalid_value"),
    ({"prompt": [1, 999999]}, 400, "prompt", "invalid_value"),
    ({"prompt": [[1], [2, VOCAB]]}, 400, "prompt[1]", "invalid_value"),
    ({"prompt": [1] * MAX_MODEL_LEN}, 400, "prompt", "context_length_exceeded"),
    ({"prompt": "x" * MAX_MODEL_LEN}, 400, "prompt", "context_length_exceeded"),
    ({"prompt": None}, 400, "prompt", "missing_required_parameter"),
    ({"prompt": ["a"] * 100, "n": 128}, 400, "n", "invalid_value"),
    ({"suffix": "end"}, 400, "suffix", "unsupported_parameter"),
    ({"best_of": 2}, 400, "best_of", "invalid_value"),
    ({"stream": 1}, 400, "stream", "invalid_value"),
]
CHATS = [
    ({"messages": []}, 400, "messages", "invalid_value"),
    ({"messages": "hi"}, 400, "messages", "invalid_value"),
    ({"messages": [{"content": "hi"}]}, 400, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, 400, "messages[0].role", "invalid_value"),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
        400,
        "messages[0].tool_calls[0].function",
        "missing_required_parameter",
    ),
    ({"messages": [{"role": "user", "content": "hi" * 200}]}, 400, "messages", "context_length_exceeded"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].function", "missing_required_parameter"),
    ({"tool_choice": "often"}, 400, "tool_choice", "invalid_value"),
    ({"functions": [{}]}, 400, "functions[0].name", "missing_required_parameter"),
    ({"response_format": {}}, 400, "response_format.type", "missing_required_parameter"),
    (
        {"response_format": {"json_schema": {}, "type": "json_schema"}},
        400,
        "response_format.json_schema",
        "missing_required_parameter",
    ),
    ({"modalities": ["text", "audio"]}, 400, "modalities[1]", "unsupported_parameter"),
    ({"audio": {"voice": "a"}}, 400, "audio", "unsupported_parameter"),
    ({"reasoning_effort": "much"}, 400, "reasoning_effort", "invalid_value"),
    ({"verbosity": "shout"}, 400, "verbosity", "invalid_value"),
    ({"thinking": {"type": "perhaps"}}, 400, "thinking.type", "invalid_value"),
    ({"top_logprobs": 2}, 400, "top_logprobs", "invalid_value"),
    ({"logprobs": 1}, 400, "logprobs", "invalid_value"),
    ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 0, "max_tokens": 5}, 400, "max_completion_tokens", "invalid_value"),
    ({"max_completion_tokens": -2}, 400, "max_completion_tokens", "invalid_value"),
    ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs", "invalid_value"),
    ({"continue_final_message": True, "add_generation_prompt": True}, 400, "continue_final_message", "invalid_value"),
]
BODIES = [
    b"",
    b"{",
    b"[]",
    b"1",
    b"null",
    b'"x"',
    b"{]",
    b"\xff\xfe",
    b'{"prompt":"\xff"}',
    b'{"prompt":"\\ud800"}',
    b"[" * 100_000,
]


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert "Traceback" not in error["message"] and "msgspec" not in error["message"]
    return dict(error)


def test_a_packed_body_is_refused_and_a_mark_of_its_coding_is_not(server: Running) -> None:
    head, body = {"Content-Type": "application/json"}, b'{"prompt": "a", "max_tokens": 1}'
    packed = server.http.post("/v1/completions", content=body, headers={**head, "Content-Encoding": "gzip"})
    assert packed.status_code == 415 and "Content-Encoding" in error_of(packed)["message"]
    marked = server.http.post("/v1/completions", content=b"\xef\xbb\xbf" + body, headers=head)
    assert marked.status_code == 200


@pytest.mark.parametrize(("fields", "status", "param", "code"), COMPLETIONS)
def test_completions_refuse_by_name(
    server: Running, fields: dict[str, Any], status: int, param: str, code: str
) -> None:
    response = server.complete(**fields)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert f"`{param}" in error["message"]


@pytest.mark.parametrize(("fields", "status", "param", "code"), CHATS)
def test_chats_refuse_by_name(server: Running, fields: dict[str, Any], status: int, param: str, code: str) -> None:
    response = server.post("/v1/chat/completions", {"messages": MESSAGES, **fields})
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)


def test_parts_of_no_known_type(server: Running) -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": "smell", "smell": "x"}]
    error = error_of(server.chat(messages=[{"role": "user", "content": parts}]))
    assert error["param"] == "messages[0].content[1].type" and error["code"] == "unsupported_parameter"
    assert "smell" in error["message"] and "'text' only" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", BODIES)
def test_bodies_that_are_no_json_object(server: Running, path: str, body: bytes) -> None:
    response = server.post(path, body)
    assert response.status_code == 400 and error_of(response)["code"] in (
        "invalid_json",
        "invalid_type",
        "missing_required_parameter",
    )


def test_numbers_that_are_none(server: Running) -> None:
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        response = server.post("/v1/completions", b'{"prompt":"x","temperature":' + number + b"}")
        assert response.status_code == 400 and error_of(response)


def test_whole_numbers_may_be_written_with_a_point(server: Running) -> None:
    body = b'{"prompt": [1.0, 2e0], "max_tokens": 3.0, "logit_bias": {"5": 1.0}, "temperature": 0.5}'
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200 and answer.json()["usage"]["total_tokens"] == 5
    assert server.client.requests[-1].prompt_ids == [1, 2] and server.client.requests[-1].params.temperature == 0.5


def test_missing_fields(server: Running) -> None:
    for path, field in (("/v1/completions", "prompt"), ("/v1/chat/completions", "messages"), ("/detokenize", "tokens")):
        error = error_of(server.post(path, {}))
        assert error["code"] == "missing_required_parameter" and error["param"] == field


def test_paths_methods_and_types(server: Running) -> None:
    assert error_of(server.http.get("/nope"))["code"] == "unknown_path"
    wrong = server.http.get("/v1/completions")
    assert wrong.status_code == 405 and error_of(wrong) and "POST" in wrong.headers["allow"]
    assert error_of(server.http.get("/v1/models/nope"))["code"] == "model_not_found"
    form = server.http.post("/v1/completions", data={"prompt": "x"})
    assert form.status_code == 415 and error_of(form)
    assert server.http.post(
        "/v1/completions", content=b'{"prompt":"x"}', headers={"content-type": "Application/JSON; charset=utf-8"}
    ).is_success


def test_bodies_too_large(start: Start) -> None:
    server = start(max_request_body=2000)
    declared = server.complete(prompt="x" * 3000)
    assert declared.status_code == 413 and error_of(declared)["code"] == "request_too_large"
    chunked = server.http.post(
        "/v1/completions", content=iter([b"x" * 1500] * 2), headers={"content-type": "application/json"}
    )
    assert chunked.status_code == 413
    assert server.complete(prompt="x").status_code == 200


def test_slow_senders_are_let_go(start: Start) -> None:
    server = start(request_read_timeout=0.2)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as slow_head:
        slow_head.sendall(b"POST /v1/comp")
        assert slow_head.recv(100) == b""
    with socket.create_connection((host, int(port)), timeout=20) as slow_body:
        slow_body.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        answer = http.client.HTTPResponse(slow_body)
        answer.begin()
        assert answer.status == 408 and json.loads(answer.read())["error"]["code"] == "request_timeout"
    with socket.create_connection((host, int(port)), timeout=20) as unwanted_body:
        unwanted_body.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        answer = http.client.HTTPResponse(unwanted_body)
        answer.begin()
        assert answer.status == 404 and answer.read() and unwanted_body.recv(100) == b""
    assert server.complete().status_code == 200


def test_prompts_that_are_too_much_together(start: Start) -> None:
    client = ScriptedClient()
    client.ready = msgspec.structs.replace(client.ready, max_model_len=32768)
    response = start(client).complete(prompt=[[1] * 20_000] * 2, n=128)
    assert (
        response.status_code == 400 and "5120000 prompt tokens" in error_of(response)["message"] and not client.requests
    )


class CountingTokenizer(ByteTokenizer):
    """Counts the tokens that were made of texts. `foretells`: whether it tells beforehand how many there
    are at least.
    """

    def __init__(self, foretells: bool) -> None:
        super().__init__()
        self.foretells, self.encoded = foretells, 0

    def fewest_tokens(self, text: str) -> int:
        return super().fewest_tokens(text) if self.foretells else 0

    def encode_pieces(self, *arguments: Any, **rest: Any) -> Iterator[list[int]]:
        for piece in super().encode_pieces(*arguments, **rest):
            self.encoded += len(piece)
            yield piece


@pytest.mark.parametrize(("foretells", "most"), [(True, 0), (False, 2000)])
def test_of_a_text_that_cannot_fit_no_more_is_encoded_than_shows_that(foretells: bool, most: int, start: Start) -> None:
    """Its pieces have a thousand tokens each, and the context has fewer than one of them."""
    tokenizer = CountingTokenizer(foretells)
    server = start(tokenizer=tokenizer)
    asked = (
        lambda text: server.complete(prompt=text),
        lambda text: server.complete(prompt=["short", text]),
        lambda text: server.chat(messages=[{"role": "user", "content": text}]),
    )
    for ask in asked:
        tokenizer.encoded = 0
        answer = ask("x" * 100_000)
        assert answer.status_code == 400 and error_of(answer)["code"] == "context_length_exceeded"
        assert tokenizer.encoded <= most + len("<s>short")
    assert not server.client.requests


def test_many_large_bodies_together_do_not_fit(start: Start) -> None:
    server = start(max_request_body=2000)
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(9)]
        for connection in connections:
            connection.sendall(head + b" " * 1900)
        selector = stack.enter_context(selectors.DefaultSelector())
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        ready = selector.select(20)
        answer = http.client.HTTPResponse(cast(socket.socket, ready[0][0].fileobj))
        answer.begin()
        assert answer.status == 503 and answer.headers["retry-after"] == "1" and len(ready) == 1
    assert server.complete().status_code == 200


def test_what_is_no_http(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 400 and json.loads(answer.read())["error"]["code"] == "invalid_http"


def test_keys(start: Start) -> None:
    server = start(api_key=("secret", "other"))
    for headers in (
        {},
        {"Authorization": "Bearer nope"},
        {"Authorization": "secret"},
        {"Authorization": "Basic secret"},
        {"Authorization": "Bearer"},
    ):
        response = server.http.get("/v1/models", headers=headers)
        assert response.status_code == 401 and error_of(response)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert server.http.post("/v1/completions", json={"prompt": "x"}, headers=headers).status_code == 401
        assert server.http.get("/metrics", headers=headers).status_code == 401
    for headers in ({"x-api-key": "nope"}, {"x-api-key": ""}, {"x-api-key": "Bearer secret"}):
        assert server.http.get("/v1/models", headers=headers).status_code == 401
    for key in ("secret", "other"):
        assert server.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert server.http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
    assert server.http.get("/health").status_code == 200


def failing(kind: str, at: int = 0, **rest: Any) -> ScriptedClient:
    """An engine that ends every request with an error after `at` tokens."""

    def script(request: Any) -> list[Output]:
        return [
            *scripted(request)[:at],
            Output(id=request.id, finish_reason="error", error=f"{kind}: the reason", error_kind=kind, **rest),
        ]

    return ScriptedClient(script)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("CapacityError", 400),
        ("UserError", 400),
        ("OverloadedError", 503),
        ("PeerError", 503),
        ("WorkerLostError", 503),
        ("HostError", 500),
        ("InternalError", 500),
    ],
)
def test_errors_of_the_engine(start: Start, stream: bool, kind: str, status: int) -> None:
    server = start(failing(kind, retry_after_s=1.2 if kind == "OverloadedError" else None))
    for response in (
        server.complete(stream=stream),
        server.chat(stream=stream),
        server.complete(stream=stream, n=2),
    ):
        assert response.status_code == status, response.text
        assert ("the reason" in error_of(response)["message"]) == (kind not in ("HostError", "InternalError"))
        assert response.headers.get("retry-after") == {"OverloadedError": "2", "WorkerLostError": "1"}.get(kind)
        assert (error_of(response)["code"] == "worker_lost") == (kind == "WorkerLostError")


def test_an_error_inside_a_stream(start: Start) -> None:
    server = start(failing("InternalError", at=3))
    response = server.complete(stream=True)
    lines = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert response.status_code == 200 and "".join(line["choices"][0]["text"] for line in lines[:3]) == "Onc"
    assert lines[3]["error"]["code"] == "internal_error" and len(lines) == 4


def test_a_bug_tells_nothing_but_its_request_id(start: Start) -> None:
    def broken(request: Any) -> list[Output]:
        raise RuntimeError("inside knowledge")

    server = start(ScriptedClient(broken))
    for stream in (False, True):
        response = server.post("/v1/completions", {"prompt": "x", "stream": stream})
        assert response.status_code == 500
        assert (
            "inside knowledge" not in response.text
            and response.headers["x-request-id"] in error_of(response)["message"]
        )


def test_request_ids(server: Running) -> None:
    assert server.http.get("/version", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert len(server.http.get("/version", headers={"X-Request-Id": "a b\x7f"}).headers["x-request-id"]) == 32


@settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(body=st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["prompt", "messages", "role", "content", "n", "stop", "x"]), inner, max_size=4),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_noise_never_breaks_the_server(server: Running, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        response = server.post(path, body)
        assert response.status_code in (200, 400), (response.status_code, response.text)
        if response.status_code == 400:
            error_of(response)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/completions", "/v1/completions"),
        ("/v1/api/chat", "/api/chat"),
        ("/tags", "/api/tags"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/completions/", "/v1/completions"),
    ],
)
def test_a_path_that_is_not_there_names_the_one_that_is_meant(server: Running, path: str, meant: str) -> None:
    answer = server.http.post(path, json={})
    assert answer.status_code == 404
    assert f"Did you mean {meant}?" in answer.text


def test_a_method_that_a_path_does_not_take_names_those_that_it_takes(server: Running) -> None:
    answer = server.http.get("/v1/chat/completions")
    assert answer.status_code == 405 and "POST" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 0}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stop": [f"stop {i}" for i in range(100)]}),
        ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 2.5}),
        ("/v1/completions", {"prompt": "x", "n": 3, "best_of": 3}),
        ("/v1/completions", {"prompt": "x", "n": 3, "best_of": 1}),
        (
            "/v1/messages",
            {"model": "story-teller", "messages": MESSAGES, "max_tokens": 2, "stop_sequences": ["x"] * 50},
        ),
        ("/api/generate", {"model": "story-teller", "prompt": "x", "stream": False, "options": {"temperature": 2.5}}),
    ],
)
def test_what_the_field_takes_is_taken(server: Running, path: str, more: dict[str, Any]) -> None:
    answer = server.http.post(path, json={"max_tokens": 2, **more} if path.startswith("/v1") else more)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", ["auto", "none", "required", "any"])
def test_a_choice_of_tools_may_be_a_type(server: Running, kind: str) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": MESSAGES, "max_tokens": 2, "tools": tools}
    by_word = server.http.post("/v1/chat/completions", json={**body, "tool_choice": kind})
    by_type = server.http.post("/v1/chat/completions", json={**body, "tool_choice": {"type": kind}})
    assert (by_type.status_code, by_type.json().get("error")) == (by_word.status_code, by_word.json().get("error"))


def test_a_file_that_a_tool_gave_back_is_named_in_the_prompt(server: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "see"}, {"type": "file", "file": {"file_data": "x", "filename": "a.pdf"}}]
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    answer = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "body", "instead"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}, "text.format"),
        ("/v1/messages", {"model": "story-teller", "messages": MESSAGES, "max_tokens": 2}, "output_config.format"),
    ],
)
def test_a_format_by_the_name_of_another_api_is_refused(
    server: Running, path: str, body: dict[str, Any], instead: str
) -> None:
    answer = server.http.post(path, json={**body, "response_format": {"type": "json_object"}})
    assert answer.status_code == 400
    assert "response_format" in answer.text and instead in answer.text
