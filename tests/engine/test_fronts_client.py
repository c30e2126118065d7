"""A front's view of engines that another process started, without any of them: what it tells, and what it makes of what
it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from homenode.engine.fronts.messages import (
    Booked,
    EngineSeen,
    EnginesGone,
    Held,
    Known,
    LinkLost,
    Moved,
    RequestEnded,
    TicketGivenUp,
    TooMany,
    Unheld,
    Way,
)
from homenode.engine.fronts.numbers import first_number
from homenode.engine.messages import Abort, EngineReady, EngineStats, ReleaseKv, ReplicaStats, Submit
from homenode.engine.request import Request
from homenode.engine.router.dispatch import DispatchSettings
from homenode.engine.router.linked_client import LinkedClient, LinkedSettings, favourite_of
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.routed_stream import RoutedStream
from homenode.net.message_frames import FrameDecoder, decode_body
from homenode.transfer.scheduler_events import KvTicket
from homenode.transfer.wire.message import Published
from tests.engine.engines import greedy
from tests.engine.test_client import sync

READY = EngineReady("scripted", 8192, 1000, 512, 32, 2048, 16, True)


def front(
    number: int = 1, engines: int = 2, limit: int = 2, seed: int | None = None, favourite: int = 0
) -> tuple[LinkedClient, list[Any]]:
    told: list[Any] = []
    settings = LinkedSettings(
        READY, engines, DispatchSettings(32, True, limit, seed), RestartPolicy(), b"k" * 32, favourite
    )
    return LinkedClient(number, settings, told.append), told


def ask(client: LinkedClient, count: int, number: int = 1) -> RoutedStream:
    return client.submit(Request(id=first_number(number) + count, prompt_ids=[1, 2, 3], params=greedy(4)))


async def last(journey: RoutedStream) -> tuple[str | None, str]:
    outputs = [output async for output in journey]
    return outputs[-1].error_kind, outputs[-1].error or ""


@sync
async def test_a_request_without_an_engine_waits_unless_too_many_do_at_all_fronts() -> None:
    client, told = front()
    first, second, third = (ask(client, count) for count in (1, 2, 3))
    assert told == [Held(first_number(1) + 1), Held(first_number(1) + 2)], (
        "the third is one too many of this front alone"
    )
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
    seeds = [
        [ask(front(number, limit=0, seed=7)[0], 1, number).request.params.seed for _ in range(2)] for number in (1, 2)
    ]
    assert seeds[0][0] == seeds[0][1] and seeds[1][0] == seeds[1][1] and seeds[0][0] != seeds[1][0]


@pytest.mark.parametrize("engines", [1, 2])
def test_figures_are_those_the_coordinator_told(engines: int) -> None:
    client, _ = front(engines=engines)
    for number in range(engines):
        client.take(
            EngineSeen(
                ReplicaStats(number, None, "ready", number, 0, EngineStats(steps=5 + number, generation_tokens=10)), 512
            )
        )
    assert client.statistics.generation_tokens == 10 * engines
    assert [engine.number for engine in client.engines] == ([0, 1] if engines == 2 else []), "one engine has no number"
    assert client.hindrance is None


def seen(number: int, restarts: int = 0, blocks: int = 512, incarnation: str = "") -> EngineSeen:
    document = None
    if incarnation:
        document = Published(
            role="receiver", mode="push", channel="shm", incarnation=incarnation, fingerprint={}, block_size=32
        )
    return EngineSeen(
        ReplicaStats(number, None, "ready" if blocks else "restarting", restarts, 0, EngineStats(), document), blocks
    )


def come(client: LinkedClient, count: int, engine: str, ticket: str = "ticket") -> RoutedStream:
    """A request whose KV was handed to this engine."""
    kv = KvTicket(ticket, sends=False, engine=engine)
    return client.submit(Request(id=first_number(1) + count, prompt_ids=[1, 2, 3], params=greedy(4), kv=kv))


async def frames_of(end: socket.socket, count: int) -> list[bytes]:
    """The next so many frames that came to an engine."""
    decoder, found = FrameDecoder(), list[bytes]()
    end.setblocking(False)
    async with asyncio.timeout(20):
        while len(found) < count:
            found += decoder.feed(await asyncio.get_running_loop().sock_recv(end, 1 << 16))
    return found


class Wires:
    """The engines' ends of streams to a front."""

    def __init__(self, client: LinkedClient) -> None:
        self._client = client
        self._ends: list[socket.socket] = []

    async def connect(self, engine: int, process: int = 0) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._ends.append(ours)
        await self._client.connect(Way(engine, process), theirs)
        return ours

    def close(self) -> None:
        for engine in self._client._linked:
            engine.client.abandon("the test is over")
        for end in self._ends:
            end.close()


@contextlib.contextmanager
def wired(client: LinkedClient) -> Iterator[Wires]:
    wires = Wires(client)
    try:
        yield wires
    finally:
        wires.close()


@pytest.mark.parametrize("first", ["told", "connected"])
@sync
async def test_a_front_that_begins_late_knows_what_others_gave_to_the_engines(first: str) -> None:
    client, told = front(3)
    with wired(client) as wires:
        for number in range(2):
            if first == "connected":
                await wires.connect(number)
            client.take(seen(number))
        client.take(Booked(first_number(1) + 1, 0, 5000, []))
        client.take(Booked(first_number(2) + 1, 1, 100, []))
        for number in range(2):
            if first == "told":
                await wires.connect(number)
        ask(client, 1, 3)
        assert told[-1].engine == 1, "the other one has more to compute"
        client.take(RequestEnded(first_number(1) + 1))
        ask(client, 2, 3)
        assert told[-1].engine == 0


