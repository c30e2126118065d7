"""A front's view of engines that another process started, without any of them: what it tells, and what it makes of what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.engine.fronts.client import LinkedClient, LinkedSettings
from homenode.engine.fronts.messages import EngineSeen, EnginesGone, Held, TooMany, Unheld
from homenode.engine.fronts.numbers import first_number
from homenode.engine.messages import EngineFigures, Ready, Statistics
from homenode.engine.replicas.dispatch import DispatchSettings
from homenode.engine.replicas.journey import Journey
from homenode.engine.replicas.patience import Patience
from homenode.engine.request import Request
from tests.engine.engines import greedy
from tests.engine.test_client import sync

READY = Ready("scripted", 8192, 1000, 512, 32, 2048, 16, True)


def front(number: int = 1, engines: int = 2, limit: int = 2, seed: int | None = None) -> tuple[LinkedClient, list[Any]]:
    told: list[Any] = []
    settings = LinkedSettings(READY, engines, DispatchSettings(32, True, limit, seed), Patience(), b"k" * 32)
    return LinkedClient(number, settings, told.append), told


def ask(client: LinkedClient, count: int, number: int = 1) -> Journey:
    return client.submit(Request(id=first_number(number) + count, prompt_ids=[1, 2, 3], params=greedy(4)))


async def last(journey: Journey) -> tuple[str | None, str]:
    outputs = [output async for output in journey]
    return outputs[-1].error_kind, outputs[-1].error or ""


@sync
async def test_a_request_without_an_engine_waits_unless_too_many_do_at_all_fronts() -> None:
    client, told = front()
    first, second, third = (ask(client, count) for count in (1, 2, 3))
    assert told == [Held(first_number(1) + 1), Held(first_number(1) + 2)], "the third is one too many of this front alone"
    assert (await last(third))[0] == "OverloadedError"
    client.take(TooMany(first_number(1) + 2, 2))
    kind, text = await last(second)
    assert kind == "OverloadedError" and text.startswith("2 requests wait")
    first.close()
    assert told[2:] == [Unheld(first_number(1) + 1)]
    client.take(TooMany(first_number(1) + 1, 2))  # too late to matter


@pytest.mark.parametrize(("engines", "kind"), [(1, "PeerError"), (2, "WorkerLostError")])
@sync
async def test_who_waits_hears_that_no_engine_comes(engines: int, kind: str) -> None:
    client, _ = front(engines=engines)
    heard: list[str] = []
    client.on_engine_lost = heard.append
    waiting = ask(client, 1)
    client.take(EnginesGone("it burned"))
    assert heard == ["it burned"]
    for journey in (waiting, ask(client, 2)):
        found, text = await last(journey)
        assert found == kind and "it burned" in text


def test_fronts_draw_different_seeds_and_each_the_same_again() -> None:
    seeds = [[ask(front(number, limit=0, seed=7)[0], 1, number).request.params.seed for _ in range(2)] for number in (1, 2)]
    assert seeds[0][0] == seeds[0][1] and seeds[1][0] == seeds[1][1] and seeds[0][0] != seeds[1][0]


@pytest.mark.parametrize("engines", [1, 2])
def test_figures_are_those_the_coordinator_told(engines: int) -> None:
    client, _ = front(engines=engines)
    for number in range(engines):
        client.take(EngineSeen(EngineFigures(number, None, "ready", number, 0, Statistics(steps=5 + number, generation_tokens=10)), None))
    assert client.statistics.generation_tokens == 10 * engines
    assert [engine.number for engine in client.engines] == ([0, 1] if engines == 2 else []), "one engine has no number"
    assert client.hindrance is None
