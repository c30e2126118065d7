"""Single faults with their promised outcome; the rows are those of the table of faults."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import (
    Close,
    Connect,
    ConnectFailed,
    Copied,
    Copy,
    Epochs,
    Limits,
    SendPages,
    Sent,
    Tell,
)
from homenode.transfer.wire import message as m
from homenode.transfer.wire.message import PageRef
from tests.pure.transfer.bench import BLOCK, DIGEST, THEIRS, ReceiverBench, SenderBench, of, sent, told

OTHER = b"o" * 16


def kinds(actions: list[Any]) -> list[type]:
    return [type(event) for event in told(actions)]


class TestSender:
    def test_row_4_a_receiver_that_does_not_answer(self) -> None:
        bench = SenderBench()
        bench.want("t", 3)
        bench.connect()
        assert bench.machine.next_deadline() == 1.25
        actions = bench.at(1.25)
        assert kinds(actions) == [s.SendRefused] and sent(actions, m.Abandon) and bench.machine.idle
        assert bench.machine.ctx.admission.used == 0

    def test_row_5_a_dead_receiver_gives_its_pages_back_at_once(self) -> None:
        bench = SenderBench()
        bench.announced()
        assert kinds(bench.lost(1)) == []  # out of reach, but it may still read
        actions = bench.lost(101, dead=True)
        assert kinds(actions) == [s.Returned]
        order = [type(a) for a in actions if isinstance(a, Epochs | Tell)]
        assert order == [Epochs, Tell]  # late readers must see it before the blocks are used again

    def test_row_8_a_lease_that_runs_out_changes_the_epochs(self) -> None:
        bench = SenderBench(pd_pull_pending_ttl=5.0)
        bench.announced()
        bench.now = 4.0
        (renewed,) = sent(bench.frame(101, m.Renew([0, 77])))
        assert renewed == m.Renewed(5.0, [77])
        assert bench.at(8.9) == []
        actions = bench.at(9.1)
        (epochs,) = of(actions, Epochs)
        assert epochs.blocks == [10, 11, 12] and epochs.epochs == [1, 1, 1] and kinds(actions) == [s.Returned]
        (ack,) = sent(bench.frame(101, m.Done(0)))  # row 12
        assert ack == m.DoneAck(0, "late") and bench.machine.figures().expired == 1

    def test_row_9_a_lease_is_not_renewed_for_ever(self) -> None:
        bench = SenderBench(pd_pull_pending_ttl=5.0, limits=Limits(longest=20.0))
        bench.announced()
        for now in range(1, 30, 2):
            if of(bench.at(float(now)), Epochs):
                break
            bench.frame(101, m.Renew([0]))
        assert now == 21

    def test_row_13_a_done_before_the_answer_to_the_offer_is_remembered(self) -> None:
        bench = SenderBench()
        bench.want("t", 3)
        bench.connect()
        bench.done_channel()
        assert sent(bench.frame(101, m.Done(0))) == [m.DoneAck(0, "early")]
        assert sent(bench.frame(101, m.Done(0))) == [m.DoneAck(0, "early")]
        assert kinds(bench.frame(1, m.OfferReply(0, [0, 1, 2]))) == [s.SendAdmitted]
        assert kinds(bench.engine(s.Computed("t", 3, [], True))) == [s.Returned]
        assert bench.machine.figures().early == 1 and bench.machine.figures().completed == 1

    def test_row_16_no_room_opens_the_breaker_for_that_receiver_only(self) -> None:
        bench = SenderBench(pd_alloc_fail_backoff_ttl=2.0)
        bench.want("a", 3)
        bench.connect()
        (refused,) = told(
            bench.frame(1, m.OfferReply(0, alloc_failed=True, free_pages=2, retry_after_s=3.0, reason="full"))
        )
        assert "2 pages free" in refused.reason and refused.retry_after_s == 3.0
        (again,) = told(bench.want("b", 3))
        assert isinstance(again, s.SendRefused) and again.retry_after_s == 3.0
        bench.want("c", 3, "unix:@other")
        assert sent(bench.connect(2, OTHER, "unix:@other"), m.Offer)
        bench.now = 3.0
        assert sent(bench.want("d", 3), m.Offer)  # the probe
        assert bench.want("e", 3) == []  # waits for how it fares
        actions = bench.frame(1, m.OfferReply(2))
        assert kinds(actions) == [s.SendAdmitted] and len(sent(actions, m.Offer)) == 1
        assert bench.machine.figures().breaker_opens == 1

    def test_row_17_larger_than_the_pool_is_refused_at_once(self) -> None:
        bench = SenderBench(pages=4)
        (refused,) = told(bench.want("t", 5))
        assert isinstance(refused, s.SendRefused) and "pd_buffer_size" in refused.reason
        assert of(bench.want("u", 4), Connect)

    def test_row_18_who_finds_no_room_waits_and_not_for_ever(self) -> None:
        bench = SenderBench(pages=4, pd_pull_backpressure_reserve_pct=0.0)
        bench.announced("t", 3)
        assert bench.want("u", 3) == [] and bench.machine.figures().waiting == 1
        assert kinds(bench.at(1.0)) == [s.SendRefused]
        bench.now = 3.0
        bench.want("v", 3)
        assert sent(bench.frame(101, m.Done(0)), m.Offer)  # room again

    def test_row_21_one_slow_receiver_keeps_nobody_waiting(self) -> None:
        bench = SenderBench(pages=60)
        bench.connect(1)
        bench.connect(2, OTHER, "unix:@other")
        for n in range(40):
            bench.want(f"slow{n}", 3)
        for n in range(20):
            actions = bench.want(f"quick{n}", 3, "unix:@other")
            (offer,) = sent(actions, m.Offer)
            bench.frame(2, m.OfferReply(offer.pull_id, [0, 1, 2]))
            bench.engine(s.Computed(f"quick{n}", 3, [], True))
            assert kinds(bench.frame(2, m.Done(offer.pull_id))) == [s.Returned]

    def test_row_49_a_batch_for_several_receivers_is_offered_to_each_its_own(self) -> None:
        bench = SenderBench()
        for n in range(6):
            bench.want(f"t{n}", 1, f"unix:@r{n % 3}")
        for peer in (1, 2, 3):
            offers = sent(bench.connect(peer, bytes([peer]) * 16, f"unix:@r{peer - 1}"), m.Offer)
            assert [offer.ticket for offer in offers] == [f"t{peer - 1}", f"t{peer + 2}"]

    def test_row_22_a_receiver_that_came_back_is_greeted_again(self) -> None:
        bench = SenderBench()
        bench.announced()
        assert of(bench.lost(1, dead=True), Close)
        bench.lost(101, dead=True)
        assert of(bench.want("u", 3), Connect)
        assert [offer.ticket for offer in sent(bench.connect(2, OTHER), m.Offer)] == ["u"]

    def test_a_receiver_that_cannot_be_reached_is_not_tried_for_each_request(self) -> None:
        bench = SenderBench()
        bench.want("a", 1)
        assert kinds(bench.feed(ConnectFailed("unix:@receiver", "refused"))) == [s.SendRefused]
        assert kinds(bench.want("b", 1)) == [s.SendRefused]
        bench.now = 1.0
        assert of(bench.want("c", 1), Connect)

    def test_row_27_abandoned_at_each_stage_is_answered_once(self) -> None:
        for stage in range(4):
            bench = SenderBench()
            bench.want("t", 3)
            events: list[type] = []
            if stage >= 1:
                bench.connect()
            if stage >= 2:
                bench.frame(1, m.OfferReply(0))
            if stage >= 3:
                bench.copies(bench.engine(s.Computed("t", 0, [1], False)))
            actions = bench.engine(s.Abandoned("t", "client went away"))
            events += kinds(actions)
            assert bool(sent(actions, m.Abandon)) == (stage >= 1)
            if stage == 3:  # one page was announced and may be read
                assert events == []
                bench.done_channel()
                events += kinds(bench.frame(101, m.Done(0, False)))
            assert events == [s.Returned] and bench.machine.idle

    def test_row_29_what_is_being_written_is_drained_before_that_is_said(self) -> None:
        bench = SenderBench("push")
        bench.want("t", 3)
        bench.connect()
        bench.frame(1, m.OfferReply(0, [], [PageRef(THEIRS, n, 0) for n in range(3)]))
        (copy,) = of(bench.engine(s.Computed("t", 0, [1, 2], False)), Copy)
        assert copy.target == THEIRS and not copy.digest_only
        assert sent(bench.frame(1, m.Cancel(0))) == []
        assert sent(bench.feed(Copied(copy.token, [DIGEST] * 2))) == [m.Drained(0)]
        assert of(bench.engine(s.Computed("t", 2, [3], True)), Copy) == []
        assert sent(bench.frame(1, m.Cancel(0))) == [m.Drained(0)]  # said again, answered again

    def test_bytes_that_are_not_taken_end_the_connection(self) -> None:
        bench = SenderBench(channel="tcp")
        bench.announced()
        (sending,) = of(bench.frame(101, m.Read(0, 0, 3)), SendPages)
        assert sending.tokens == [BLOCK] * 3
        actions = bench.at(2.0)
        assert {close.peer for close in of(actions, Close)} == {1, 101}
        assert kinds(bench.feed(Sent(sending.token, False))) == [s.Returned]

    def test_offload_gives_the_blocks_back_before_anybody_reads(self) -> None:
        bench = SenderBench(pd_use_cpu_offload=True)
        bench.want("t", 3)
        bench.connect()
        bench.done_channel()
        bench.frame(1, m.OfferReply(0))
        actions = bench.copies(bench.engine(s.Computed("t", 0, [10, 11, 12], True)))
        assert kinds(actions) == [s.Returned]
        (ready,) = sent(actions, m.Ready)
        assert ready.buffer == b"p" * 16 and bench.machine.figures().pinned_pages == 3
        assert (
            kinds(bench.frame(101, m.Done(0))) == []
            and bench.machine.idle
            and bench.machine.figures().pinned_pages == 0
        )

    def test_a_ticket_twice_is_refused_by_name_and_a_released_one_too(self) -> None:
        bench = SenderBench()
        bench.want("t", 3)
        (refused,) = told(bench.want("t", 3))
        assert "'t'" in refused.reason
        bench.engine(s.Released("u", "the client left"))
        assert kinds(bench.want("u", 3)) == [s.SendRefused] and of(bench.want("u", 3, "unix:@x"), Connect)


class TestReceiver:
    def arrived(self, actions: list[Any]) -> list[int]:
        return [event.tokens for event in told(actions) if isinstance(event, s.Arrived)]

    def test_row_2_and_3_what_a_dead_sender_announced_is_still_fetched(self) -> None:
        bench = ReceiverBench("pull-delay")
        bench.connect()
        bench.open()
        bench.frame(1, bench.ready(0, 3, True))
        assert bench.lost(1, dead=True) == []
        actions = bench.copies(bench.engine(s.Fetch("t", [1, 2, 3], 0)))
        assert self.arrived(actions) == [3 * BLOCK]
        assert of(bench.engine(s.Claimed("t", 3 * BLOCK)), Close)  # its memory is let go

    def test_row_1_what_it_did_not_announce_fails_at_once(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.open()
        bench.copies(bench.frame(1, bench.ready(0, 2, False)))
        actions = bench.lost(1, dead=True)
        assert kinds(actions) == [s.Failed]
        bench.engine(s.Claimed("t", 2 * BLOCK))
        assert bench.machine.idle and bench.machine.figures().pinned_pages == 0

    @pytest.mark.parametrize("mode", ["pull-eager", "push"])
    def test_row_7_a_frozen_sender_is_not_waited_for(self, mode: str) -> None:
        bench = ReceiverBench(mode)
        bench.connect()
        bench.done_channel()
        bench.open()
        bench.engine(s.Fetch("t", [10, 11, 12], 0))
        events: list[Any] = []
        while bench.now < 30.0 and not events:
            events = told(bench.at(bench.machine.next_deadline()))
        if mode == "push":
            assert bench.now == pytest.approx(12.0, abs=1.5)
            assert isinstance(events[0], s.Quarantined) and events[0].tokens == 0  # row 30: it may still write
            assert kinds(bench.lost(1)) == []
            assert kinds(bench.lost(1, dead=True)) == [s.Forgotten]
        else:
            assert isinstance(events[0], s.Failed) and bench.now == pytest.approx(7.0, abs=1.5)

    @pytest.mark.parametrize("late", [False, True])
    def test_row_30_a_request_that_comes_while_its_blocks_may_still_be_written_goes_on_in_others(
        self, late: bool
    ) -> None:
        bench = ReceiverBench("push", pd_pull_pending_ttl=2.0)
        bench.connect()
        bench.open()
        assert kinds(bench.at(2.0)) == []  # nobody came for it, and the sender does not answer
        if late:
            assert kinds(bench.at(7.5)) == []
        events = kinds(bench.engine(s.Fetch("t", [10, 11, 12], 0)))
        assert (events or kinds(bench.at(7.5))) == [s.Quarantined]
        assert kinds(bench.frame(1, m.Drained(0))) == [s.Forgotten]
        assert bench.machine.idle

    def test_row_29_push_targets_are_not_free_before_the_sender_drained(self) -> None:
        bench = ReceiverBench("push")
        bench.connect()
        bench.open()
        actions = bench.engine(s.Stopped("t"))
        assert kinds(actions) == [] and sent(actions, m.Cancel)
        assert kinds(bench.lost(1)) == [] and sent(bench.connect(2), m.Cancel)  # asked again on the next connection
        assert kinds(bench.frame(2, m.Drained(0))) == [s.Failed]
        assert bench.machine.idle

    def test_row_28_stopped_while_copying_waits_for_the_copy(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.open()
        (copy,) = of(bench.frame(1, bench.ready(0, 2, False)), Copy)
        assert kinds(bench.engine(s.Stopped("t"))) == []
        actions = bench.feed(Copied(copy.token, [DIGEST] * 2))
        assert kinds(actions) == [s.Failed] and [done.ok for done in sent(actions, m.Done)] == [False]

    def test_row_41_a_wrong_page_is_read_again_once(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.open()
        (copy,) = of(bench.frame(1, bench.ready(0, 3, True)), Copy)
        actions = bench.feed(Copied(copy.token, [DIGEST, b"x" * 16, DIGEST]))
        assert self.arrived(actions) == [BLOCK]
        (again,) = of(actions, Copy)
        assert (again.first_page, again.pages) == (1, 1)
        assert self.arrived(bench.feed(Copied(again.token, [DIGEST]))) == [3 * BLOCK]

    def test_row_41_twice_wrong_ends_it_there(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.open()
        (copy,) = of(bench.frame(1, bench.ready(0, 3, True)), Copy)
        (again,) = of(bench.feed(Copied(copy.token, [DIGEST, b"x" * 16, DIGEST])), Copy)
        actions = bench.feed(Copied(again.token, [b"y" * 16]))
        assert kinds(actions) == [s.Failed] and self.arrived(actions) == []
        assert bench.machine.figures().poisoned_pages == 1

    def test_row_24_and_42_epochs_are_asked_for_and_a_short_read_is_no_read(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.open()
        (copy,) = of(bench.frame(1, bench.ready(0, 3, True, epoch=7)), Copy)
        assert copy.epochs == [7, 7, 7] and copy.source_table == [50, 51, 52]
        actions = bench.feed(Copied(copy.token, None, "an epoch had changed"))
        while copies := of(actions, Copy):
            actions = [a for copy in copies for a in bench.feed(Copied(copy.token, None, "again"))]
        assert kinds(actions) == [s.Failed] and bench.machine.figures().pages == 0

    def test_row_14_a_lost_done_is_said_again(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.done_channel()
        bench.open()
        actions = bench.copies(bench.frame(1, bench.ready(0, 3, True)))
        assert sent(actions, m.Done) == [m.Done(0)]
        bench.lost(101)
        assert sent(bench.done_channel(102), m.Done) == [m.Done(0)]
        assert sent(bench.at(1.0), m.Done) == [m.Done(0)]
        bench.frame(102, m.DoneAck(0, "ok"))
        assert sent(bench.at(50.0), m.Done) == []

    def test_row_19_a_ticket_no_request_came_for_is_forgotten(self) -> None:
        for mode in ("push", "pull-eager", "pull-delay"):
            bench = ReceiverBench(mode, pd_pull_pending_ttl=5.0)
            bench.connect()
            bench.done_channel()
            bench.open()
            bench.copies(bench.frame(1, bench.ready(0, 3, True)))
            assert s.Forgotten in kinds(bench.at(5.1)), mode
            assert not bench.machine.sessions.tickets and bench.machine.figures().pinned_pages == 0

    def test_row_10_a_ticket_in_hand_is_refused_by_name(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.connect(2, OTHER)
        bench.open()
        (reply,) = sent(bench.offer(0, "t", 3, 2, OTHER), m.OfferReply)
        assert reply.refused and not reply.alloc_failed and "'t'" in reply.reason

    def test_row_17_and_18_offers_wait_for_room_whole_and_not_for_ever(self) -> None:
        bench = ReceiverBench(pages=4)
        bench.connect()
        (reply,) = sent(bench.offer(0, "large", 5), m.OfferReply)
        assert reply.refused and "pd_buffer_size" in reply.reason
        bench.open("t", 3, 1)
        assert sent(bench.offer(2, "u", 3)) == []
        (reply,) = sent(bench.at(10.0), m.OfferReply)
        assert reply.alloc_failed and reply.pull_id == 2 and reply.free_pages == 1

    def test_row_23_blocks_that_come_too_late_go_back(self) -> None:
        bench = ReceiverBench()
        bench.connect()
        bench.offer(0, "t", 3)
        bench.lost(1, dead=True)
        assert kinds(bench.engine(s.Reserved("t", [1, 2, 3], 0))) == [s.Forgotten]
        assert bench.machine.idle

    def test_an_expired_lease_and_an_abandoned_hand_over_end_in_failed(self) -> None:
        for frame in (m.Renewed(1.0, [0]), m.Abandon(0, "gone")):
            bench = ReceiverBench()
            bench.connect()
            bench.done_channel()
            bench.open()
            actions = bench.frame(1, frame)
            assert kinds(actions) == [s.Failed] and sent(actions, m.Done) == [m.Done(0, False)]

    def test_chunks_are_asked_for_while_one_is_copied(self) -> None:
        bench = ReceiverBench("pull-delay", limits=Limits(chunk=1, read=1))
        bench.connect()
        bench.open("t", 5)
        assert of(bench.frame(1, bench.ready(0, 5, True)), Copy) == []  # nothing before the request runs
        copies = of(bench.engine(s.Fetch("t", [1, 2, 3, 4, 5], 1)), Copy)
        assert [copy.first_page for copy in copies] == [1, 2]  # what is held is not read
        (third,) = of(bench.feed(Copied(copies[0].token, [DIGEST])), Copy)
        assert third.first_page == 3

    def test_reads_go_on_over_the_next_done_channel(self) -> None:
        bench = ReceiverBench(channel="tcp")
        bench.connect()
        bench.done_channel()
        bench.open()
        assert sent(bench.frame(1, bench.ready(0, 3, True)), m.Read) == [m.Read(0, 0, 3)]
        assert of(bench.lost(101), Connect)
        assert [read.first for read in sent(bench.done_channel(102), m.Read)] == [0, 1]
