"""The parts of the transfer machines, each for itself."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import InternalError
from homenode.transfer.state.deadlines import DeadlineHeap, DoneQueue, Leases, RecentEnds, ReleasedTickets
from homenode.transfer.state.ledger import Ledger, PageState
from homenode.transfer.state.machine import Limits
from homenode.transfer.state.peers import PageQuota, PeerBreaker, Rate
from homenode.transfer.wire.message import Done
from tests.examples import examples


def always(peer: str, owner: str) -> bool:
    return True


def admit_all(admission: PageQuota, peers: int) -> list[str]:
    admitted = []
    while (owner := admission.admit(always, peers)) is not None:
        admitted.append(owner)
    return admitted


class TestDeadlines:
    def test_come_in_order_and_once(self) -> None:
        deadlines = DeadlineHeap()
        for name, when in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
            deadlines.set(name, when)
        assert deadlines.next() == 1.0
        assert [deadlines.due(2.5), deadlines.due(2.5), deadlines.due(2.5)] == ["a", "b", None]
        assert len(deadlines) == 1

    def test_can_be_moved_both_ways_and_dropped(self) -> None:
        deadlines = DeadlineHeap()
        deadlines.set("a", 1.0)
        deadlines.set("a", 5.0)
        assert deadlines.due(4.0) is None
        deadlines.set("a", 2.0)
        assert deadlines.next() == 2.0
        deadlines.drop("a")
        assert deadlines.next() is None

    def test_many_moves_keep_nothing(self) -> None:
        deadlines = DeadlineHeap()
        for n in range(20_000):
            deadlines.set(n % 3, float(n))
        assert len(deadlines._heap) < 200

    @given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.floats(0, 100)))))
    def test_as_a_dictionary_would(self, steps: list[tuple[int, float | None]]) -> None:
        deadlines, plain = DeadlineHeap(), dict[int, float]()
        for key, when in steps:
            if when is None:
                deadlines.drop(key)
                plain.pop(key, None)
            else:
                deadlines.set(key, when)
                plain[key] = when
            assert deadlines.next() == min(plain.values(), default=None)
        assert {deadlines.due(1e9) for _ in range(len(plain))} == set(plain)


class TestLedger:
    def test_a_page_is_free_when_the_last_owner_lets_go_and_only_then_its_epoch_changes(self) -> None:
        """Row 26: one of two readers of a shared prefix goes."""
        ledger = Ledger(8)
        ledger.pin("a", [1, 2], PageState.READY)
        ledger.pin("b", [2, 3], PageState.READY)
        before = ledger.epochs([1, 2, 3])
        assert ledger.end("a") == ([1], [before[0] + 1])
        assert ledger.owners(2) == ("b",) and ledger.state(2) is PageState.READY and ledger.epochs([2]) == [before[1]]
        freed, epochs = ledger.end("b")
        assert freed == [2, 3] and epochs == [before[1] + 1, before[2] + 1]
        assert ledger.pinned == 0 and ledger.state(2) is PageState.FREE

    def test_ending_twice_frees_nothing_twice(self) -> None:
        ledger = Ledger(4)
        ledger.pin("a", [0], PageState.READY)
        ledger.end("a")
        assert ledger.end("a") == ([], [])

    @pytest.mark.parametrize("pages", [[4], [-1], [1, 1]])
    def test_pages_out_of_range_or_twice_are_refused_whole(self, pages: list[int]) -> None:
        ledger = Ledger(4)
        with pytest.raises(InternalError):
            ledger.pin("a", [0, *pages], PageState.READY)
        assert ledger.pinned == 0 and ledger.kept("a") == ()

    def test_poison_stays_until_the_page_is_free(self) -> None:
        """Row 25: what was found bad is never ready."""
        ledger = Ledger(4)
        ledger.pin("a", [0], PageState.FILLING)
        ledger.mark([0], PageState.POISONED)
        ledger.mark([0], PageState.READY)
        ledger.pin("b", [0], PageState.READY)
        assert ledger.state(0) is PageState.POISONED
        ledger.end("a")
        ledger.end("b")
        ledger.pin("c", [0], PageState.READY)
        assert ledger.state(0) is PageState.READY

    def test_nobodys_page_has_no_state_to_change(self) -> None:
        with pytest.raises(InternalError):
            Ledger(4).mark([0], PageState.READY)

    def test_pages_are_allocated_once_and_again_after_they_came_back(self) -> None:
        ledger = Ledger(4)
        first = ledger.take("a", 3)
        assert len(set(first)) == 3
        with pytest.raises(InternalError):
            ledger.take("b", 2)
        ledger.give_back(ledger.end("a")[0])
        assert sorted(ledger.take("b", 4)) == [0, 1, 2, 3]


class TestAdmission:
    def test_whole_or_nothing_in_order(self) -> None:
        """Row 18: N requests can never hold half of what they need each."""
        admission = PageQuota(10)
        for name in "abc":
            admission.wait(name, "p", 6)
        assert admit_all(admission, 1) == ["a"]
        assert (admission.used, admission.waiting, admission.holds("a")) == (6, 2, 6)
        admission.release("a")
        assert admit_all(admission, 1) == ["b"]

    def test_the_headroom_is_kept_but_for_one_alone(self) -> None:
        admission = PageQuota(100, 10.0)
        assert admission.mark == 90
        admission.wait("a", "p", 91)
        assert admit_all(admission, 1) == ["a"]  # alone it may have all of it
        admission.wait("b", "p", 1)
        assert admit_all(admission, 1) == []
        admission.release("a")
        assert admit_all(admission, 1) == ["b"]
        assert not admission.fits_ever(101)

    def test_a_slow_peer_leaves_room_for_others(self) -> None:
        """Row 20, 21: its pages are never given back, others come through all the same."""
        admission = PageQuota(90)
        for n in range(90):
            admission.wait(f"slow{n}", "slow", 1)
        admit_all(admission, 2)
        assert admission.used <= 60
        for n in range(50):
            admission.wait(f"quick{n}", "quick", 3)
            assert f"quick{n}" in admit_all(admission, 2)
            admission.release(f"quick{n}")

    def test_one_peer_alone_may_have_all(self) -> None:
        admission = PageQuota(90)
        for n in range(90):
            admission.wait(f"a{n}", "a", 1)
        assert len(admit_all(admission, 1)) == 90

    def test_whoever_holds_least_goes_first(self) -> None:
        admission = PageQuota(12)
        for n in range(6):
            admission.wait(f"a{n}", "a", 2)
        for n in range(2):
            admission.wait(f"b{n}", "b", 2)
        assert admit_all(admission, 2)[:4] == ["a0", "b0", "a1", "b1"]

    def test_a_large_one_is_passed_only_so_often(self) -> None:
        admission = PageQuota(10)
        admission.wait("first", "a", 5)
        assert admit_all(admission, 3) == ["first"]
        admission.wait("large", "b", 8)
        passed = 0
        for n in range(100):
            admission.wait(f"small{n}", "c", 1)
            passed += f"small{n}" in admit_all(admission, 3)
            admission.release(f"small{n}")
        assert passed == 16
        admission.release("first")
        assert admit_all(admission, 3)[0] == "large"

    def test_who_may_not_go_holds_nobody_up(self) -> None:
        admission = PageQuota(10)
        admission.wait("a", "closed", 10)
        admission.wait("b", "open", 10)
        assert admission.admit(lambda peer, owner: peer == "open", 2) == "b"

    def test_what_is_held_is_given_back(self) -> None:
        admission = PageQuota(10)
        admission.wait("a", "p", 10)
        admit_all(admission, 1)
        admission.keep("a", 4)
        assert admission.used == 4
        admission.release("a")
        admission.release("a")
        assert admission.used == 0 and not admission._used and not admission._held

    @settings(derandomize=True, max_examples=examples(100), deadline=None)
    @given(st.integers(0, 1 << 30), st.integers(1, 40), st.floats(0, 50))
    def test_never_more_than_there_is_and_everybody_gets_a_turn(self, seed: int, total: int, reserve: float) -> None:
        rng, admission, held, n = random.Random(seed), PageQuota(total, reserve), set[str](), 0
        need = Counter[str]()
        for _ in range(300):
            if rng.random() < 0.5:
                n += 1
                name, peer = f"o{n}", rng.choice("abc")
                need[name] = rng.randint(1, total)
                admission.wait(name, peer, need[name])
            elif held:
                gone = rng.choice(sorted(held))
                held.discard(gone)
                admission.release(gone)
            held.update(admit_all(admission, 3))
            assert admission.used == sum(need[name] for name in held) <= total
            assert admission.used <= admission.mark or len(held) == 1
        while held:
            for gone in held:
                admission.release(gone)
            held = set(admit_all(admission, 3))
        assert admission.waiting == 0 and admission.used == 0


class TestBreaker:
    def test_open_then_one_probe_then_closed(self) -> None:
        breaker = PeerBreaker(2.0)
        assert breaker.ask("a", 0.0) == "go"
        breaker.go("a")
        breaker.failed(0.0)
        assert breaker.ask("b", 1.9) == "refuse" and breaker.left(0.5) == 1.5
        assert breaker.ask("b", 2.0) == "go"
        breaker.go("b")
        assert breaker.ask("b", 2.0) == "go" and breaker.ask("c", 2.1) == "wait"
        breaker.succeeded()
        assert breaker.ask("c", 2.2) == "go" and not breaker.open

    def test_a_failed_probe_opens_it_again(self) -> None:
        breaker = PeerBreaker(2.0)
        breaker.failed(0.0)
        breaker.go("a")
        breaker.failed(3.0)
        assert breaker.ask("b", 4.9) == "refuse" and breaker.ask("b", 5.0) == "go"

    def test_a_probe_without_an_answer_hands_on(self) -> None:
        breaker = PeerBreaker(2.0)
        breaker.failed(0.0)
        breaker.go("a")
        assert breaker.ask("b", 2.0) == "wait"
        breaker.spared("x")
        assert breaker.ask("b", 2.0) == "wait"
        breaker.spared("a")
        assert breaker.ask("b", 2.0) == "go"

    def test_the_receiver_may_ask_for_longer_but_not_for_ever(self) -> None:
        breaker = PeerBreaker(2.0)
        breaker.failed(0.0, 5.0)
        assert breaker.left(0.0) == 5.0
        breaker.failed(0.0, 1e6)
        assert breaker.left(0.0) == 16.0

    def test_without_a_time_it_never_opens(self) -> None:
        breaker = PeerBreaker(0.0)
        breaker.failed(0.0, 5.0)
        assert breaker.ask("a", 0.0) == "go" and not breaker.open


class TestLeases:
    def test_end_unless_renewed_and_not_for_ever(self) -> None:
        deadlines = DeadlineHeap()
        leases = Leases(10.0, 25.0, deadlines)
        leases.grant(1, 0.0)
        assert leases.renew([1, 2], 8.0) == [2]
        assert deadlines.next() == 18.0
        leases.renew([1], 17.0)
        assert deadlines.next() == 25.0
        assert leases.end(1) and not leases.end(1)
        assert deadlines.next() is None and len(leases) == 0


class TestRate:
    def test_large_and_slow_is_not_dead(self) -> None:
        """Row 7: deadlines follow size and measured rate."""
        limits = Limits()
        rate = Rate(limits)
        assert rate.allowed(1) == limits.slowest
        rate.took(100 << 20, 0.0, 1.0)
        assert rate.allowed(1 << 30) == pytest.approx(limits.patience * 10.24)
        for n in range(40):
            rate.took(1 << 30, n + 1.0, n + 2.0)
        assert rate.allowed(1 << 30) == pytest.approx(limits.patience, rel=0.05)

    def test_what_waited_behind_another_was_not_slow(self) -> None:
        rate = Rate(Limits())
        rate.took(1 << 20, 0.0, 1.0)
        rate.took(1 << 20, 0.0, 2.0)
        assert rate.bytes_per_second == pytest.approx(1 << 20, rel=4)

    def test_nothing_is_believed_to_be_slower_than_the_worst(self) -> None:
        limits = Limits()
        rate = Rate(limits)
        rate.took(1, 0.0, 1e6)
        assert rate.bytes_per_second == limits.worst_rate
        rate.took(0, 1e6, 1e6)
        assert rate.bytes_per_second == limits.worst_rate


class TestDones:
    def test_said_again_until_acknowledged(self) -> None:
        """Row 14: a lost Done."""
        limits, deadlines = Limits(repeat=1.0), DeadlineHeap()
        dones = DoneQueue(limits, deadlines)
        dones.say(b"s", Done(7), 0.0, 100.0)
        times = []
        while (when := deadlines.next()) is not None and len(times) < 8:
            assert deadlines.due(when) == ("done", b"s", 7)
            assert dones.again((b"s", 7), when) == Done(7)
            times.append(when)
        assert times == [1.0, 3.0, 7.0, 15.0, 31.0, 47.0, 63.0, 79.0]
        assert dones.acknowledged((b"s", 7)) and not dones.acknowledged((b"s", 7))
        assert deadlines.next() is None

    def test_given_up_when_the_lease_has_ended_in_any_case(self) -> None:
        limits, deadlines = Limits(repeat=1.0), DeadlineHeap()
        dones = DoneQueue(limits, deadlines)
        dones.say(b"s", Done(7), 0.0, 4.0)
        said = 0
        while (when := deadlines.next()) is not None:
            deadlines.due(when)
            said += dones.again((b"s", 7), when) is not None
        assert said == 2 and len(dones) == 0 and dones.given_up == 1

    def test_bounded(self) -> None:
        limits, deadlines = Limits(remembered=10), DeadlineHeap()
        dones = DoneQueue(limits, deadlines)
        for n in range(1000):
            dones.say(b"s", Done(n), 0.0, 100.0)
        assert len(dones) == 10 and len(deadlines) == 10 and dones.given_up == 990
        dones.forget(b"other")
        assert dones.waits_for(b"s") and len(dones.of(b"s")) == 10
        dones.forget(b"s")
        assert len(dones) == 0 == len(deadlines)


class TestEnded:
    def test_bounded(self) -> None:
        ended, released = RecentEnds(10), ReleasedTickets(10)
        for n in range(1000):
            ended.add(n, b"p", "done")
            released.add(str(n))
        assert len(ended) == 10 and ended.how(999) == (b"p", "done") and ended.how(0) is None
        assert len(released) == 10
        assert released.take("999") and not released.take("999") and not released.take("0")
