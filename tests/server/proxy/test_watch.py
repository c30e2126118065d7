"""Servers that freeze, die, come back, drain or are not what they were given as; and the proxy's own end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

import pytest

from tests.server.proxy import scripted as by
from tests.server.proxy.scripted import DONE, FREEZES, TOKENS, decoder, document, prefiller, run, stage
from tests.waiting import wait_in_loop

WHOLE_STREAM = b"".join((*TOKENS, DONE))


@pytest.mark.parametrize("stream", [False, True])
def test_a_frozen_prefill_server_holds_nobody_up(stream: bool) -> None:
    async def test() -> None:
        async with stage(**FREEZES, release_timeout=1.5) as on:
            server = on.prefillers[0]
            server.frozen.set()
            async with asyncio.timeout(20):
                answers = await asyncio.gather(*(on.complete(stream=stream, prompt=f"{n}") for n in range(16)))
            assert all(answer.status_code == 200 for answer in answers)
            await on.shows(16, "requests_total", way="local", outcome="ok")
            await on.is_state("prefill", 0, "silent")
            await on.shows(16, "releases_total", outcome="ok")  # at the decoder; the frozen one hears nothing
            await on.shows(16, "releases_total", outcome="late")
            before = len(on.decoders[0].asked)
            await on.complete()
            assert len(on.decoders[0].asked) == before + 1 and not on.decoders[0].asked[-1].params

    run(test)


def test_a_frozen_prefill_server_costs_no_more_than_a_look() -> None:
    async def test() -> None:
        async with stage(silent_after=30.0, suspect_after=0.1, release_timeout=0.1) as on:
            on.prefillers[0].frozen.set()
            began = time.monotonic()
            assert await on.stream() == WHOLE_STREAM
            assert time.monotonic() - began < 10  # and not as long as silence takes
            await on.is_state("prefill", 0, "suspect")
            asked = len(on.prefillers[0].asked)
            assert await on.stream() == WHOLE_STREAM and len(on.prefillers[0].asked) == asked, "nobody waits any more"
            await on.shows(2, "requests_total", way="local", outcome="ok")

    run(test)


def test_a_frozen_decode_server_is_left_for_another_one() -> None:
    async def test() -> None:
        decoders = [decoder(behaviours=[by.waits]), decoder()]
        async with stage(decoders=decoders, silent_after=30.0, lost_after=60.0, suspect_after=0.1) as on:
            on.decoders[1].health = (503, b"")
            await on.is_state("decode", 1, "unhealthy")
            on.decoders[0].frozen.set()
            waiting = asyncio.create_task(on.stream())
            await on.is_state("decode", 0, "suspect")
            assert not waiting.done(), "it waits while there is no other"
            on.decoders[1].health = (200, {})
            async with asyncio.timeout(10):
                assert await waiting == WHOLE_STREAM
            assert on.decoders[1].asked

    run(test)


def test_a_server_that_computes_for_long_and_answers_looks_is_waited_for() -> None:
    async def test() -> None:
        async with stage(
            [prefiller(behaviours=[by.waits] * 4)], silent_after=30.0, suspect_after=0.05, poll_interval=30.0
        ) as on:
            requests = [asyncio.create_task(on.stream()) for _ in range(4)]
            await wait_in_loop(lambda: len(on.prefillers[0].asked) == 4)
            looks = on.prefillers[0].looks
            await asyncio.sleep(0.5)
            assert 0 < on.prefillers[0].looks - looks <= 12, "those who wait share their looks"
            on.prefillers[0].go.set()
            assert await asyncio.gather(*requests) == [WHOLE_STREAM] * 4
            await on.shows(4, "requests_total", way="handover", outcome="ok")

    run(test)


def test_a_prefill_server_that_is_killed_is_done_without_and_taken_back() -> None:
    async def test() -> None:
        async with stage([prefiller(behaviours=[by.waits] * 4)]) as on:
            server = on.prefillers[0]
            requests = [asyncio.create_task(on.stream()) for _ in range(4)]
            await wait_in_loop(lambda: len(server.asked) == 4)
            await server.kill()
            assert await asyncio.gather(*requests) == [WHOLE_STREAM] * 4
            await on.is_state("prefill", 0, "down")
            await server.restart()
            await on.is_state("prefill", 0, "ready")
            assert await on.stream() == WHOLE_STREAM and len(server.asked) == 5
            await on.shows(1, "requests_total", way="handover")
            assert await on.metric("server_lives", role="prefill") == 2

    run(test)


def test_a_frozen_decoder_s_answers_are_begun_anew_or_end_with_an_error() -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[by.stalls, by.waits]), decoder()], **FREEZES) as on:
            frozen = on.decoders[0]
            on.decoders[1].health = (503, b"")
            await on.is_state("decode", 1, "unhealthy")
            begun = asyncio.create_task(on.stream())
            await wait_in_loop(lambda: len(frozen.asked) == 1)
            waiting = asyncio.create_task(on.stream())
            await wait_in_loop(lambda: len(frozen.asked) == 2)
            on.decoders[1].health = (200, {})
            await on.is_state("decode", 1, "ready")
            frozen.frozen.set()
            assert await waiting == WHOLE_STREAM
            assert b"decoder_lost" in await begun
            await on.is_state("decode", 0, "silent")
            assert await on.stream() == WHOLE_STREAM

    run(test)


def test_a_decoder_that_streams_is_not_frozen_however_long_a_look_takes() -> None:
    async def talks_on(server: by.Scripted, asked: by.Asked, connection: by.Connection) -> None:
        connection.begin_stream()
        server.frozen.set()  # for looks: this behaviour has begun
        for _ in range(60):
            connection.chunk(TOKENS[0])
            await connection.writer.drain()
            await asyncio.sleep(0.02)
        connection.chunk(DONE)
        connection.writer.write(b"0\r\n\r\n")

    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[talks_on])], silent_after=0.3, lost_after=0.4) as on:
            assert await on.stream() == TOKENS[0] * 60 + DONE

    run(test)


def test_requests_wait_for_the_only_decoder() -> None:
    async def test() -> None:
        async with stage(wait_timeout=60.0) as on:
            server = on.decoders[0]
            await server.kill()
            await on.is_state("decode", 0, "down")
            request = asyncio.create_task(on.stream())
            assert (await on.http.get("/health")).status_code == 503
            await server.restart()
            assert await request == WHOLE_STREAM
            assert on.prefillers[0].asked[-1].params["peer"] == server.document

    run(test)


def test_no_decoder_comes() -> None:
    async def test() -> None:
        async with stage(wait_timeout=0.3) as on:
            await on.decoders[0].kill()
            answer = await on.complete()
            assert (
                answer.status_code == 503
                and answer.json()["error"]["code"] == "no_decoder"
                and answer.headers["retry-after"]
            )
            assert (await on.http.get("/v1/models")).status_code == 503

    run(test)


def test_servers_need_not_be_up_at_the_start() -> None:
    async def test() -> None:
        late = decoder()
        await late.start()
        await late.kill()
        async with stage(decoders=[late], ready=False) as on:
            await on.is_state("decode", 0, "down")
            assert (await on.http.get("/health")).status_code == 503
            await late.restart()
            await on.is_state("decode", 0, "ready")
            assert (await on.http.get("/health")).status_code == 200 and (await on.health())["pairs"] == 1
            assert await on.stream() == WHOLE_STREAM

    run(test)


def test_health_waits_for_the_first_look_at_everyone() -> None:
    async def test() -> None:
        slow = prefiller()
        slow.frozen.set()
        async with stage([slow], ready=False, silent_after=1.0) as on:
            await on.is_state("decode", 0, "ready")
            first = await on.http.get("/health")
            assert first.status_code == 503 and first.json()["status"] == "starting"
            await on.is_state("prefill", 0, "silent")
            assert (await on.http.get("/health")).status_code == 200

    run(test)


@pytest.mark.parametrize(
    ("papers", "state", "word"),
    [
        ({}, "unfit", "--pd-role sender"),
        (document("receiver"), "unfit", "--pd-role sender"),
        (b"no json", "unfit", "cannot be read"),
        (b"x" * (2 << 20), "unfit", "too long"),
        (document("sender", incarnation="short"), "unfit", "cannot be read"),
    ],
)
def test_what_is_no_prefill_server_is_not_used(papers: Any, state: str, word: str) -> None:
    async def test() -> None:
        async with stage([prefiller(document=papers)]) as on:
            seen = (await on.health())["prefill"][0]
            assert seen["state"] == state and word in seen["reason"]
            assert await on.stream() == WHOLE_STREAM and not on.prefillers[0].asked

    run(test)


def test_a_sender_is_no_decoder_but_a_server_without_a_role_is() -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(document=document("sender")), decoder(document={})]) as on:
            states = [server["state"] for server in (await on.health())["decode"]]
            assert states == ["unfit", "ready"] and (await on.health())["pairs"] == 0
            assert await on.stream() == WHOLE_STREAM and not on.prefillers[0].asked

    run(test)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mode": "push"}, "mode"),
        ({"channel": "tcp"}, "channel"),
        ({"host": "elsewhere"}, "one machine"),
        (
            {"fingerprint": {**by.FINGERPRINT, "layers": "6"}},
            "layers is '5' at the prefill server and '6' at the decode server",
        ),
        ({"fingerprint": {**by.FINGERPRINT, "protocol": "3-4"}}, "protocol"),
    ],
)
def test_only_servers_that_agree_are_paired(changes: dict[str, Any], word: str) -> None:
    async def test() -> None:
        strange = decoder(document=document("receiver", **changes))
        async with stage(decoders=[strange, decoder()]) as on:
            for _ in range(4):
                assert await on.stream() == WHOLE_STREAM
            assert len(on.prefillers[0].asked) == len(on.decoders[1].asked) == 4 and not strange.asked
            health = await on.health()
            assert health["pairs"] == 1 and word in health["obstacles"][0]
            await on.decoders[1].kill()
            assert await on.stream() == WHOLE_STREAM and not strange.asked[-1].params

    run(test)


def test_a_draining_server_gets_nothing_new() -> None:
    async def test() -> None:
        async with stage([prefiller(), prefiller()]) as on:
            on.prefillers[0].health = (503, {"error": {"message": "ending", "code": "draining"}})
            await on.is_state("prefill", 0, "draining")
            for _ in range(3):
                await on.stream()
            assert not on.prefillers[0].asked and len(on.prefillers[1].asked) == 3
            on.prefillers[1].health = (503, b"oops")
            await on.is_state("prefill", 1, "unhealthy")
            assert await on.stream() == WHOLE_STREAM and len(on.prefillers[1].asked) == 3

    run(test)


def test_a_server_whose_requests_fail_is_left_alone_for_a_while() -> None:
    async def test() -> None:
        async with stage([prefiller(behaviours=[by.fails] * 4)], breaker_failures=3, breaker_pause=0.3) as on:
            server = on.prefillers[0]
            for _ in range(5):
                assert await on.stream() == WHOLE_STREAM
            assert len(server.asked) == 3 and await on.metric("server_breaker_open", role="prefill") == 1
            await on.shows(0, "server_breaker_open", role="prefill")
            await on.stream()
            # The probe failed.
            assert len(server.asked) == 4 and await on.metric("server_breaker_open", role="prefill") == 1
            await on.shows(0, "server_breaker_open", role="prefill")
            await on.stream()
            await on.stream()
            assert len(server.asked) == 6

    run(test)


def test_a_known_prefix_finds_its_servers() -> None:
    async def test() -> None:
        async with stage([prefiller(), prefiller()], [decoder(), decoder()]) as on:
            beginnings = [list(range(n, n + 640)) for n in (1, 10001, 20001)]
            for beginning in beginnings * 4:
                await on.stream(prompt=[*beginning, 7])
                await on.shows(0, "server_requests")
            for servers in (on.prefillers, on.decoders):
                for beginning in beginnings:
                    with_it = [
                        server
                        for server in servers
                        if any(asked.json["prompt"][0] == beginning[0] for asked in server.asked)
                    ]
                    assert len(with_it) == 1

    run(test)


def test_a_prompt_the_decoder_mostly_has_is_not_handed_over() -> None:
    async def test() -> None:
        async with stage(min_handover_tokens=100) as on:
            beginning = list(range(1, 641))
            await on.stream(prompt=[*beginning, 9])
            await on.stream(prompt=[*beginning, *range(50)])
            await on.stream(prompt=[1, 2, 3])
            await on.stream(prompt=[*beginning, *range(5000, 5200)])
            assert [bool(asked.params) for asked in on.decoders[0].asked] == [True, False, False, True]
            await on.shows(2, "direct_total", reason="short")

    run(test)


def test_the_end_aborts_what_does_not_finish() -> None:
    async def test() -> None:
        behaviours: list[by.Behaviour] = [by.stalls, by.waits]
        async with stage(decoders=[decoder(behaviours=behaviours)], shutdown_timeout=0.3) as on:
            begun, waiting = asyncio.create_task(on.stream()), None
            await wait_in_loop(lambda: on.decoders[0].asked)
            waiting = asyncio.create_task(on.complete())
            await wait_in_loop(lambda: len(on.decoders[0].asked) == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(10):
                while (health := await on.http.get("/health")).status_code == 200:
                    await asyncio.sleep(0.005)
            assert health.json()["error"]["code"] == "draining"
            assert (await on.complete()).status_code == 503
            content, answer = await asyncio.gather(begun, waiting)
            assert json.loads(content.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == "aborted"
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "aborted"
            await wait_in_loop(lambda: len(on.decoders[0].released) == len(on.prefillers[0].released) == 2)

    run(test)
