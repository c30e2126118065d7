"""Every proxied request ends, releases each ticket once unless it was used, and asks no more servers than it may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homenode.server.proxy.proxied_request import (
    Action,
    Choose,
    Decode,
    Over,
    Prefill,
    ProxiedRequest,
    Relay,
    ReleaseTicket,
    RetryLimits,
)

FAULTS = ["refused", "rejected", "failed", "gone", "silent", "late"]


def limits(prefill_tries: int = 2, decode_tries: int = 3) -> RetryLimits:
    return RetryLimits(prefill_tries, decode_tries, wait_s=5.0, prefill_s=60.0, first_byte_s=70.0)


class Told:
    """Plays a proxied request and counts its tickets."""

    def __init__(self, proxied: ProxiedRequest) -> None:
        self.proxied = proxied
        self.drawn: list[str] = []
        self.released: list[str] = []
        self.prefills, self.decodes, self.waits = 0, 0, 0.0
        self.step: object = None

    def take(self, actions: list[Action]) -> None:
        *releases, step = actions
        assert all(isinstance(action, ReleaseTicket) for action in releases) and not isinstance(step, ReleaseTicket)
        for release in releases:
            assert (
                isinstance(release, ReleaseTicket) and release.ticket in self.drawn and len(set(release.servers)) == 2
            )
            self.released.append(release.ticket)
        if isinstance(step, Prefill):
            assert step.ticket not in self.drawn and step.deadline_s == 60.0
            self.drawn.append(step.ticket)
            self.prefills += 1
        if isinstance(step, Decode):
            assert step.ticket is None or (step.ticket == self.drawn[-1] and step.ticket not in self.released)
            assert step.deadline_s == 70.0
            self.decodes += 1
        self.step = step


@given(
    data=st.data(),
    handover=st.booleans(),
    prefill_tries=st.integers(1, 4),
    decode_tries=st.integers(1, 4),
)
def test_every_journey_ends(data: st.DataObject, handover: bool, prefill_tries: int, decode_tries: int) -> None:
    told = Told(ProxiedRequest("t", handover, limits(prefill_tries, decode_tries)))
    proxied, used = told.proxied, False
    told.take(proxied.begin())
    for _ in range(100):
        step = told.step
        if isinstance(step, Over):
            break
        if (sudden := data.draw(st.sampled_from([None] * 12 + ["gone", "abort"]))) is not None:
            told.take(proxied.client_gone() if sudden == "gone" else proxied.aborted())
        elif isinstance(step, Choose):
            assert step.wait_s <= 5.0 - told.waits and (not step.strict or not step.wait_s)
            waited = data.draw(st.floats(0, step.wait_s)) if step.wait_s else 0.0
            told.waits += waited
            open_prefillers = (
                [p for p in ("P1", "P2", "P3") if p not in step.failed_prefillers] if step.handover else []
            )
            prefiller = data.draw(st.sampled_from([None, *open_prefillers]))
            told.take(proxied.chosen(prefiller, data.draw(st.sampled_from([None, "D1", "D2", "D1"])), waited))
        elif isinstance(step, Prefill):
            fault = data.draw(st.sampled_from([None, *FAULTS]))
            told.take(proxied.prefilled() if fault is None else proxied.prefill_failed(fault))
        elif isinstance(step, Decode):
            fault = data.draw(st.sampled_from([None, None, "refused", "gone", "silent", "late"]))
            told.take(
                proxied.answering() if fault is None else proxied.decode_failed(fault, has_answer=fault == "refused")
            )
        elif isinstance(step, Relay):
            end = data.draw(st.sampled_from(["used", "unused", "cut"]))
            used = end == "used"
            told.take(proxied.cut("why") if end == "cut" else proxied.ended(used=used))
    assert isinstance(told.step, Over) and proxied.phase == "over"
    left = set(told.drawn) - set(told.released)
    assert len(told.released) == len(set(told.released)) and len(left) <= (1 if used else 0)
    assert told.decodes <= decode_tries and told.prefills < prefill_tries + decode_tries + 1
    if told.step.outcome == "ok":
        assert used and told.step.problem is None and not told.step.has_answer
    if told.step.outcome in ("error", "cut", "aborted") and told.step.problem is None:
        assert told.step.has_answer or told.decodes


def test_a_journey_without_trouble() -> None:
    proxied = ProxiedRequest("t", True, limits())
    assert proxied.begin() == [Choose(True, frozenset(), frozenset(), False, 5.0)]
    assert proxied.chosen("P", "D") == [Prefill("P", "D", "t", 60.0)] and proxied.phase == "prefilling"
    assert proxied.prefilled() == [Decode("D", "t", 70.0)] and proxied.phase == "handed"
    assert proxied.answering() == [Relay()] and proxied.phase == "decoding"
    assert proxied.ended(used=True) == [Over("ok")] and proxied.way == "handover"


def test_prefill_servers_fail_until_the_decoder_computes_the_prompt() -> None:
    proxied = ProxiedRequest("t", True, limits(prefill_tries=2))
    proxied.begin()
    proxied.chosen("P", "D")
    released, again = proxied.prefill_failed("silent")
    assert released == ReleaseTicket("t", ("P", "D"), "prefill silent") and again == Choose(
        True, frozenset({"P"}), frozenset(), False, 5.0
    )
    assert proxied.chosen("Q", "D") == [Prefill("Q", "D", "t.2", 60.0)]
    assert proxied.prefill_failed("gone")[-1] == Choose(False, frozenset({"P", "Q"}), frozenset(), False, 5.0)
    assert proxied.chosen(None, "D") == [Decode("D", None, 70.0)] and proxied.way == "local"


def test_a_request_that_is_wrong_is_the_decoder_s_to_refuse() -> None:
    proxied = ProxiedRequest("t", True, limits())
    proxied.begin()
    proxied.chosen("P", "D")
    assert proxied.prefill_failed("rejected")[-1] == Choose(False, frozenset({"P"}), frozenset(), False, 5.0)


def test_an_error_answer_is_passed_on_when_no_other_decoder_is_there() -> None:
    proxied = ProxiedRequest("t", True, limits())
    proxied.begin()
    proxied.chosen("P", "D")
    proxied.prefilled()
    assert proxied.decode_failed("refused", has_answer=True)[-1] == Choose(
        True, frozenset(), frozenset({"D"}), True, 0.0
    )
    assert proxied.chosen(None, None) == [Over("error", None, has_answer=True)]


def test_an_error_answer_that_was_held_back_is_forgotten_for_a_better_one() -> None:
    proxied = ProxiedRequest("t", False, limits())
    proxied.begin()
    proxied.chosen(None, "D")
    proxied.decode_failed("refused", has_answer=True)
    proxied.chosen(None, "E")
    proxied.answering()
    assert proxied.ended(used=False) == [Over("error")]
