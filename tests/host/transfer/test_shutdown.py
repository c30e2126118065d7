"""An engine is told to end while hand-overs run, to one peer that answers and to one that stands still: it ends in
time, and leases do the rest.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

import pytest

from homenode.transfer.scheduler_events import (
    Abandoned,
    Arrived,
    Claimed,
    Computed,
    Fetch,
    Offered,
    Returned,
    SendAdmitted,
)
from homenode.transfer.state.machine import Limits
from tests.host.transfer.pair import MODES, Engine, running_engine, want
from tests.host.transfer.test_deaths import _Document, freeze, other_process
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

TOKENS = 300
DRAIN_S = 1.0
AT_THE_LATEST_S = DRAIN_S + 2.0  # a machine that is busy elsewhere, too
LEASE_S = 1.5
LIMITS = Limits(heartbeat=0.1, silence=0.5, progress=60.0, drained=0.5, repeat=0.1)
SETTINGS = {"pd_pull_pending_ttl": LEASE_S}
QUICK = [(channel, mode, "some") for channel in ("shm", "tcp") for mode in MODES] + [("shm", "pull-delay", "all")]
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in product(("shm", "tcp"), MODES, ("offered", "some", "all"))
]


def sends(sender: Engine, ticket: str, document: bytes, step: str) -> None:
    """As far as this step."""
    want(sender, _Document(document), ticket, TOKENS)  # type: ignore[arg-type]
    sender.wait(ticket, SendAdmitted)
    blocks = sender.take_blocks(ticket, TOKENS)
    if step != "offered":
        sender.agent.tell(Computed(ticket, 0, blocks if step == "all" else blocks[:4], step == "all"))


def receives(receiver: Engine, ticket: str, mode: str, step: str) -> None:
    """What has been announced by this step is there, unless nothing is read before a request has come."""
    receiver.wait(ticket, Offered)
    if mode != "pull-delay":
        receiver.agent.tell(Fetch(ticket, receiver.placed[ticket], 0))
        if step != "offered":
            receiver.wait(ticket, Arrived)


def _sender(channel: str, mode: str, step: str, tickets: list[str], said: Connection) -> None:
    with running_engine("sender", channel=channel, mode=mode, limits=LIMITS, settings=SETTINGS) as sender:
        for ticket in tickets:
            sends(sender, ticket, said.recv(), step)
        said.send("there")
        _obey(sender, tickets, said)


def _receiver(channel: str, mode: str, step: str, tickets: list[str], said: Connection) -> None:
    with running_engine("receiver", channel=channel, mode=mode, limits=LIMITS, settings=SETTINGS) as receiver:
        said.send(receiver.document)
        for ticket in tickets:
            receives(receiver, ticket, mode, step)
        said.send("there")
        _obey(receiver, tickets, said)


def _obey(engine: Engine, tickets: list[str], said: Connection) -> None:
    """Close, or see every ticket to its end; say whether all went well."""
    if said.recv() == "close":
        begun = time.monotonic()
        engine.agent.close(DRAIN_S)
        said.send((time.monotonic() - begun, engine.agent.statistics().broken))
        said.recv()
        os._exit(0)
    for ticket in tickets:
        is_over(engine, ticket)
    said.send("nothing is pinned")
    said.recv()


def is_over(engine: Engine, ticket: str) -> None:
    """Its end is told, in time; and when the scheduler has done its part, nothing is kept."""
    in_time = DRAIN_S + LEASE_S + 5
    if engine.role == "sender":
        engine.agent.tell(Abandoned(ticket, "a test"))  # computes no more of it
        engine.wait(ticket, Returned, timeout=in_time)
    else:
        assert engine.ended(ticket, TOKENS, in_time) is not None, "neither all arrived nor an end was told"
        engine.agent.tell(Claimed(ticket, 0))
    wait_until(lambda: engine.agent.figures().pinned_pages == 0, f"{ticket}: nothing is pinned", in_time)


def closes(process: Any, pipe: Connection) -> None:
    pipe.send("close")
    assert pipe.poll(AT_THE_LATEST_S), "it does not end"
    took, broken = pipe.recv()
    assert took < AT_THE_LATEST_S and not broken
    pipe.send("end")
    process.join(AT_THE_LATEST_S)
    assert process.exitcode == 0


def wakes(process: Any, pipe: Connection) -> None:
    """The one that stood still gives back what it kept for somebody who is gone."""
    os.kill(process.pid, signal.SIGCONT)
    pipe.send("what is left")
    assert pipe.poll(LEASE_S + 10) and pipe.recv() == "nothing is pinned"
    pipe.send("end")


@pytest.mark.parametrize(("channel", "mode", "step"), CASES)
def test_a_sender_ends_in_time_whatever_its_receivers_do(channel: str, mode: str, step: str) -> None:
    with (
        other_process(_receiver, channel, mode, step, ["frozen"]) as (frozen, to_frozen),
        other_process(_sender, channel, mode, step, ["frozen", "here"]) as (ending, to_ending),
        running_engine("receiver", channel=channel, mode=mode, limits=LIMITS, settings=SETTINGS) as here,
    ):
        to_ending.send(to_frozen.recv())
        to_ending.send(here.document)
        assert to_frozen.recv() == to_ending.recv() == "there"
        receives(here, "here", mode, step)
        freeze(frozen)
        closes(ending, to_ending)
        is_over(here, "here")
        wakes(frozen, to_frozen)


@pytest.mark.parametrize(("channel", "mode", "step"), CASES)
def test_a_receiver_ends_in_time_whatever_its_senders_do(channel: str, mode: str, step: str) -> None:
    with (
        other_process(_receiver, channel, mode, step, ["frozen", "here"]) as (ending, to_ending),
        other_process(_sender, channel, mode, step, ["frozen"]) as (frozen, to_frozen),
        running_engine("sender", channel=channel, mode=mode, limits=LIMITS, settings=SETTINGS) as here,
    ):
        document = to_ending.recv()
        to_frozen.send(document)
        sends(here, "here", document, step)
        assert to_frozen.recv() == to_ending.recv() == "there"
        freeze(frozen)
        closes(ending, to_ending)
        is_over(here, "here")
        wakes(frozen, to_frozen)
