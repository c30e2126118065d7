"""Many requests while servers refuse, fail, freeze, die and come back at random: each is answered, no ticket is
forgotten.
"""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import pytest

from tests.server.proxy import scripted as by
from tests.server.proxy.scripted import DONE, TOKENS, Asked, Connection, Scripted, decoder, prefiller, run, stage

AT_PREFILL: list[by.Behaviour] = [by.refuses, by.fails, by.talks_nonsense, by.answers_nonsense, by.dies]
AT_DECODE: list[by.Behaviour] = [by.is_busy, by.dies, by.dies_midway, by.talks_nonsense]
ANSWERS = {"decoder_failed", "decoder_lost", "no_decoder", "overloaded"}


def moody(mood: random.Random, usual: by.Behaviour, troubles: list[by.Behaviour]) -> by.Behaviour:
    async def behaves(server: Scripted, asked: Asked, connection: Connection) -> None:
        await asyncio.sleep(mood.uniform(0, 0.03))
        await (mood.choice(troubles) if mood.random() < 0.2 else usual)(server, asked, connection)

    return behaves


async def weather(mood: random.Random, servers: list[Scripted]) -> None:
    """One server after the other has an accident."""
    while True:
        server = mood.choice(servers)
        if mood.random() < 0.5:
            server.frozen.set()
            await asyncio.sleep(mood.uniform(0.05, 0.8))
            server.frozen.clear()
        else:
            await server.kill()
            await asyncio.sleep(mood.uniform(0.0, 0.3))
            await server.restart()
        await asyncio.sleep(mood.uniform(0.1, 0.5))


async def client(on: by.Stage, mood: random.Random, ends: list[str]) -> None:
    stream = mood.random() < 0.6
    request = asyncio.create_task(on.complete(stream=stream, prompt=f"{mood.random()}"))
    if mood.random() < 0.1:
        await asyncio.sleep(mood.uniform(0, 0.1))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        return
    answer: httpx.Response = await request
    if answer.status_code != 200:
        ends.append(answer.json()["error"]["code"])
    elif not stream:
        assert answer.json()["usage"] == {"total": 6}
        ends.append("whole")
    elif answer.content == b"".join((*TOKENS, DONE)):
        ends.append("whole")
    else:
        *events, rest = answer.content.split(b"\n\n")
        assert not rest and b"".join(event + b"\n\n" for event in events[:-1]) == b"".join(TOKENS[: len(events) - 1])
        ends.append(json.loads(events[-1].removeprefix(b"data: "))["error"]["code"])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm(seed: int) -> None:
    async def test() -> None:
        mood = random.Random(seed)
        prefillers = [prefiller() for _ in range(2)]
        decoders = [decoder() for _ in range(3)]
        for server in prefillers:
            server.usual = moody(mood, by.computes, AT_PREFILL)
        for server in decoders:
            server.usual = moody(mood, by.tells, AT_DECODE)
        ends: list[str] = []
        async with stage(
            prefillers, decoders, breaker_pause=0.1, wait_timeout=2.0, silent_after=0.2, lost_after=0.4, decode_tries=4
        ) as on:
            accidents = asyncio.create_task(weather(mood, [*prefillers, *decoders]))
            for _ in range(5):
                await asyncio.gather(*(client(on, mood, ends) for _ in range(16)))
            accidents.cancel()
            await asyncio.gather(accidents, return_exceptions=True)
            assert set(ends) <= ANSWERS | {"whole"} and ends.count("whole") > len(ends) / 2
            for name in ("server_requests", "requests_in_flight", "server_waiting_tokens"):
                await on.shows(0, name)
            total = await on.metric("requests_total")
            ok = await on.metric("requests_total", outcome="ok")
            handed = await on.metric("requests_total", way="handover", outcome="ok")
            assert ok >= ends.count("whole") and total >= len(ends) and handed > 0
            drawn = {asked.params["ticket"] for server in prefillers for asked in server.asked}
            told = [asked.params.get("ticket") for server in decoders for asked in server.asked]
            given_on = [ticket for ticket in told if ticket is not None]
            assert len(given_on) == len(set(given_on)) and set(given_on) <= drawn
            # every ticket was used or given up: those released are told of to each side once, or the side was not to be
            # reached
            releases = [release["ticket"] for server in (*prefillers, *decoders) for release in server.released]
            assert max((releases.count(ticket) for ticket in set(releases)), default=0) <= 2

    run(test)
