"""One side of a hand-over dies, freezes or fails after each of its steps, in a process of its own; the other ends it in
time, and nothing is wrong.
"""

from __future__ import annotations

import contextlib
import signal
import time
from functools import partial
from itertools import product
from typing import Any

import pytest

from homenode.transfer.state.machine import Limits
from tests.host.transfer.pair import MODES
from tests.host.transfer.players import Child, Part, Player, children, playing, true_content
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

IN_TIME_S, LET_GO_S = 15.0, 4.0
PATIENT = Limits(chunk=4096, read=4096)
QUICK = Limits(
    chunk=4096,
    read=4096,
    connect=0.5,
    room=0.5,
    reply=1.0,
    heartbeat=0.1,
    silence=0.5,
    slowest=0.3,
    progress=1.0,
    drained=0.5,
    repeat=0.1,
    backoff=0.1,
)
LEASE = (("pd_pull_pending_ttl", 1.5),)
OTHER = {"sender": "receiver", "receiver": "sender"}


def steps_of(role: str, channel: str, mode: str) -> int:
    """How many steps this side of a hand-over has when nothing happens."""
    part = Part(role, channel, mode, "kill", 0, 0, "count", PATIENT)
    with children([part]) as (child,), playing(OTHER[role], channel, mode, PATIENT) as here:
        begin(here, [child])
        outcome = child.heard(IN_TIME_S, here)
        assert outcome.end in ("Returned", "all arrived"), child
        if role == "receiver":
            assert outcome.digests == here.expected["count"]
        else:
            assert here.ends()["count"].digests == true_content(part)
        return child.steps


def begin(here: Player, them: list[Child]) -> None:
    for child in them:
        child.pipe.send(here.document if here.role == "receiver" else b"")
    for child in them:
        if here.role == "sender":
            here.want(child.part.ticket, child.document)


def stands_still(child: Child) -> bool:
    return child.state in "TZ" or child.hear(0)


def come_to_rest(child: Child, here: Player) -> None:
    """It comes to its step or its end. A receiver whose sender has given up, as it may on a busy machine, need never
    have heard of its ticket.
    """
    ended = here.outcomes[child.part.ticket] if here.role == "sender" else None

    def rests() -> bool:
        return stands_still(child) or (ended is not None and ended.end not in ("", "Returned"))

    wait_until(rests, f"{child.part} comes to its step or its end")
    with contextlib.suppress(AssertionError):
        wait_until(partial(stands_still, child), "what it has heard of ends", LET_GO_S)


def check(here: Player, them: list[Child]) -> None:
    """Whatever arrived is what was sent."""
    for child in them:
        ticket = child.part.ticket
        if here.role == "receiver":
            outcome, wanted = here.outcomes.get(ticket), true_content(child.part)
        else:
            outcome, wanted = child.outcome, here.expected.get(ticket, [])
        if outcome is not None:
            assert outcome.digests == wanted[: len(outcome.digests)], f"{child.part}: {outcome.end} with other bytes"
            assert outcome.end != "all arrived" or len(outcome.digests) == len(wanted)
    assert here.untouched(), "blocks that are free were written to"


def serves_another(here: Player, channel: str, mode: str) -> None:
    with playing(OTHER[here.role], channel, mode, PATIENT) as fresh:
        sender, receiver = (here, fresh) if here.role == "sender" else (fresh, here)
        sender.want("after", receiver.document)
        wait_until(lambda: "after" in receiver.outcomes and bool(receiver.outcomes["after"].end), "the next one")
        assert (
            receiver.outcomes["after"].end == "all arrived"
            and receiver.outcomes["after"].digests == sender.expected["after"]
        )


def cases() -> list[Any]:
    """All of them take about ten seconds each: a few in the quick tests, and the others with the slow ones."""
    found = []
    for channel, mode, role, fault in product(
        ("shm", "tcp"), MODES, ("sender", "receiver"), ("kill", "freeze", "raise")
    ):
        quick = channel == "shm" and (fault == "kill" or (fault, mode) == ("freeze", "push"))
        found.append(pytest.param(channel, mode, role, fault, marks=() if quick else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("channel", "mode", "role", "fault"), cases())
def test_whatever_happens_after_any_step(channel: str, mode: str, role: str, fault: str) -> None:
    steps = steps_of(role, channel, mode)
    assert steps >= 10
    limits = QUICK if fault == "freeze" else PATIENT
    parts = [Part(role, channel, mode, fault, n, n, f"t{n}", limits, settings=LEASE) for n in range(1, steps + 1)]
    with children(parts) as them, playing(OTHER[role], channel, mode, limits, settings=dict(LEASE)) as here:
        begin(here, them)
        for child in them:
            if fault == "raise" and role == "receiver":
                continue  # it may never hear of its ticket
            come_to_rest(child, here)
        begun = time.monotonic()
        here.ends(IN_TIME_S)
        may_be_written = [ticket for ticket, outcome in here.outcomes.items() if outcome.end == "Quarantined"]
        assert not may_be_written or ((channel, mode) == ("shm", "push") and fault != "kill")
        if not may_be_written:
            wait_until(lambda: here.agent.figures().pinned_pages == 0, "nothing is pinned", IN_TIME_S)
        assert time.monotonic() - begun < IN_TIME_S
        check(here, them)
        if fault == "raise":
            end(them, here)
        if fault == "freeze":
            assert sum(child.state == "T" for child in them) >= steps // 2
            thaw(them, here)
        check(here, them)
        for child in them:
            child.signal(signal.SIGKILL)
        here.ends(IN_TIME_S)
        wait_until(lambda: here.agent.figures().pinned_pages == 0, "nothing is pinned", IN_TIME_S)
        check(here, them)
        serves_another(here, channel, mode)


def thaw(them: list[Child], here: Player) -> None:
    """They go on with what is long over; each ends its ticket, and takes nothing of what its pages are used for now."""
    for child in them:
        child.signal(signal.SIGCONT)
    end(them, here)


def end(them: list[Child], here: Player) -> None:
    """Each that has heard of its ticket ends it."""
    for child in them:
        if child.part.role == "sender":
            child.heard(IN_TIME_S, here)
        elif not child.hear(1.0):
            child.pipe.send("tell")  # it may never have heard of its ticket
            child.heard(IN_TIME_S, here)
