"""No step waits for a grammar that is being made: the loop keeps its request back, and everybody else goes on."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec
import pytest

from homenode.engine.messages import Abort, Drain, Submit
from homenode.engine.request import Request
from homenode.engine.runtime import held_requests
from tests.engine.test_core import expected, request, running
from tests.waiting import wait_until


class Grammars:
    """Those that are being made."""

    def __init__(self) -> None:
        self.made: dict[str, Future[None]] = {}

    def prepare(self, grammar: str) -> Future[None] | None:
        return None if grammar == "known" else self.made.setdefault(grammar, Future())


def bound(number: int, prompt: list[int], grammar: str = "new") -> Request:
    asked = request(number, prompt)
    return msgspec.structs.replace(asked, params=msgspec.structs.replace(asked.params, grammar=grammar))


@pytest.mark.parametrize("fails", [False, True])
def test_others_go_on_while_a_grammar_is_made(fails: bool) -> None:
    grammars = Grammars()
    with running(grammars=grammars.prepare) as front:
        front.core.post(Submit([bound(1, [5, 6]), request(2, [7, 8]), bound(3, [1, 2], "known"), bound(4, [3], "new")]))
        front.finish(2, 3)
        assert 1 not in front.outputs and 4 not in front.outputs
        if fails:  # the step that needs it says so
            grammars.made["new"].set_exception(ValueError("none"))
        else:
            grammars.made["new"].set_result(None)
        front.finish(1, 4)
        for number, prompt in ((1, [5, 6]), (2, [7, 8]), (3, [1, 2]), (4, [3])):
            assert front.tokens(number) == expected(prompt, 5)


def test_whoever_waits_for_a_grammar_may_leave() -> None:
    grammars = Grammars()
    with running(grammars=grammars.prepare) as front:
        front.core.post(Submit([bound(1, [5, 6])]))
        wait_until(lambda: "new" in grammars.made)
        front.core.post(Abort([1]))
        front.finish(1)
        assert [output.finish_reason for output in front.outputs[1]] == ["abort"]
        grammars.made["new"].set_result(None)  # for nobody
        front.core.post(Submit([request(2, [7])]))
        front.finish(2)
        assert len(front.outputs[1]) == 1


def test_a_request_is_not_kept_back_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_requests, "LONGEST_HOLD_S", 0.05)
    with running(grammars=Grammars().prepare) as front:
        front.core.post(Submit([bound(1, [5, 6])]))
        front.finish(1)
        assert front.tokens(1) == expected([5, 6], 5)


def test_a_drain_answers_whoever_was_kept_back() -> None:
    grammars = Grammars()
    with running(grammars=grammars.prepare) as front:
        front.core.post(Submit([bound(1, [5, 6])]))
        wait_until(lambda: "new" in grammars.made)
        front.core.post(Drain(30.0))
        front.finish(1)
        assert front.tokens(1) == expected([5, 6], 5)
        assert front.ended.wait(30) and front.failure is None


def test_at_rest_nobody_is_kept_back() -> None:
    held = held_requests.HeldRequests(lambda: 5.0)
    assert held.next_due() is None and held.release(1) == [] and held.release_due() == []
    held.hold(request(1, [2]))
    assert held.next_due() == 5.0 + held_requests.LONGEST_HOLD_S and held.release_due() == []
    assert [each.id for each in held.release_all()] == [1] and held.next_due() is None
