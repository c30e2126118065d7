"""Requests through the proxy: handed over, retried, computed by the decoder, streamed, and refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.proxy import scripted as by
from tests.server.proxy.scripted import DONE, TOKENS, decoder, prefiller, run, stage
from tests.waiting import wait_in_loop

WHOLE_STREAM = b"".join((*TOKENS, DONE))


def test_a_prompt_is_computed_here_and_decoded_there() -> None:
    async def test() -> None:
        async with stage() as on:
            fields = {
                "prompt": "once",
                "max_tokens": 6,
                "temperature": 0.30000000000000004,
                "seed": 12345678901234567890,
                "stream": True,
            }
            answer = await on.http.post(
                "/v1/completions",
                json={**fields, "stream_options": {"include_usage": True}},
                headers={"X-Request-Id": "mine", "X-Else": "kept"},
            )
            assert answer.status_code == 200 and answer.content == WHOLE_STREAM
            assert (
                answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                and answer.headers["x-request-id"] == "mine"
            )
            (first,), (second,) = on.prefillers[0].asked, on.decoders[0].asked
            assert first.path == second.path == "/v1/completions"
            assert (
                first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
                and second.headers["x-else"] == "kept"
            )
            params = first.params
            assert params == {"do_remote_decode": True, "ticket": params["ticket"], "peer": on.decoders[0].document}
            assert second.params == {"do_remote_prefill": True, "ticket": params["ticket"]}
            assert not {"stream", "stream_options"} & first.json.keys()
            kept = {name: value for name, value in second.json.items() if name != "kv_transfer_params"}
            assert kept == {**fields, "stream_options": {"include_usage": True}}
            assert first.json["seed"] == fields["seed"] and b"0.30000000000000004" in first.body
            assert on.prefillers[0].released == on.decoders[0].released == []
            await on.shows(1, "requests_total", way="handover", outcome="ok")
            await on.shows(1, "prefill_seconds_count")
            await on.shows(1, "time_to_first_byte_seconds_count")

    run(test)


def test_an_answer_that_is_no_stream_passes_as_it_is() -> None:
    async def test() -> None:
        async with stage() as on:
            answer = await on.complete()
            assert (
                answer.json() == {"choices": [{"text": "told"}], "usage": {"total": 6}}
                and answer.headers["content-length"]
            )
            chat = await on.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
            assert chat.status_code == 200 and on.prefillers[0].asked[-1].path == "/v1/chat/completions"
            assert len(set(on.tickets())) == 2

    run(test)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 2}, "n"),
        ({"prompt": ["a", "b"]}, "prompts"),
        ({"prompt": [[1], [2]]}, "prompts"),
        ({"echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"prompt": 7}, "unreadable"),
    ],
)
def test_what_is_not_handed_over_goes_to_a_decoder_as_it_is(fields: dict[str, Any], reason: str) -> None:
    async def test() -> None:
        async with stage() as on:
            body = json.dumps({"prompt": "x", **fields}, indent=3).encode()
            answer = await on.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200 and on.decoders[0].asked[0].body == body and not on.prefillers[0].asked
            await on.shows(1, "direct_total", reason=reason)
            await on.shows(1, "requests_total", way="direct", outcome="ok")

    run(test)


def test_the_decoder_says_what_is_wrong_with_a_body() -> None:
    async def test() -> None:
        async with stage(
            decoders=[decoder(behaviours=[by.rejects, by.rejects])], prefillers=[prefiller(behaviours=[by.rejects])]
        ) as on:
            garbage = await on.http.post(
                "/v1/completions", content=b"{nonsense", headers={"content-type": "text/plain"}
            )
            assert (
                garbage.status_code == 400
                and on.decoders[0].asked[0].body == b"{nonsense"
                and not on.prefillers[0].asked
            )
            wrong = await on.complete(temperature=9)
            assert (
                wrong.status_code == 400
                and wrong.json()["error"]["param"] == "temperature"
                and wrong.headers["x-why"] == "me"
            )
            assert len(on.prefillers[0].asked) == 1 and "ticket" not in on.decoders[0].asked[1].params
            await wait_in_loop(lambda: on.prefillers[0].released and on.decoders[0].released)
            await on.shows(2, "requests_total", outcome="error")

    run(test)


def test_a_ticket_of_the_client_s_own_is_refused() -> None:
    async def test() -> None:
        async with stage() as on:
            answer = await on.complete(kv_transfer_params={"do_remote_prefill": True, "ticket": "stolen"})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "kv_transfer_params"
            assert not on.decoders[0].asked and (await on.complete(kv_transfer_params=None)).status_code == 200
            assert on.decoders[0].asked[0].params["ticket"] != "stolen"

    run(test)


@pytest.mark.parametrize("trouble", [by.refuses, by.fails, by.talks_nonsense, by.answers_nonsense, by.dies])
def test_another_prefill_server_is_asked(trouble: by.Behaviour) -> None:
    async def test() -> None:
        async with stage([prefiller(behaviours=[trouble]), prefiller(behaviours=[trouble]), prefiller()]) as on:
            assert await on.stream() == WHOLE_STREAM  # two failed: the decoder computes the prompt
            await on.shows(1, "requests_total", way="local")
            await on.shows(1, "fallbacks_total")
            tickets = on.tickets()
            assert len(tickets) == len(set(tickets)) == 2 and not on.decoders[0].asked[0].params
            await wait_in_loop(lambda: sorted(r["ticket"] for r in on.decoders[0].released) == sorted(tickets))
            await wait_in_loop(
                lambda: sorted(r["ticket"] for s in on.prefillers for r in s.released) == sorted(tickets)
            )

    run(test)


def test_one_failure_costs_another_ticket_only() -> None:
    async def test() -> None:
        servers = [prefiller(behaviours=[by.dies]), prefiller()]
        async with stage(servers) as on:
            for _ in range(2):
                assert await on.stream() == WHOLE_STREAM
            await on.shows(2, "requests_total", way="handover", outcome="ok")
            used = [asked.params["ticket"] for asked in on.decoders[0].asked]
            await wait_in_loop(lambda: len(on.decoders[0].released) == 1)
            assert on.decoders[0].released[0]["ticket"] not in used

    run(test)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("trouble", [by.dies, by.talks_nonsense, by.is_busy])
def test_another_decoder_is_asked_before_the_first_byte(trouble: by.Behaviour, stream: bool) -> None:
    async def test() -> None:
        async with stage(
            decoders=[decoder(behaviours=[trouble]), decoder(behaviours=[trouble]), decoder()], decode_tries=3
        ) as on:
            answer = await on.complete(stream=stream)
            assert answer.status_code == 200 and (answer.content == WHOLE_STREAM if stream else answer.json()["usage"])
            tickets = on.tickets()
            assert len(set(tickets)) == 3
            last = next(
                server
                for server in on.decoders
                if not server.behaviours and server.usual is by.tells and server.asked[-1].params
            )
            assert last is not None
            await wait_in_loop(lambda: len(on.prefillers[0].released) == 2)
            released = [r["ticket"] for r in on.prefillers[0].released]
            assert sorted(released) == sorted(tickets[:2])

    run(test)


def test_an_answer_cut_in_the_middle_is_begun_anew_unless_it_is_a_stream() -> None:
    async def test() -> None:
        async with stage(
            decoders=[decoder(behaviours=[by.dies_midway]), decoder(behaviours=[by.dies_midway])], decode_tries=3
        ) as on:
            assert (await on.complete()).json()["usage"] == {"total": 6}

    run(test)


def test_a_stream_that_is_cut_ends_with_an_error() -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[by.dies_midway])]) as on:
            content = await on.stream()
            assert content.startswith(TOKENS[0] + TOKENS[1] + b"data: {") and DONE not in content
            last = content.split(b"\n\n")[-2]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "decoder_lost"
            await wait_in_loop(lambda: on.prefillers[0].released and on.decoders[0].released)
            assert on.prefillers[0].released[0]["ticket"] == on.tickets()[0]
            await on.shows(1, "requests_total", outcome="cut")

    run(test)


def test_a_busy_decoder_s_own_words_are_passed_on_when_there_is_no_other() -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[by.is_busy])]) as on:
            answer = await on.complete(stream=True)
            assert (
                answer.status_code == 503
                and answer.json()["error"]["code"] == "overloaded"
                and answer.headers["retry-after"] == "3"
            )
            assert await on.stream() == WHOLE_STREAM

    run(test)


def test_nobody_answers() -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[by.dies] * 2)]) as on:
            answer = await on.complete()
            assert answer.status_code == 502 and answer.json()["error"]["code"] == "decoder_failed"

    run(test)


def test_deadlines() -> None:
    async def test() -> None:
        settings = {"prefill_timeout": 0.2, "first_byte_timeout": 1.0, "answer_timeout": 1.0, "idle_timeout": 0.5}
        async with stage([prefiller(behaviours=[by.waits])], [decoder()], **settings) as on:
            assert await on.stream() == WHOLE_STREAM
            await on.shows(1, "faults_total", role="prefill", fault="late")
            on.decoders[0].behaviours = [by.waits]
            late = await on.complete()
            assert late.status_code == 504 and late.json()["error"]["code"] == "decoder_timeout"
            on.decoders[0].behaviours = [by.stalls]
            assert b"decoder_lost" in await on.stream()

    run(test)


def test_a_body_beyond_the_limit() -> None:
    async def test() -> None:
        async with stage(max_request_body=2048) as on:
            assert (await on.complete(prompt="x" * 3000)).status_code == 413
            assert (await on.complete(prompt="x" * 1000)).status_code == 200

    run(test)


def test_keys() -> None:
    async def test() -> None:
        async with stage([prefiller(key="up")], [decoder(key="up")], api_key=("mine",), upstream_api_key="up") as on:
            assert (await on.complete()).status_code == 401
            assert "127.0.0.1" not in json.dumps(await on.health())
            answer = await on.http.post(
                "/v1/completions", json={"prompt": "x"}, headers={"Authorization": "Bearer mine"}
            )
            assert answer.status_code == 200 and on.prefillers[0].asked
            other = await on.http.post("/v1/completions", json={"prompt": "x"}, headers={"x-api-key": "mine"})
            assert other.status_code == 200 and not any("x-api-key" in asked.headers for asked in on.decoders[0].asked)
            assert {asked.headers["authorization"] for asked in (*on.prefillers[0].asked, *on.decoders[0].asked)} == {
                "Bearer up"
            }
        async with stage(decoders=[decoder()]) as on:
            await on.http.post("/v1/completions", json={"prompt": "x"}, headers={"x-api-key": "theirs"})
            assert on.decoders[0].asked[-1].headers["x-api-key"] == "theirs"
        async with stage([prefiller(key="up")], [decoder(key="up")], ready=False) as on:
            await on.is_state("decode", 0, "unfit")
            assert "--upstream-api-key" in (await on.health())["decode"][0]["reason"]

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_a_minute_are_counted_for_all_servers(tmp_path: Path, stream: bool) -> None:
    """What a server says of an answer's tokens counts, and its client does not see it."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.ada]\nkey = "sk-ada"\ntokens_per_minute = 100\n')
    keys.chmod(0o600)

    async def tells(server: by.Scripted, asked: by.Asked, connection: by.Connection) -> None:
        assert "x-homenode-usage" in asked.headers
        if stream:
            connection.begin_stream()
            connection.chunk(TOKENS[0] + b": x-homenode-usage: 30 25\n\n" + DONE)
            connection.writer.write(b"0\r\n\r\n")
        else:
            connection.answer(200, {"id": "x"}, "x-homenode-usage: 30 25\r\n")

    async def test() -> None:
        servers = [by.Scripted("receiver", tells), by.Scripted("receiver", tells)]
        async with stage([], servers, api_key_file=str(keys), upstream_api_key="up") as on:
            headers = {"authorization": "Bearer sk-ada"}
            body = {"prompt": [1, 2, 3], "max_tokens": 9, "stream": stream}
            for _ in range(2):
                answer = await on.http.post("/v1/completions", json=body, headers=headers)
                assert answer.status_code == 200 and "x-homenode-usage" not in answer.headers
                assert answer.content == (TOKENS[0] + DONE if stream else b'{"id": "x"}')
            refused = await on.http.post("/v1/completions", json=body, headers=headers)
            assert refused.status_code == 429
            assert (
                "tokens_per_minute" in refused.json()["error"]["message"] and int(refused.headers["retry-after"]) > 50
            )
            shown = (await on.http.get("/metrics", headers=headers)).text
            assert 'homenode:proxy_key_tokens_total{key="ada",kind="prompt"} 60' in shown
            assert 'homenode:proxy_key_tokens_total{key="ada",kind="generated"} 50' in shown

    run(test)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_tiers_of_a_key_go_with_its_requests(tmp_path: Path, mark: bytes) -> None:
    """The servers do not know the key: they are told the rank, which the body cannot raise."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.ada]\nkey = "sk-ada"\nservice_tiers = ["flex", "default"]\n[keys.bob]\nkey = "sk-bob"\n')
    keys.chmod(0o600)
    seen: list[dict[str, Any]] = []

    async def tells(server: by.Scripted, asked: by.Asked, connection: by.Connection) -> None:
        seen.append(json.loads(asked.body.removeprefix(mark)))
        connection.answer(200, {"id": "x"})

    async def test() -> None:
        async with stage([], [by.Scripted("receiver", tells)], api_key_file=str(keys), upstream_api_key="up") as on:

            async def ask(key: str, path: str, **fields: Any) -> int:
                body = mark + json.dumps({"prompt": [1], "messages": [], "max_tokens": 2, **fields}).encode()
                headers = {"authorization": f"Bearer sk-{key}", "content-type": "application/json"}
                return (await on.http.post(path, content=body, headers=headers)).status_code

            for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/api/chat"):
                assert await ask("bob", path) == 200 and "priority" not in seen[-1]
                assert await ask("ada", path) == 200 and seen[-1]["priority"] == 1
                assert await ask("ada", path, priority=5.0) == 200 and seen[-1]["priority"] == 5
                assert await ask("ada", path, priority=-1) == 400
            assert await ask("ada", "/v1/completions", service_tier="default") == 200
            assert (seen[-1]["priority"], seen[-1]["service_tier"]) == (0, "default")
            assert await ask("ada", "/v1/chat/completions", service_tier="auto") == 200
            assert (seen[-1]["priority"], seen[-1]["service_tier"]) == (1, "flex")
            assert await ask("ada", "/v1/chat/completions", service_tier="priority") == 400
            assert await ask("ada", "/v1/messages", service_tier="standard_only") == 200
            assert seen[-1]["priority"] == 0 and "service_tier" not in seen[-1]
            assert await ask("ada", "/v1/completions", service_tier=["x"]) == 200  # as the servers see fit
            assert seen[-1]["service_tier"] == ["x"]

    run(test)


def test_what_is_asked_about_the_model_goes_to_a_decoder() -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(), decoder()]) as on:
            models = await on.http.get("/v1/models?x=1")
            assert models.status_code == 200 and models.json()["usage"]
            asked = [asked for server in on.decoders for asked in server.asked]
            assert [(a.method, a.path) for a in asked] == [("GET", "/v1/models?x=1")]
            assert (await on.http.post("/tokenize", json={"prompt": "x"})).status_code == 200
            for path in ("/kv_transfer", "/kv_transfer/release", "/nowhere"):
                assert (await on.http.post(path, json={"ticket": "x", "reason": "y"})).status_code == 404
            await on.decoders[0].kill()
            assert (await on.http.get("/v1/models")).status_code == 200

    run(test)


def test_two_hundred_at_once() -> None:
    async def test() -> None:
        async with stage([prefiller(), prefiller()], [decoder(), decoder()]) as on:
            answers = await asyncio.gather(*(on.stream(prompt=f"{number} and more") for number in range(200)))
            assert answers == [WHOLE_STREAM] * 200
            tickets = on.tickets()
            assert len(set(tickets)) == 200
            assert sorted(tickets) == sorted(asked.params["ticket"] for server in on.decoders for asked in server.asked)
            for server in (*on.prefillers, *on.decoders):
                assert 80 <= len(server.asked) <= 120 and not server.released
            for name in ("server_requests", "requests_in_flight", "server_waiting_tokens"):
                await on.shows(0, name)

    run(test)


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_a_slow_server_is_left_alone_while_another_is_free(role: str) -> None:
    async def slowly(server: by.Scripted, asked: by.Asked, connection: by.Connection) -> None:
        await asyncio.sleep(0.6)
        await (by.computes if role == "sender" else by.tells)(server, asked, connection)

    async def test() -> None:
        make = prefiller if role == "sender" else decoder
        both = [make(), make()]
        both[0].usual = slowly
        async with stage(*((both, None) if role == "sender" else (None, both))) as on:
            for number in range(8):
                assert await on.stream(prompt=f"{number} and more") == WHOLE_STREAM
            assert 2 <= len(both[0].asked) <= 3 and len(both[1].asked) == 8 - len(both[0].asked)
            assert await on.metric("server_slowness", server=both[0].url) >= 2
            assert await on.metric("server_slowness", server=both[1].url) == 1

    run(test)


async def leave(on: by.Stage, stream: bool, seen: Any) -> None:
    """A client that goes away once `seen` is true."""
    task = asyncio.create_task(on.complete(stream=stream))
    await wait_in_loop(seen)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["prefill", "decode", "middle"])
def test_a_client_that_leaves_is_told_of_to_both(where: str, stream: bool) -> None:
    async def test() -> None:
        at_prefill = [by.waits] if where == "prefill" else []
        at_decode = {"prefill": [], "decode": [by.waits], "middle": [by.stalls]}[where]
        async with stage([prefiller(behaviours=at_prefill)], [decoder(behaviours=at_decode)]) as on:
            waiting = on.prefillers[0] if where == "prefill" else on.decoders[0]
            await leave(on, stream, lambda: waiting.asked)
            await wait_in_loop(lambda: waiting.asked[0].gone)
            await wait_in_loop(lambda: on.prefillers[0].released and on.decoders[0].released)
            assert (
                on.prefillers[0].released
                == on.decoders[0].released
                == [{"ticket": on.tickets()[0], "reason": "the client is gone"}]
            )
            await on.shows(1, "requests_total", outcome="client_gone")
            await on.shows(0, "server_requests")

    run(test)


def test_errors_of_http_itself_have_a_body() -> None:
    async def test() -> None:
        async with stage() as on:
            assert (await on.http.get("/v1/completions")).status_code == 405
            answer: httpx.Response = await on.http.get("/nothing")
            assert answer.json()["error"]["code"] == "unknown_path"

    run(test)


def test_a_client_that_does_not_read_is_let_go() -> None:
    async def pours(server: by.Scripted, asked: by.Asked, connection: by.Connection) -> None:
        connection.begin_stream()
        while True:
            connection.chunk(b"data: " + b"x" * 50_000 + b"\n\n")
            await connection.writer.drain()

    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[pours])], write_timeout=0.3) as on:
            host, port = on.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1000)
            body = b'{"prompt": "x", "stream": true}'
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            await wait_in_loop(lambda: on.prefillers[0].released and on.decoders[0].released)
            await wait_in_loop(lambda: on.decoders[0].asked[0].gone)
            await on.shows(1, "requests_total", outcome="client_gone")
            writer.close()

    run(test)


def test_a_long_body_is_read_and_passed_on_whole() -> None:
    async def test() -> None:
        async with stage() as on:
            prompt = "long " * 400_000
            assert await on.stream(prompt=prompt) == WHOLE_STREAM
            assert on.prefillers[0].asked[0].json["prompt"] == on.decoders[0].asked[0].json["prompt"] == prompt

    run(test)
