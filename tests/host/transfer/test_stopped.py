"""An agent that was stopped for a while, or whose lock was: what is said meanwhile, or a moment later, is heard before
anything else is done.
"""

from __future__ import annotations

import select
import time

from homenode.transfer.agent.agent_loop import GRACE_S, LATE_S
from homenode.transfer.scheduler_events import Released
from homenode.transfer.state.machine import Action, FromEngine, Input
from tests.host.transfer.rig import Side, running
from tests.waiting import wait_until

_DUE_S = 0.3


def missed(side: Side, heard: list[int]) -> bool:
    """Stop the agent past a deadline, then say something. False: the test itself was too late for that."""
    side.machine.ticks.clear()
    heard.clear()
    side.agent.tell(Released("t", "set a deadline"))
    side.machine.expect(FromEngine)
    with side.agent.working:
        due = side.machine.deadline
        wait_until(lambda: due is None or time.monotonic() > due + 2 * LATE_S, "the deadline has passed")
    begun = time.monotonic()
    wait_until(lambda: bool(side.machine.ticks) or time.monotonic() > begun + GRACE_S / 5, "time for a turn")
    side.agent.tell(Released("t", "say something"))
    side.machine.expect(FromEngine)
    return due is not None and time.monotonic() < begun + GRACE_S / 2


def test_what_is_said_a_moment_later_is_heard_first() -> None:
    heard: list[int] = []

    def answer(given: Input) -> list[Action]:
        if isinstance(given, FromEngine) and given.message == Released("t", "set a deadline"):
            side.machine.deadline = time.monotonic() + _DUE_S
        else:
            heard.append(len(side.machine.ticks))
        return []

    with running("receiver", answer=answer) as side:
        while not missed(side, heard):
            wait_until(lambda: side.machine.deadline is None, "the deadline")
        assert heard == [0]
        wait_until(lambda: bool(side.machine.ticks), "then the deadline is seen to")


def test_who_could_not_hear_does_not_rest_before_it_has() -> None:
    """What was said over a lane while it was looked at was not rung for."""
    with running("receiver") as side, select.epoll() as epoll:
        agent = side.agent
        agent.lead(epoll)

        def rests() -> bool:
            """Whether this thread, which leads, may sleep."""
            try:
                return agent.rest() != 0.0
            finally:
                agent.roused()

        wait_until(rests, "it has nothing to do")
        with agent.working:
            agent.hear()
        assert not any(rests() for _ in range(100))

        def hears() -> bool:
            agent.hear()
            return rests()

        wait_until(hears, "nothing is left to hear")
