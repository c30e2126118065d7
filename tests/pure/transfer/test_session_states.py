"""Transfers go through the states of their tables, in any life, and each state holds what it says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import pytest

from homenode.errors import InternalError
from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import (
    RECEIVE_TRANSITIONS,
    SEND_TRANSITIONS,
    Limits,
    ReceiveState,
    SendState,
    Tell,
    check_transition,
)
from homenode.transfer.state.machines import ReceiverMachine, SenderMachine
from homenode.transfer.state.receive_session import UNANSWERED, ReceiveSession
from homenode.transfer.state.send_session import SendSession
from homenode.transfer.wire import message as m
from tests.pure.transfer.bench import BLOCK, ReceiverBench, of
from tests.pure.transfer.test_machines_played import CHANNELS, MODES, Fault, Plan, Play
from tools import transfer_states

TABLES: list[Any] = [RECEIVE_TRANSITIONS, SEND_TRANSITIONS]
START = {ReceiveState: ReceiveState.QUEUED, SendState: SendState.WAITING}
Arrow = tuple[Enum, Enum]


def arrows(table: Mapping[Any, Any]) -> set[Arrow]:
    return {(state, after) for state, every in table.items() for after in every}


@pytest.mark.parametrize("table", TABLES)
def test_every_state_is_reached_and_leads_to_the_end(table: Mapping[Any, Any]) -> None:
    kind = type(next(iter(table)))
    assert set(table) == set(kind)
    reached = walk(table, START[kind])
    ends = [state for state, every in table.items() if not every]
    assert reached == set(kind) and len(ends) == 1
    assert all(ends[0] in walk(table, state) for state in table)


def walk(table: Mapping[Any, Any], start: Enum) -> set[Enum]:
    reached, left = {start}, [start]
    while left:
        new = table[left.pop()] - reached
        reached |= new
        left += new
    return reached


@pytest.mark.parametrize("table", TABLES)
def test_no_other_transition_is_taken(table: Mapping[Any, Any]) -> None:
    for state in table:
        for after in table:
            if (state, after) in arrows(table):
                assert check_transition(table, state, after) is after
            else:
                with pytest.raises(InternalError, match=f"{state.name} cannot become {after.name}"):
                    check_transition(table, state, after)


def test_the_page_draws_the_tables() -> None:
    assert transfer_states.PAGE.read_text(encoding="utf-8") == transfer_states.page(), "python -m tools.transfer_states"


def check_received(session: ReceiveSession) -> None:
    state, window = session.state, session.window
    assert window.verified <= window.requested or not session.is_answered
    if state in UNANSWERED:
        assert session.blocks is None and not session.copies and not session.reads and not window.verified
    if state is ReceiveState.RECEIVING:
        assert not session.end_reason and not session.ending and not session.is_complete
    if state in (ReceiveState.CUT_OFF, ReceiveState.STOPPING, ReceiveState.WITHDRAWN, ReceiveState.REPORTED):
        assert session.end_reason
    if state is ReceiveState.STOPPING:
        assert (not session.reads and session.copies) or session.ending
    if state is ReceiveState.COMPLETE:
        assert session.is_complete and not session.reads
    if session.is_reported:
        assert not session.copies and not session.reads


def check_sent(session: SendSession) -> None:
    state = session.state
    assert session.announced <= session.requested <= session.computed <= session.pages
    if state is SendState.WAITING:
        assert session.process is None and session.pull_id < 0
    else:
        assert session.process is not None and session.pull_id >= 0
    if state in (SendState.WAITING, SendState.OFFERED):
        assert not session.copies and not session.sends and not session.table
    if state is SendState.SENDING:
        assert not session.end_reason
    if state is SendState.CUT_OFF:
        assert session.end_reason
    if state is SendState.COMPLETE:
        assert session.announced == session.pages and not session.end_reason


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Arrow]]:
    """The transitions that transfers go through; what each state says is checked after every input."""
    found: set[Arrow] = set()

    def spy(kind: type[Any]) -> None:
        enter = kind.enter

        def entered(session: Any, state: Enum) -> None:
            found.add((session.state, state))
            enter(session, state)

        monkeypatch.setattr(kind, "enter", entered)

    def checked(machine: type[Any], check: Callable[[Any], None]) -> None:
        for name in ("handle", "tick"):
            step = getattr(machine, name)

            def stepped(self: Any, *given: Any, step: Callable[..., Any] = step) -> Any:
                actions = step(self, *given)
                for session in self.sessions.pulls.values():
                    check(session)
                return actions

            monkeypatch.setattr(machine, name, stepped)

    spy(ReceiveSession)
    spy(SendSession)
    checked(ReceiverMachine, check_received)
    checked(SenderMachine, check_sent)
    yield found


def plans(rng: random.Random) -> list[Plan]:
    def maybe(least: float, most: float, often: float) -> float | None:
        return rng.uniform(least, most) if rng.random() < often else None

    return [
        Plan(
            at=rng.uniform(0, 2),
            sender=n,
            receiver=n,
            stem=rng.randrange(3),
            tokens=rng.choice([1, 40, 100, 300]),
            asked=maybe(0, 4, 0.8),
            aborted=maybe(0, 3, 0.3),
            abandoned=maybe(0, 2, 0.2),
        )
        for n in range(8)
    ]


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("mode", MODES)
def test_any_life_goes_through_the_table(mode: str, channel: str, walked: set[Arrow]) -> None:
    for seed in range(3):
        rng = random.Random(f"{mode} {channel} {seed}")
        play = Play(rng, mode, channel, senders=2, receivers=2, receiver_pages=24, corruption=0.02)
        play.world.full = 0.1
        for n, plan in enumerate(plans(rng)):
            play.plan(f"t{n}", plan)
        for _ in range(4):
            kind = rng.choice(["crash", "freeze", "break"])
            play.fault(Fault(rng.uniform(0, 3), kind, rng.randrange(4), rng.uniform(0.1, 2)))
        play.finish(8.0)
    assert walked <= arrows(RECEIVE_TRANSITIONS) | arrows(SEND_TRANSITIONS) and len(walked) >= 12


# Ways that few lives go: what happens, and the states of the transfer called t.


def queued_then_removed(bench: ReceiverBench) -> None:
    bench.offer(0, "first", 3)
    bench.offer(1, "t", 3)
    bench.at(60.0)  # no room in time


def queued_then_lost(bench: ReceiverBench) -> None:
    bench.offer(0, "first", 3)
    bench.offer(1, "t", 3)
    bench.lost(1)


def stopped_before_the_blocks_come(bench: ReceiverBench) -> None:
    bench.offer(0, "t", 3)
    bench.engine(s.Stopped("t"))
    assert of(bench.engine(s.Reserved("t", [1, 2, 3], 0)), Tell)[-1].event == s.Forgotten(0.0, "t")


def stopped_and_no_blocks(bench: ReceiverBench) -> None:
    bench.offer(0, "t", 3)
    bench.engine(s.Stopped("t"))
    bench.engine(s.ReservationFailed("t", 0, "full"))


def lost_and_read_to_the_end(bench: ReceiverBench) -> None:
    bench.open("t")
    actions = bench.frame(1, bench.ready(0, 3, True))
    bench.lost(1)
    bench.copies(actions)
    bench.engine(s.Claimed("t", 3 * BLOCK))


def stopped_during_the_last_copy(bench: ReceiverBench) -> None:
    bench.open("t")
    actions = bench.frame(1, bench.ready(0, 3, True))
    bench.engine(s.Stopped("t"))
    bench.copies(actions)


def silent_and_drained_too_late(bench: ReceiverBench) -> None:
    bench.open("t")
    bench.engine(s.Fetch("t", [], 0))
    bench.at(61.0)  # nothing was announced
    bench.at(70.0)  # nor has the sender stopped
    bench.frame(1, m.Drained(0))


RARE = [
    (queued_then_removed, "pull-eager", "QUEUED DETACHED"),
    (queued_then_lost, "pull-eager", "QUEUED WITHDRAWN DETACHED"),
    (stopped_before_the_blocks_come, "pull-eager", "QUEUED RESERVING WITHDRAWN ENDED DETACHED"),
    (stopped_and_no_blocks, "pull-eager", "QUEUED RESERVING WITHDRAWN DETACHED"),
    (lost_and_read_to_the_end, "pull-eager", "QUEUED RESERVING RECEIVING CUT_OFF COMPLETE ENDED DETACHED"),
    (stopped_during_the_last_copy, "pull-eager", "QUEUED RESERVING RECEIVING STOPPING COMPLETE ENDED DETACHED"),
    (silent_and_drained_too_late, "push", "QUEUED RESERVING RECEIVING CUT_OFF ENDED DETACHED"),
]


@pytest.mark.parametrize("life, mode, states", RARE, ids=[life.__name__ for life, _, _ in RARE])
def test_a_rare_life_goes_through_the_table(
    life: Callable[[ReceiverBench], None], mode: str, states: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    enter = ReceiveSession.enter

    def entered(session: ReceiveSession, state: ReceiveState) -> None:
        if session.ticket == "t":
            seen.extend([session.state.name] * (not seen) + [state.name])
        enter(session, state)

    monkeypatch.setattr(ReceiveSession, "enter", entered)
    bench = ReceiverBench(mode, pages=4, limits=Limits(chunk=1 << 20, read=1 << 20, silence=1e9))
    bench.connect()
    life(bench)
    assert " ".join(seen) == states and "t" not in bench.machine.sessions.tickets
