"""Pages read in place: who may let go of what, and when. Each side alone; both together are played in
test_kv_transfer_played.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from homenode.transfer import scheduler_events as s
from homenode.transfer.agent.agent_loop import Tickets
from homenode.transfer.state.machine import Close, Connected, Copied, Copy, Limits, PeerLost
from homenode.transfer.wire import message as m
from tests.pure.transfer.bench import BLOCK, DIGEST, THEIRS, ReceiverBench, SenderBench, of, sent, told

BASE = 1000


def receiver(**more: Any) -> ReceiverBench:
    bench = ReceiverBench("pull-eager", pd_in_place=True, **more)
    bench.feed(Connected(1, bench.hello(), "", {THEIRS: BASE}))
    bench.done_channel()
    return bench


def placed(bench: ReceiverBench, pages: int = 3, tokens: int = 0) -> list[Any]:
    """A hand-over that has arrived, all of it in place but for a last page that is not full."""
    tokens = tokens or pages * BLOCK
    names = [bytes([n]) * 16 for n in range(pages)]
    bench.frame(1, m.Offer(0, "t", tokens, BLOCK, names, f"unix:@done{THEIRS.hex()}", 60.0))
    full = tokens // BLOCK
    bench.engine(s.Reserved("t", [-1] * full + [7] * (pages - full), 0))
    return bench.copies(bench.frame(1, bench.ready(0, pages, True)))


class TestReceiver:
    def test_an_offer_and_its_answer_say_so(self) -> None:
        bench = receiver()
        actions = bench.offer(0, "t", 2)
        assert [event.in_place for event in told(actions)] == [True]
        (reply,) = sent(bench.engine(s.Reserved("t", [-1, -1], 0)), m.OfferReply)
        assert reply.in_place

    @pytest.mark.parametrize("setting", [False, True])
    def test_not_without_the_setting_or_where_memory_is_out_of_reach(self, setting: bool) -> None:
        bench = ReceiverBench("pull-eager", pd_in_place=setting)
        bench.feed(Connected(1, bench.hello(), "", {} if setting else {THEIRS: BASE}))
        assert [event.in_place for event in told(bench.offer(0, "t", 2))] == [False]

    def test_full_pages_are_verified_where_they_are_and_the_last_is_copied(self) -> None:
        bench = receiver()
        names = [bytes([n]) * 16 for n in range(3)]
        bench.frame(1, m.Offer(0, "t", 2 * BLOCK + 5, BLOCK, names, f"unix:@done{THEIRS.hex()}", 60.0))
        bench.engine(s.Reserved("t", [-1, -1, 7], 0))
        copies = of(bench.frame(1, bench.ready(0, 3, True)), Copy)
        assert [(c.first_page, c.pages, c.digest_only) for c in copies] == [(0, 2, True), (2, 1, False)]
        first, last = (
            [e for c in copies[i : i + 1] for e in told(bench.feed(Copied(c.token, [DIGEST] * c.pages)))]
            for i in (0, 1)
        )
        assert first == [s.Arrived(0.0, "t", 2 * BLOCK, 0, [BASE + 50, BASE + 51])]
        assert last == [s.Arrived(0.0, "t", 2 * BLOCK + 5)]
        assert bench.machine.figures().in_place_pages == 2

    def test_done_is_said_when_no_step_reads_any_more(self) -> None:
        bench = receiver()
        assert not sent(placed(bench), m.Done)
        bench.engine(s.Fetch("t", [-1, -1, -1], 0))
        assert not sent(bench.engine(s.Claimed("t", 3 * BLOCK)), m.Done)
        assert bench.machine.figures().pinned_pages == 0 and not bench.machine.idle
        assert sent(bench.at(30.0), m.Renew)
        (done,) = sent(bench.engine(s.Unused("t")), m.Done)
        assert done.ok and not sent(bench.engine(s.Unused("t")), m.Done)
        assert sent(bench.at(1000.0), m.Done), "no lease ends this: it is said until it is heard"
        bench.frame(101, m.DoneAck(0, "ok"))
        assert bench.machine.idle

    @pytest.mark.parametrize("end", ["forgotten", "stopped", "abandoned", "released"])
    def test_however_a_ticket_ends_its_pages_are_kept_until_then(self, end: str) -> None:
        bench = receiver(pd_pull_pending_ttl=5.0)
        names = [bytes([n]) * 16 for n in range(3)]
        bench.frame(1, m.Offer(0, "t", 3 * BLOCK, BLOCK, names, f"unix:@done{THEIRS.hex()}", 60.0))
        bench.engine(s.Reserved("t", [-1] * 3, 0))
        bench.copies(bench.frame(1, bench.ready(0, 2, False)))
        match end:
            case "forgotten":
                actions = bench.at(6.0)
            case "stopped":
                actions = bench.engine(s.Stopped("t"))
            case "abandoned":
                actions = bench.frame(1, m.Abandon(0, "aborted"))
            case _:
                actions = bench.engine(s.Released("t", "nobody wants it"))
        assert [type(e) for e in told(actions)] == [s.Failed if end in ("stopped", "abandoned") else s.Forgotten]
        actions += bench.engine(s.Claimed("t", 0)) if end == "abandoned" else []
        assert not sent(actions, m.Done)
        (done,) = sent(bench.engine(s.Unused("t")), m.Done)
        assert not done.ok

    @pytest.mark.parametrize("dead", [False, True])
    def test_the_memory_of_a_lost_sender_is_not_let_go_of(self, dead: bool) -> None:
        bench = receiver()
        placed(bench)
        bench.engine(s.Claimed("t", 3 * BLOCK))
        actions = bench.lost(1, dead) + bench.lost(101, dead)
        assert not of(actions, Close) and not told(actions)
        assert dead == bool(of(bench.engine(s.Unused("t")), Close))

    def test_nor_is_that_of_one_that_breaks_the_protocol(self) -> None:
        bench = receiver()
        placed(bench)
        bench.engine(s.Claimed("t", 3 * BLOCK))
        assert not of(bench.frame(1, m.ready(99, 0, [DIGEST], True)), Close)
        actions = bench.engine(s.Unused("t"))
        assert sent(actions, m.Done) and len(of(actions, Close)) == 2


class TestSender:
    def lending(self, **more: Any) -> SenderBench:
        bench = SenderBench(pd_pull_pending_ttl=5.0, **more)
        bench.want("t", 3)
        bench.connect()
        bench.done_channel()
        bench.frame(1, m.OfferReply(0, in_place=True))
        bench.copies(bench.engine(s.Computed("t", 0, [10, 11, 12], True)))
        return bench

    def test_no_lease_ends_what_is_read_in_place(self) -> None:
        bench = self.lending(limits=Limits(longest=20.0))
        for now in (6.0, 12.0, 100.0):
            assert not told(bench.at(now))
        assert bench.machine.figures().expired == 1 and bench.machine.figures().pinned_pages == 3
        actions = bench.frame(101, m.Done(0))
        assert [type(e) for e in told(actions)] == [s.Returned] and sent(actions, m.DoneAck) == [m.DoneAck(0, "ok")]
        assert bench.machine.figures().pinned_pages == 0 and bench.machine.idle

    def test_its_reader_is_lost_but_may_live(self) -> None:
        bench = self.lending()
        assert not told(bench.lost(1) + bench.lost(101) + bench.at(50.0))
        assert [type(e) for e in told(bench.feed(PeerLost(1, "pidfd", True)))] == [s.Returned]

    def test_its_reader_breaks_the_protocol(self) -> None:
        bench = self.lending()
        actions = bench.frame(1, m.Stored(0, 99))
        assert not told(actions) and not of(actions, Close)
        actions = bench.frame(101, m.Done(0))
        assert [type(e) for e in told(actions)] == [s.Returned] and of(actions, Close)

    def test_what_is_lent_is_not_returned_by_an_agent_that_fails(self) -> None:
        bench = self.lending()
        assert bench.machine.lent() == {"t"}
        tickets = Tickets()
        for ticket in ("t", "other"):
            tickets.tells(s.SendAdmitted(0.0, ticket))
        endings = tickets.endings(1.0, "broken", written_by_others=False, kept=bench.machine.lent())
        assert endings == [s.Returned(1.0, "other")]
