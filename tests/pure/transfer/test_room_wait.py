"""How long a hand-over waits before it begins: whoever is full, dead, silent or slow, half as long as computing the
prompt takes, so that the first token comes within twice that time. Only an answer that a busy machine may delay is
waited for somewhat longer.
"""

from __future__ import annotations

from typing import Any

import pytest

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import Connect, ConnectFailed
from homenode.transfer.wire import message as m
from homenode.transfer.wire.message import PageRef
from tests.pure.transfer.bench import ALLOC, THEIRS, ReceiverBench, SenderBench, of, sent, told

MODES = pytest.mark.parametrize(
    ("mode", "channel"),
    [(mode, channel) for mode in ("push", "pull-eager", "pull-delay") for channel in ("shm", "tcp")],
)
TAKES = 0.5  # seconds that computing the prompt takes
WAITS = 0.25  # for room
ANSWER = 0.25  # and besides for an answer of the receiver


def refusal(actions: list[Any]) -> s.SendRefused:
    (refused,) = told(actions)
    assert isinstance(refused, s.SendRefused)
    return refused


def connected(mode: str = "pull-eager", channel: str = "shm", **more: Any) -> SenderBench:
    bench = SenderBench(mode, channel, **more)
    bench.want("first", 1, compute_s=TAKES)
    bench.connect()
    bench.frame(1, m.OfferReply(0, refused=True))
    return bench


@pytest.mark.parametrize(
    ("settings", "compute_s", "waits"),
    [
        ({}, TAKES, WAITS),
        ({}, 0.0, 1.0),  # nobody knows
        ({}, 0.0001, 0.02),
        ({}, 500.0, 10.0),
        ({"pd_room_wait": 3.0}, TAKES, 3.0),
        ({"pd_room_wait": 0.0}, TAKES, 0.0),
    ],
)
def test_how_long_it_waits(settings: dict[str, float], compute_s: float, waits: float) -> None:
    bench = connected(**settings)
    (offer,) = sent(bench.want("t", 3, compute_s=compute_s), m.Offer)
    assert offer.room_s == waits, "the receiver says by itself that it has no room"
    assert bench.machine.next_deadline() == waits + ANSWER
    assert bench.at(waits + ANSWER - 0.001) == []
    assert refusal(bench.at(waits + ANSWER)).ticket == "t" and bench.machine.idle


@MODES
def test_a_receiver_that_does_not_answer_costs_one_wait(mode: str, channel: str) -> None:
    bench = connected(mode, channel)
    bench.want("a", 3, compute_s=TAKES)
    actions = bench.at(WAITS + ANSWER)
    assert "did not answer" in refusal(actions).reason and sent(actions, m.Abandon)
    assert refusal(bench.want("c", 3, compute_s=TAKES)).retry_after_s == 2.0  # others are spared it
    bench.now = TAKES + 2.0
    assert sent(bench.want("d", 3, compute_s=TAKES), m.Offer), "the probe"
    assert "did not answer" in refusal(bench.at(2 * TAKES + 2.0)).reason


@MODES
def test_one_that_makes_room_in_time_is_taken(mode: str, channel: str) -> None:
    bench = connected(mode, channel)
    bench.want("t", 3, compute_s=TAKES)
    bench.now = WAITS + ANSWER - 0.01
    reply = m.OfferReply(1, [0, 1, 2]) if mode == "push" else m.OfferReply(1)
    assert [type(event) for event in told(bench.frame(1, reply))] == [s.SendAdmitted]
    assert not [event for event in told(bench.at(TAKES + 5.0)) if isinstance(event, s.SendRefused)]


@MODES
def test_a_sender_whose_buffer_is_full_costs_one_wait(mode: str, channel: str) -> None:
    bench = connected(mode, channel, pages=8)
    bench.want("large", 7, compute_s=TAKES)
    targets = [PageRef(THEIRS, 50 + n, 0) for n in range(7)] if (mode, channel) == ("push", "shm") else []
    bench.frame(1, m.OfferReply(1, targets=targets))
    bench.want("t", 3, compute_s=TAKES)
    assert "--pd-room-wait" in (reason := refusal(bench.at(WAITS)).reason) and "buffer was full" in reason
    assert "a moment ago" in refusal(bench.want("u", 3, compute_s=TAKES)).reason
    bench.engine(s.Abandoned("large", "its client left"))
    bench.lost(1, dead=True)
    bench.want("v", 3, compute_s=TAKES)
    assert sent(bench.connect(2, b"n" * 16), m.Offer), "there is room again"


def test_a_dead_receiver_costs_the_first_contact_alone() -> None:
    bench = SenderBench()
    assert of(bench.want("a", 3, compute_s=TAKES), Connect)
    assert "refused" in refusal(bench.feed(ConnectFailed(ALLOC, "connection refused"))).reason
    assert of(actions := bench.want("b", 3), Connect) == [] and refusal(actions).retry_after_s == 0.5
    bench.now = 0.5
    assert of(actions := bench.want("c", 3), Connect) and refusal(actions), "it is looked for again, without a wait"
    assert refusal(bench.want("d", 3))
    bench.connect()
    assert sent(bench.want("e", 3), m.Offer)


def test_a_receiver_that_cannot_be_reached_costs_the_time_of_a_first_contact() -> None:
    bench = SenderBench()
    bench.want("a", 3, compute_s=TAKES)
    assert "no connection" in refusal(bench.at(1.0)).reason
    assert told(bench.feed(ConnectFailed(ALLOC, "timed out"))) == [] and bench.machine.idle
    assert "timed out" in refusal(bench.want("b", 3, compute_s=TAKES)).reason


@pytest.mark.parametrize(("room_s", "waits"), [(0.1, 0.1), (0.0, 0.0), (None, 10.0), (60.0, 10.0)])
def test_a_full_receiver_says_so_when_the_sender_waits_no_longer(room_s: float | None, waits: float) -> None:
    bench = ReceiverBench(pages=4)
    bench.connect()
    bench.open("first", 4)
    bench.offer(1, "second", 3, room_s=room_s)
    assert not waits or sent(bench.at(waits - 0.001), m.OfferReply) == []
    (reply,) = sent(bench.at(waits), m.OfferReply)
    assert reply.alloc_failed and reply.retry_after_s > 0


@pytest.mark.parametrize(("room_s", "waits"), [(0.1, ANSWER), (0.0, ANSWER), (2.0, 2.0), (None, 10.0)])
def test_its_scheduler_has_longer_to_answer(room_s: float | None, waits: float) -> None:
    bench = ReceiverBench(pages=4)
    bench.connect()
    assert told(bench.offer(0, "t", 3, room_s=room_s))
    assert sent(bench.at(waits - 0.001), m.OfferReply) == []
    assert sent(bench.at(waits), m.OfferReply)[0].alloc_failed
