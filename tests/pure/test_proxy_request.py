"""What the proxy reads out of a body, what it makes of it, where it cuts a stream, and which addresses it takes."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.server.http.failures import ApiError
from homenode.server.models.media import MEDIA
from homenode.server.proxy.client_request import ClientRequest, read_client_request
from homenode.server.proxy.config import ProxyConfig, server_url, server_urls
from homenode.server.proxy.events import Events
from homenode.server.proxy.forwarded_apis import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    ForwardedApi,
)

DONE = b"data: [DONE]\n\n"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_any_body_finds_a_way(body: bytes, chat: bool) -> None:
    asked = read_client_request(body, CHAT_COMPLETIONS if chat else COMPLETIONS)
    assert asked.for_decode(None) == body
    assert asked.direct is not None or b'"ticket":"t"' in asked.for_decode("t")


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "n", "stream", "logprobs", "max_tokens", "echo", "x", "stream_options"]), json_values
    )
)
def test_values_pass_as_they_were_written(fields: dict[str, object]) -> None:
    text = json.dumps(fields)
    asked = read_client_request(text.encode(), COMPLETIONS)
    if asked.direct is None:
        again = json.loads(asked.for_decode("t"))
        assert again.pop("kv_transfer_params") == {"do_remote_prefill": True, "ticket": "t"}
        assert json.dumps(again) == text
        first = json.loads(asked.for_prefill("t", b'{"role":"receiver"}'))
        assert first.pop("kv_transfer_params") == {
            "do_remote_decode": True,
            "ticket": "t",
            "peer": {"role": "receiver"},
        }
        assert json.dumps(first) == json.dumps(
            {name: value for name, value in fields.items() if name not in ("stream", "stream_options")}
        )


@pytest.mark.parametrize(
    ("fields", "direct"),
    [
        ({"prompt": "x"}, None),
        ({"prompt": ["x"], "n": 1, "echo": True, "max_tokens": 2}, None),
        ({"prompt": [[1, 2]], "logprobs": 3, "stream": True}, None),
        ({"prompt": [1, 2], "max_tokens": None}, None),
        ({"prompt": "x", "n": 2}, "n"),
        ({"prompt": "x", "best_of": 3}, "n"),
        ({"prompt": ["x", "y"]}, "prompts"),
        ({"prompt": "x", "echo": True, "logprobs": 0}, "prompt_logprobs"),
        ({"prompt": "x", "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"prompt": "x", "prompt_embeds": ["AAAA"]}, "prompt_embeds"),
        ({"prompt": "x", "prompt_embeds": None}, None),
        ({"prompt": "x", "max_tokens": -1}, None),
        ({"prompt": "x", "max_completion_tokens": -1, "max_tokens": 1}, None),
        ({"prompt": "x", "max_tokens": 1}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": []}, "unreadable"),
        ({"prompt": [-1]}, "unreadable"),
        ({}, "unreadable"),
    ],
)
def test_what_is_handed_over(fields: dict[str, object], direct: str | None) -> None:
    assert read_client_request(json.dumps(fields).encode(), COMPLETIONS).direct == direct


def test_chats() -> None:
    messages = [{"role": "user", "content": "hello there"}]
    first = read_client_request(json.dumps({"messages": messages}).encode(), CHAT_COMPLETIONS)
    longer = read_client_request(
        json.dumps({"messages": [*messages, {"role": "assistant", "content": "hm"}]}).encode(), CHAT_COMPLETIONS
    )
    assert (
        first.direct is None
        and list(longer.units[: len(first.units) - 1]) == list(first.units[:-1])
        and first.salt == longer.salt
    )
    assert (
        read_client_request(
            json.dumps({"messages": messages, "max_completion_tokens": 1, "max_tokens": 9}).encode(), CHAT_COMPLETIONS
        ).direct
        == "max_tokens"
    )
    assert (
        read_client_request(json.dumps({"messages": messages, "cache_salt": "x"}).encode(), CHAT_COMPLETIONS).salt
        != first.salt
    )


@pytest.mark.parametrize(
    ("api", "fields", "told"),
    [
        (COMPLETIONS, {"prompt": "x"}, True),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 1}, True),
        (COMPLETIONS, {"prompt": ["x", "y"]}, False),
        (COMPLETIONS, {"prompt": "x", "prompt_embeds": "AAAA"}, False),
        (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1}, False),
        (COMPLETIONS, {}, False),
        (RESPONSES, {"input": "x"}, True),
        (RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, False),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, False),
        (OLLAMA_GENERATE, {"prompt": "x", "images": [], "context": None}, True),
        (OLLAMA_GENERATE, {"prompt": "x", "images": ["AAAA"]}, False),
        (OLLAMA_GENERATE, {"prompt": "x", "context": [1, 2]}, False),
        (OLLAMA_CHAT, {"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}, False),
        (CHAT_COMPLETIONS, {"messages": [{"role": "user", "content": '{"type": "image", "images": ["x"]}'}]}, True),
        *(
            (api, {name: [{"role": "user", "content": [{"type": kind, "url": "http://x/y"}]}]}, kind == "text")
            for api, name in ((CHAT_COMPLETIONS, "messages"), (MESSAGES, "messages"), (RESPONSES, "input"))
            for kind in ("text", *(kind for medium in MEDIA.values() for kind in medium.types))
        ),
    ],
)
def test_whether_tokens_tell_the_work_of_a_prompt(api: ForwardedApi, fields: dict[str, object], told: bool) -> None:
    assert read_client_request(json.dumps(fields).encode(), api).told == told


@pytest.mark.parametrize("api", [CHAT_COMPLETIONS, MESSAGES, RESPONSES, OLLAMA_CHAT])
def test_tools_count_as_part_of_the_prompt(api: ForwardedApi) -> None:
    said = {"input" if api is RESPONSES else "messages": [{"role": "user", "content": "x"}]}
    tools = [{"type": "function", "name": "look", "description": "far " * 1000}]
    bare, full = (read_client_request(json.dumps(said | more).encode(), api) for more in ({}, {"tools": tools}))
    assert full.tokens > bare.tokens + 1000


def test_lengths() -> None:
    assert read_client_request(b'{"prompt":[5,6,7]}', COMPLETIONS).tokens == 3
    long = read_client_request(json.dumps({"prompt": "abcde" * 100_000}).encode(), COMPLETIONS)
    assert long.tokens == 125_000 and len(long.units) == 1 << 16


def test_a_body_of_empty_lists_is_not_decoded() -> None:
    body = b'{"prompt":[' + b"[]," * 70_000 + b"[]]}"
    with pytest.raises(ApiError, match="lists and objects"):
        read_client_request(body, COMPLETIONS)


def test_a_client_s_own_ticket_is_refused() -> None:
    with pytest.raises(ApiError, match="kv_transfer_params"):
        read_client_request(b'{"prompt":"x","kv_transfer_params":{"ticket":"t"}}', COMPLETIONS)


@given(
    st.lists(st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff"])).map(b"".join),
    st.lists(st.integers(0, 100)),
)
def test_a_stream_passes_byte_for_byte_and_only_at_the_ends_of_events(whole: bytes, cuts: list[int]) -> None:
    at = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    events, passed = Events(), b""
    for first, past in itertools.pairwise(at):
        part = events.feed(whole[first:past])
        passed += part
        assert not part or part.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
    assert passed + events.flush() == whole


@given(st.lists(st.integers(1, 40)))
def test_the_end_of_a_stream_is_seen_however_it_is_cut(sizes: list[int]) -> None:
    whole, events, at = b'data: {"x": 1}\n\n: comment\n\n' + DONE, Events(), 0
    for size in [*sizes, len(whole)]:
        assert not events.done or at >= len(whole)
        events.feed(whole[at : at + size])
        at += size
    assert events.done


def test_a_stream_that_breaks_off_ends_with_a_whole_event() -> None:
    error = ApiError(502, "m", code="c")
    events = Events()
    assert events.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    failed = b'data: {"error":{"message":"m","type":"server_error","param":null,"code":"c"}}\n\n'
    assert events.failure(error) == failed and events.flush() == b""
    long = Events()
    assert long.feed(b"data: " + b"x" * (2 << 20)) and long.failure(error).startswith(b"\n\ndata: ")
    assert not long.done


@pytest.mark.parametrize(
    ("api", "part", "last", "failed"),
    [
        (
            MESSAGES,
            b'event: ping\ndata: {"type":"ping"}\n\n',
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
            b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n',
        ),
        (
            OLLAMA_CHAT,
            b'{"done":false,"x":{"done":true}}\n',
            b'{"model":"m","done":true}\n',
            b'{"error":"m","code":"c"}\n',
        ),
    ],
)
def test_streams_of_other_apis(api: ForwardedApi, part: bytes, last: bytes, failed: bytes) -> None:
    events = Events(api)
    assert events.feed(part + last[:9]) == part and not events.done
    assert events.feed(last[9:]) == last and events.done
    broken = Events(api)
    assert broken.feed(part + last[:9]) == part and not broken.done
    assert broken.failure(ApiError(502, "m", code="c")) == failed and broken.flush() == b""


def test_requests_of_other_apis() -> None:
    def read(api: ForwardedApi, **fields: object) -> ClientRequest:
        return read_client_request(json.dumps(fields).encode(), api)

    first, second = (
        read(MESSAGES, system=f"x-anthropic-billing-header: cch={n};\nBe brief.", messages=[{"content": "x" * 100}])
        for n in (1, 22)
    )
    assert first.units == second.units and first.tokens > 25 and not first.stream
    assert read(OLLAMA_CHAT, messages=[]).stream and not read(OLLAMA_CHAT, stream=False).stream
    asked = json.loads(read(OLLAMA_GENERATE, prompt="hi").for_prefill("t", b"{}"))
    assert asked["stream"] is False and asked["kv_transfer_params"]["ticket"] == "t"


def test_addresses() -> None:
    assert server_urls("http://127.0.0.1:1/, https://[::1]:2,http://a") == (
        "http://127.0.0.1:1",
        "https://[::1]:2",
        "http://a",
    )
    for wrong in (
        "localhost:1",
        "ftp://x",
        "http://",
        "http://x/v1",
        "http://u:p@x",
        "http://x?y",
        "http://x:99999",
        "http://x:0",
        "http://a b",
    ):
        with pytest.raises(UserError):
            server_url(wrong)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(UserError, match="--decode"):
        ProxyConfig(prefill=("http://a",))
    with pytest.raises(UserError, match="twice"):
        ProxyConfig(prefill=("http://a",), decode=("http://a",), peer_plain_text=True)
    assert ProxyConfig(decode=("http://a",), peer_plain_text=True).prefill == ()
