"""Deadlines that were missed by much are put off, once."""

from __future__ import annotations

from homenode.transfer.agent.agent_loop import GRACE_S, LATE_S, SuspendGuard

DUE = 100.0
LATE = DUE + LATE_S + 1


def test_who_is_in_time_has_no_grace() -> None:
    grace = SuspendGuard()
    assert not grace.given(None, DUE)
    assert not grace.given(DUE, DUE)
    assert not grace.given(DUE, DUE + LATE_S)
    assert grace.not_before(DUE) == DUE


def test_a_deadline_missed_by_much_is_put_off_once() -> None:
    grace = SuspendGuard()
    assert grace.given(DUE, LATE)
    assert grace.not_before(DUE) == LATE + GRACE_S and grace.not_before(LATE + 9) == LATE + 9
    assert grace.given(DUE, LATE + GRACE_S / 2)
    assert not grace.given(DUE, LATE + GRACE_S)
    assert grace.not_before(DUE) == DUE


def test_however_late_all_turns_are_every_other_one_sees_to_what_is_due() -> None:
    grace = SuspendGuard()
    given = [grace.given(DUE, LATE + 10 * turn) for turn in range(6)]
    assert given == [True, False] * 3


def test_what_came_in_that_time_leaves_the_next_deadline_its_own() -> None:
    grace = SuspendGuard()
    assert grace.given(DUE, LATE)
    assert not grace.given(LATE + 10, LATE + 0.1)
    assert grace.not_before(DUE) == DUE
    assert grace.given(LATE + 10, LATE + 20)
