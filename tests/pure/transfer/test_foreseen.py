"""What the machines foresee is what they answer, changes nothing, and is told to nobody before the digests are those
that were announced.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import Connected, Copied, Copy, FromEngine, FromPeer, PeerLost, Send, Tell
from homenode.transfer.wire import message as m
from tests.pure.transfer.bench import BLOCK, DIGEST, THEIRS, ReceiverBench, SenderBench, of, sent
from tests.pure.transfer.test_machines_played import Plan, Play

BASE = 1000


def receiver(in_place: bool = True, **more: Any) -> ReceiverBench:
    bench = ReceiverBench("pull-eager", pd_in_place=in_place, **more)
    bench.feed(Connected(1, bench.hello(), "", {THEIRS: BASE}))
    bench.done_channel()
    return bench


def offered(bench: ReceiverBench, tokens: int, blocks: list[int]) -> None:
    names = [bytes([n]) * 16 for n in range(-(-tokens // BLOCK))]
    bench.frame(1, m.Offer(0, "t", tokens, BLOCK, names, f"unix:@done{THEIRS.hex()}", 60.0))
    bench.engine(s.Reserved("t", blocks, 0))


def answered(bench: Any, given: Any, digests: list[list[bytes]]) -> list[Any]:
    """All that the machine says to an input whose copies end so."""
    actions, rest = bench.feed(given), []
    while actions:
        action = actions.pop(0)
        rest.append(action)
        if isinstance(action, Copy):
            actions += bench.feed(Copied(action.token, digests.pop(0)))
    return [action for action in rest if isinstance(action, Send | Tell)]


class TestReceiver:
    @pytest.mark.parametrize(
        ("tokens", "blocks"), [(3 * BLOCK, [-1] * 3), (2 * BLOCK + 5, [-1, -1, 7]), (3 * BLOCK, [5, 6, 7])]
    )
    def test_pages_that_are_announced(self, tokens: int, blocks: list[int]) -> None:
        bench = receiver()
        offered(bench, tokens, blocks)
        given = FromPeer(1, bench.ready(0, 3, True))
        before = bench.machine.figures()
        foreseen = bench.machine.foresee(given, 0.0)
        assert bench.machine.figures() == before and bench.machine.foresee(given, 0.0) is not None
        assert sum(copy.pages for copy in foreseen.copies) == 3 and all(
            copy.epochs is not None for copy in foreseen.copies
        )
        digests = [[DIGEST] * copy.pages for copy in foreseen.copies]
        told = foreseen.then(digests)
        assert told == answered(bench, given, digests)
        assert [e.event.tokens for e in told if isinstance(e, Tell) and isinstance(e.event, s.Arrived)][-1] == tokens

    def test_other_bytes_are_told_to_nobody(self) -> None:
        bench = receiver()
        offered(bench, 3 * BLOCK, [-1] * 3)
        foreseen = bench.machine.foresee(FromPeer(1, bench.ready(0, 3, True)), 0.0)
        assert foreseen.then([[DIGEST, b"x" * len(DIGEST), DIGEST]]) is None
        assert foreseen.then([[DIGEST] * 2]) is None

    @pytest.mark.parametrize("first", [0, 2])
    def test_nothing_of_pages_that_are_not_due_or_before_which_others_are(self, first: int) -> None:
        bench = receiver()
        offered(bench, 4 * BLOCK, [-1] * 4)
        bench.frame(1, bench.ready(0, 1, False))  # and its copy goes on
        assert bench.machine.foresee(FromPeer(1, bench.ready(first, 1, False)), 0.0) is None
        assert bench.machine.foresee(FromPeer(1, bench.ready(1, 1, False)), 0.0) is None

    def test_nothing_of_what_is_objectionable(self) -> None:
        bench = receiver()
        offered(bench, 3 * BLOCK, [-1] * 3)
        good = bench.ready(0, 1, False)
        for wrong in (
            m.ready(0, 0, [DIGEST], False, THEIRS, ([256], [0])),
            m.ready(0, 0, [DIGEST], False, b"o" * 16, ([1], [0])),
            m.ready(0, 0, [DIGEST], True, THEIRS, ([1], [0])),
            m.ready(0, 0, [b"d" * 8], False, THEIRS, ([1], [0])),
            m.ready(0, 0, [DIGEST] * 2, False, THEIRS, ([1, 1], [0, 0])),
            m.Ready(0, 0, 1, DIGEST, False, THEIRS, b"\1\0\0\0", b"\0" * 7),
            m.ready(1, 0, [DIGEST], False, THEIRS, ([1], [0])),
        ):
            assert bench.machine.foresee(FromPeer(1, wrong), 0.0) is None
        assert (
            bench.machine.foresee(FromPeer(2, good), 0.0) is None
            and bench.machine.foresee(FromPeer(1, good), 0.0) is not None
        )

    def test_pages_that_nobody_reads_any_more(self) -> None:
        bench = receiver()
        offered(bench, 3 * BLOCK, [-1] * 3)
        assert bench.machine.foresee(FromEngine(s.Unused("t")), 0.0) is None
        bench.copies(bench.frame(1, bench.ready(0, 3, True)))
        bench.engine(s.Claimed("t", 3 * BLOCK))
        given = FromEngine(s.Unused("t"))
        foreseen = bench.machine.foresee(given, 0.0)
        assert foreseen.copies == () and foreseen.then([]) == answered(bench, given, [])


class TestSender:
    def test_pages_that_were_computed(self) -> None:
        bench = SenderBench()
        bench.want("t", 5)
        bench.connect()
        bench.done_channel()
        bench.frame(1, m.OfferReply(0))
        for first, blocks, last in ((0, [10, 11], False), (2, [12, 13, 14], True)):
            given = FromEngine(s.Computed("t", first, blocks, last))
            foreseen = bench.machine.foresee(given, 0.0)
            (copy,) = foreseen.copies
            assert copy.digest_only and copy.source_table == blocks
            digests = [[DIGEST] * len(blocks)]
            assert foreseen.then(digests) == answered(bench, given, digests)

    @pytest.mark.parametrize("mode", ["push", "pull-eager"])
    def test_nothing_while_others_are_before_them_or_something_else_is_to_be_done(self, mode: str) -> None:
        bench = SenderBench(mode)
        bench.want("t", 3)
        bench.connect()
        bench.done_channel()
        assert bench.machine.foresee(FromEngine(s.Computed("t", 0, [10], False)), 0.0) is None
        bench.frame(1, m.OfferReply(0, targets=[m.PageRef(THEIRS, n, 0) for n in range(3)] if mode == "push" else []))
        assert (bench.machine.foresee(FromEngine(s.Computed("t", 0, [10], False)), 0.0) is None) == (mode == "push")
        assert bench.machine.foresee(FromEngine(s.Computed("t", 0, [10], True)), 0.0) is None
        (copy,) = of(bench.engine(s.Computed("t", 0, [10], False)), Copy)
        assert bench.machine.foresee(FromEngine(s.Computed("t", 1, [11], False)), 0.0) is None
        assert len(sent(bench.feed(Copied(copy.token, [DIGEST])), m.Ready)) == 1


@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
def test_it_happens_in_what_is_played(mode: str) -> None:
    play = Play(random.Random(3), mode, "shm", chunk=1 << 20, slowness=0.001)
    for number in range(12):
        play.plan(f"t{number}", Plan(0.5 * number, 0, 0, 0, 40 + 20 * number, 0.1, None, None))
    play.finish(60.0)
    assert play.world.count["ahead"] > 0


class TestLanes:
    """What is asked for beforehand is what is foreseen of the input, until there is one about the same hand-over."""

    @pytest.mark.parametrize(
        ("tokens", "blocks"), [(3 * BLOCK, [-1] * 3), (2 * BLOCK + 5, [-1, -1, 7]), (3 * BLOCK, [5, 6, 7])]
    )
    def test_what_is_expected(self, tokens: int, blocks: list[int]) -> None:
        bench = receiver()
        assert bench.machine.expecting(16) == []
        offered(bench, tokens, blocks)
        (expecting,) = bench.machine.expecting(16)
        assert bench.machine.expecting(16, {"t"}) == [] and bench.machine.expecting(0) == []
        assert (expecting.peer, expecting.pull_id, expecting.first, expecting.pages, expecting.tokens) == (
            1,
            0,
            0,
            3,
            tokens,
        )
        assert expecting.blocks == blocks and dict(expecting.bases) == {THEIRS: BASE}
        foreseen = bench.machine.foresee(FromPeer(1, bench.ready(0, 3, True)), 0.0)
        assert [(copy.pages, copy.digest_only) for copy in foreseen.copies] == [
            (count, blocks[first] < 0) for first, count in expecting.runs
        ]

    def test_nothing_is_expected_while_something_is_under_way_or_of_who_was_lost(self) -> None:
        bench = receiver()
        offered(bench, 3 * BLOCK, [-1] * 3)
        bench.frame(1, bench.ready(0, 1, False))  # and its copy goes on
        assert bench.machine.expecting(16) == []
        bench = receiver()
        offered(bench, 3 * BLOCK, [-1] * 3)
        bench.feed(PeerLost(1, "gone", True))
        assert bench.machine.expecting(16) == []

    def test_what_can_be_announced(self) -> None:
        bench = SenderBench()
        bench.want("t", 5)
        bench.connect()
        bench.done_channel()
        assert bench.machine.announcing(16) == []
        bench.frame(1, m.OfferReply(0, already_sent_indexes=[0]))
        (announcing,) = bench.machine.announcing(16)
        assert (announcing.ticket, announcing.peer, announcing.pull_id, announcing.first, announcing.pages) == (
            "t",
            1,
            0,
            1,
            5,
        )
        assert announcing.tokens == 4 * BLOCK and announcing.most > 0 and bench.machine.announcing(16, {"t"}) == []
        bench.engine(s.Computed("t", 1, [11], False))  # and its digest is computed
        assert bench.machine.announcing(16) == []
