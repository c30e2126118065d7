"""A receiver in a process of its own that says Done before it answers the offer, and of hand-overs that were never
offered.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from homenode.transfer.scheduler_events import Computed, Returned, SendAdmitted, SendRefused, SendWanted
from homenode.transfer.state.machine import Connect, Connected, FromPeer, Input, Limits, Send
from homenode.transfer.wire.message import Done, DoneAck, Offer, OfferReply, Published, encode_published
from tests.host.transfer.pair import identities, running_engine
from tests.host.transfer.rig import FINGERPRINT, running
from tests.host.transfer.test_deaths import other_process
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

TOKENS, PAGES = 100, 4
HAND_OVERS, REPEATS = 20, 50
UNKNOWN, AT_ONCE = 10_000, 500
REMEMBERED = 64


class SaysDoneFirst:
    """What a scripted receiver answers: Done, many times; what it was asked, when it is told."""

    def __init__(self, replies: Callable[[Offer], list[int]] | None) -> None:
        self._replies = replies
        self._offers: dict[int, Offer] = {}
        self._acks: dict[int, int] = {}
        self._control = self._done = -1

    def __call__(self, given: Input) -> list[Any]:
        match given:
            case FromPeer(peer, Offer() as offer):
                self._control, self._offers[offer.pull_id] = peer, offer
                return (
                    self._signals(offer.pull_id)
                    if self._done >= 0
                    else [Connect(offer.done)] * (len(self._offers) == 1)
                )
            case Connected(peer, _, str(address)) if address:
                self._done = peer
                return [action for pull_id in self._offers for action in self._signals(pull_id)]
            case FromPeer(_, DoneAck(pull_id, "early")):
                self._acks[pull_id] = self._acks.get(pull_id, 0) + 1
                if self._acks[pull_id] == REPEATS and self._replies is not None:
                    return [Send(self._control, OfferReply(pull_id, self._replies(self._offers[pull_id])))]
            case FromPeer(peer, DoneAck(pull_id, "unknown")) if (
                pull_id + 1
            ) % AT_ONCE == 0 and pull_id + 1 < 10**6 + UNKNOWN:
                return [Send(peer, Done(n)) for n in range(pull_id + 1, pull_id + 1 + AT_ONCE)]
        return []

    def _signals(self, pull_id: int) -> list[Any]:
        return [Send(self._done, Done(pull_id))] * REPEATS

    def of_nothing(self) -> list[Any]:
        """Signals about hand-overs that nobody offered: some now, and as many again when they have been answered."""
        return [Send(self._done, Done(10**6 + n)) for n in range(AT_ONCE)]


def _receive(channel: str, has: str, said: Connection) -> None:
    held = {"all": lambda offer: list(range(len(offer.identities))), "none": lambda offer: []}.get(has)
    script = SaysDoneFirst(held)
    with running("receiver", channel, answer=script) as side:
        said.send(side.address())
        while said.recv() == "of nothing":
            side.do(*script.of_nothing())


def document(address: str, channel: str) -> bytes:
    return encode_published(
        Published(
            role="receiver",
            mode="pull-eager",
            channel=channel,
            incarnation="0" * 32,
            fingerprint=FINGERPRINT,
            block_size=32,
            alloc=[address],
        )
    )


@pytest.mark.parametrize("has", ["all", "none", "killed"])
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_done_before_the_answer_to_the_offer_is_remembered_in_bounded_memory(channel: str, has: str) -> None:
    """It counts when the answer comes: who has all pages is done with, whoever wants some has called it off, and
    whoever dies leaves nothing.
    """
    limits = Limits(remembered=REMEMBERED)
    with (
        running_engine("sender", channel=channel, blocks=256, limits=limits) as sender,
        other_process(_receive, channel, has) as (process, pipe),
    ):
        tickets, address = [f"t{n}" for n in range(HAND_OVERS)], pipe.recv()
        for ticket in tickets:
            wanted = SendWanted(
                ticket, document(address, channel), TOKENS, identities(ticket, TOKENS, sender.block_size)
            )
            sender.agent.tell(wanted)
        wait_until(lambda: sender.agent.figures().early == HAND_OVERS, "each is counted, and once")
        if has == "killed":
            os.kill(process.pid, signal.SIGKILL)
        for ticket in tickets:
            if has == "all":
                assert sender.wait(ticket, SendAdmitted).held == PAGES
                sender.agent.tell(Computed(ticket, PAGES, [], True))
                sender.wait(ticket, Returned)
            else:
                sender.wait(ticket, SendRefused)
        completed = HAND_OVERS if has == "all" else 0
        wait_until(lambda: sender.agent.figures().completed == completed, f"{completed} are complete")
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing is pinned")
        if has != "killed":
            pipe.send("of nothing")
            wait_until(
                lambda: sender.agent.figures().unknown == UNKNOWN, "those of hand-overs nobody offered are counted"
            )
            assert remembered(sender.agent) <= REMEMBERED
            assert sender.agent.statistics().refused == {}


def remembered(agent: Any) -> int:
    """Entries in all that the machine keeps of hand-overs."""
    machine = agent.machine
    return (
        len(machine.ctx.ended)
        + len(machine.sessions.pulls)
        + len(machine.sessions.tickets)
        + len(machine.ctx.deadlines)
    )
