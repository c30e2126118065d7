"""What was answered ahead of a machine: it hears of it afterwards, in order, and has to agree."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.errors import InternalError
from homenode.transfer.agent.fast_path import MachineDriver
from homenode.transfer.scheduler_events import Returned, SendAdmitted, Unused
from homenode.transfer.state.machine import Action, FromEngine, Input, Own, Tell
from homenode.transfer.wire.message import Buffer
from tests.host.transfer.rig import ScriptedMachine, layout


def told(ticket: str) -> Tell:
    return Tell(Returned(1.0, ticket))


def ended(ticket: str) -> Input:
    return FromEngine(Unused(ticket))


class Played:
    """A feeder whose machine answers as `answers` says, and what was performed."""

    def __init__(self, answers: dict[Any, list[Action]]) -> None:
        self.performed: list[Action] = []
        machine = ScriptedMachine(Own(Buffer(bytes(16), layout()), None, bytes(16), ""), lambda given: answers[given])
        self.heard = machine.inputs
        self.feeder = MachineDriver(machine, self.performed.append, lambda _: None, lambda: 2.0)

    def defer(self, ticket: str) -> None:
        self.feeder.defer(lambda: (ended(ticket), [told(ticket)], []), 1.0, ticket)


def test_all_that_is_deferred_is_told_in_order_and_done_once() -> None:
    other = Tell(SendAdmitted(1.0, "b"))
    played = Played({ended("a"): [told("a")], ended("b"): [other, told("b")], ended("c"): []})
    played.defer("a")
    played.defer("b")
    assert played.feeder.behind and played.feeder.announced == {"a", "b"} and not played.performed
    played.feeder.feed(ended("c"))
    assert [played.heard.get(timeout=0) for _ in "abc"] == [ended("a"), ended("b"), ended("c")]
    assert played.performed == [other]  # the rest was done already
    assert not played.feeder.behind and played.feeder.announced == frozenset()


def test_a_machine_that_would_have_said_something_else_ends_it() -> None:
    played = Played({ended("a"): [told("a")], ended("b"): [told("a")]})
    played.defer("a")
    played.defer("b")
    with pytest.raises(InternalError, match="otherwise than was foreseen"):
        played.feeder.catch_up()
    assert played.feeder.announced == {"b"}  # its pages are read by somebody, whatever the machine thinks