@sync
async def test_known_prefixes_draw_requests() -> None:
    one, told = front(1)
    other, heard = front(2)
    prompt = list(range(200))
    with wired(one) as wires, wired(other) as others:
        for number in range(2):
            for client, its in ((one, wires), (other, others)):
                client.take(seen(number))
                await its.connect(number)
        other.take(Booked(first_number(3) + 1, 0, 1, []))
        other.submit(Request(id=first_number(2) + 1, prompt_ids=prompt, params=greedy(4)))
        assert heard[-1].engine == 1
        one.take(Known(1, heard[-1].digests))
        one.take(Booked(first_number(3) + 2, 1, 100, []))
        one.submit(Request(id=first_number(1) + 1, prompt_ids=prompt, params=greedy(4)))
        assert told[-1] == Booked(first_number(1) + 1, 1, 200 - 192, heard[-1].digests)


@sync
async def test_requests_wait_while_the_stream_leads_to_a_process_that_is_no_more() -> None:
    client, told = front(engines=1)
    with wired(client) as wires:
        client.take(seen(0))
        await wires.connect(0)
        journey = ask(client, 1)
        assert told == [Booked(journey.request.id, 0, 3, [])]
        await wires.connect(0, process=1)  # before the coordinator has said anything
        assert told[1:] == [RequestEnded(journey.request.id), Moved(0), Held(journey.request.id), LinkLost(0, 0)]
        client.take(seen(0, blocks=0))
        assert len(told) == 5, "it still waits"
        client.take(seen(0, restarts=1))
        assert told[-2:] == [Unheld(journey.request.id), Booked(journey.request.id, 0, 3, [])]
        late = ask(client, 2)
        assert told[-1] == Booked(late.request.id, 0, 3, [])


@sync
async def test_a_request_goes_to_the_engine_that_its_kv_was_handed_to() -> None:
    client, told = front(engines=3)
    with wired(client) as wires:
        for number in range(3):
            client.take(seen(number, incarnation=f"{number:032x}"))
            await wires.connect(number)
        for count, wanted in enumerate((2, 2, 1, 2)):
            come(client, count + 1, f"{wanted:032x}")
            assert told[-1].engine == wanted
        client.take(seen(2, blocks=0))
        come(client, 5, f"{2:032x}")
        assert told[-1].engine == 0, "it is lost: any other computes the prompt"
        client.take(seen(2, restarts=1, incarnation="f" * 32))
        await wires.connect(2, process=1)
        come(client, 6, f"{2:032x}")
        assert told[-1].engine == 2, "as the one that has least to do, since its successor never had that KV"
        come(client, 7, f"{1:032x}")
        assert told[-1].engine == 1


@sync
async def test_a_ticket_is_given_up_whichever_front_is_told_and_whichever_engine_has_it() -> None:
    client, told = front(1)
    with wired(client) as wires:
        ends = []
        for number in range(2):
            client.take(seen(number, incarnation=f"{number:032x}"))
            ends.append(await wires.connect(number))
        mine = come(client, 1, "")
        other = come(client, 2, "", ticket="other")
        await client.release_kv("of-another-front", "it is late")
        assert told[-1] == TicketGivenUp("of-another-front")
        client.take(TicketGivenUp("ticket"))
        assert len(told) == 3, "what another front said is not said again"
        heard = [
            [decode_body(body, Submit | Abort | ReleaseKv) for body in await frames_of(end, count)]
            for end, count in zip(ends, (3, 2), strict=True)
        ]
    assert [type(each) for each in heard[0]] == [Submit, ReleaseKv, Abort] and [type(each) for each in heard[1]] == [
        Submit,
        ReleaseKv,
    ]
    assert heard[0][1] == heard[1][1] == ReleaseKv("of-another-front", "it is late")
    assert heard[0][2] == Abort([mine.request.id]) and heard[1][0].requests[0].id == other.request.id


@pytest.mark.parametrize(
    ("engines", "asked"), [(2, (5, 3)), (2, (1, 1)), (3, (4, 4, 4)), (4, (3, 3)), (4, (1, 1, 1, 1))]
)
@sync
async def test_fronts_that_are_asked_at_the_same_moment_do_not_choose_the_same_engine(
    engines: int, asked: tuple[int, ...]
) -> None:
    chosen: list[int] = []
    for slot, count in enumerate(asked):
        client, told = front(slot + 1, engines, favourite=favourite_of(slot, len(asked), engines))
        with wired(client) as wires:
            for number in range(engines):
                client.take(seen(number))
                await wires.connect(number)
            for each in range(count):  # none knows what the others were asked
                ask(client, each + 1, slot + 1)
            chosen += [each.engine for each in told if isinstance(each, Booked)]
    loads = [chosen.count(number) for number in range(engines)]
    assert sum(loads) == sum(asked) and max(loads) - min(loads) <= 1


@pytest.mark.parametrize(
    ("fronts", "engines", "favourites"),
    [(2, 2, [0, 1]), (2, 8, [0, 4]), (3, 2, [0, 1, 0]), (1, 1, [0]), (3, 3, [0, 1, 2])],
)
def test_favourites_are_spread(fronts: int, engines: int, favourites: list[int]) -> None:
    assert [favourite_of(slot, fronts, engines) for slot in range(fronts)] == favourites
