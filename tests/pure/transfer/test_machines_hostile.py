"""Frames that no honest peer sends, one by one and by the thousand: the one who sends them is let go, nobody else
notices.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import Close, Copied, Copy, FromPeer, Receive, SendPages, Sent
from homenode.transfer.wire import message as m
from homenode.transfer.wire.message import PageRef
from tests.examples import examples
from tests.pure.transfer.bench import BLOCK, DIGEST, MINE, THEIRS, ReceiverBench, SenderBench, of, ready_of, sent, told

OTHER = b"o" * 16


def names(count: int) -> list[bytes]:
    return [b"n" * 16] * count


@pytest.mark.parametrize(
    "offer",
    [
        m.Offer(1, "x", 0, BLOCK, [], "unix:@d", 1.0),
        m.Offer(1, "x", 64, 0, names(2), "unix:@d", 1.0),
        m.Offer(1, "x", 64, BLOCK, names(1), "unix:@d", 1.0),
        m.Offer(1, "x", 64, BLOCK, names(3), "unix:@d", 1.0),
        m.Offer(1, "x", (1 << 31) - 1, BLOCK, names(2), "unix:@d", 1.0),
        m.Offer(1, "x", 64, 64, names(1), "unix:@d", 1.0),
        m.Offer(1, "x", 64, BLOCK, names(2), "", 1.0),
        m.Offer(0, "x", 64, BLOCK, names(2), f"unix:@done{THEIRS.hex()}", 1.0),
        m.Offer(1, "x", 64, BLOCK, names(2), "unix:@another", 1.0),
    ],
)
def test_offers_that_do_not_fit_end_the_connection_before_anything_is_taken(offer: m.Offer) -> None:
    """Row 37."""
    bench = ReceiverBench()
    bench.connect()
    bench.open()
    actions = bench.frame(1, offer)
    assert [close.peer for close in of(actions, Close)] == [1]
    assert not any(isinstance(event, s.Offered) for event in told(actions))
    assert bench.machine.figures().bad_frames == {"offer": 1}


@pytest.mark.parametrize(
    "ready",
    [
        ready_of(0, 1, [PageRef(THEIRS, 1, 0)], [DIGEST], False),  # not the next page
        ready_of(0, 0, [PageRef(THEIRS, 256, 0)], [DIGEST], False),  # out of range
        ready_of(0, 0, [PageRef(MINE, 1, 0)], [DIGEST], False),  # not its buffer
        ready_of(0, 0, [PageRef(THEIRS, 1, 0)] * 2, [DIGEST] * 2, False),  # one page twice
        ready_of(0, 0, [PageRef(THEIRS, 1, 0)], [DIGEST] * 2, False),
        ready_of(0, 0, [PageRef(THEIRS, 1, 0)], [b"d" * 8], False),  # a digest too short
        ready_of(0, 0, [PageRef(THEIRS, 1, 0)], [DIGEST], True),  # not the last
        ready_of(0, 0, [PageRef(THEIRS, n, 0) for n in range(3)], [DIGEST] * 3, False),  # the last
        ready_of(0, 0, [PageRef(THEIRS, n, 0) for n in range(4)], [DIGEST] * 4, True),  # too many
        ready_of(0, 0, [], [], False),
        ready_of(7, 0, [PageRef(THEIRS, 1, 0)], [DIGEST], False),  # never offered
        m.Data(0, 0, 1, 512, [DIGEST], False),  # bytes, where memory is shared
        m.OfferReply(0),
        m.Done(0),
        m.Renew([0]),
        m.Cancel(0),
        m.Read(0, 0, 1),
        m.Stored(0, 1),
    ],
)
def test_pages_that_are_not_what_was_agreed_poison_that_peer_only(ready: Any) -> None:
    """Rows 36, 37: its hand-over fails, that of the next sender goes on."""
    bench = ReceiverBench()
    bench.connect()
    bench.connect(2, OTHER)
    bench.open()
    bench.open("honest", 1, 0, 2, OTHER)
    actions = bench.frame(1, ready)
    assert {close.peer for close in of(actions, Close)} == {1}
    assert [(type(event), event.ticket) for event in told(actions)] == [(s.Failed, "t")]
    assert bench.frame(1, bench.ready(0, 3, True)) == []  # whatever follows is not heard
    rest = bench.copies(bench.frame(2, bench.ready(0, 1, True, 0, OTHER)))
    assert [(type(event), event.ticket, event.tokens) for event in told(rest)] == [(s.Arrived, "honest", BLOCK)]


@pytest.mark.parametrize(
    "frame",
    [
        m.OfferReply(0, [1, 1]),
        m.OfferReply(0, [2, 1]),
        m.OfferReply(0, [3]),
        m.OfferReply(0, [], [PageRef(THEIRS, 1, 0)]),
        m.OfferReply(9),
        m.Stored(9, 1),
        m.Read(9, 0, 1),
        m.Stored(0, 1),
        m.Read(0, 0, 1),
        m.Cancel(0),
        m.Offer(0, "x", 32, 32, names(1), "d", 1.0),
        ready_of(0, 0, [], [DIGEST], False),
        m.Drained(0),
        m.Renewed(1.0),
        m.Abandon(0, ""),
    ],
)
def test_answers_that_make_no_sense_end_the_hand_over_and_the_connection(frame: Any) -> None:
    """Rows 36, 37, at the sender."""
    bench = SenderBench()
    bench.want("t", 3)
    bench.connect()
    actions = bench.frame(1, frame)
    assert [close.peer for close in of(actions, Close)] == [1]
    assert [(type(event), event.ticket) for event in told(actions)] == [(s.SendRefused, "t")]
    assert bench.machine.idle and bench.machine.ctx.admission.used == 0


@pytest.mark.parametrize(
    "targets",
    [
        [],
        [PageRef(THEIRS, 1, 0)] * 3,
        [PageRef(THEIRS, n, 0) for n in range(2)],
        [PageRef(THEIRS, n, 0) for n in range(4)],
        [PageRef(THEIRS, n, 0) for n in (1, 2, 256)],
        [PageRef(MINE, n, 0) for n in range(3)],
        [PageRef(THEIRS, 1, 0), PageRef(MINE, 2, 0), PageRef(THEIRS, 3, 0)],
    ],
)
def test_targets_are_checked_before_a_byte_is_written(targets: list[PageRef]) -> None:
    """Row 37, push: out of range, overlapping, in a buffer that was not registered."""
    bench = SenderBench("push")
    bench.want("t", 3)
    bench.connect()
    actions = bench.frame(1, m.OfferReply(0, [], targets))
    assert [close.peer for close in of(actions, Close)] == [1]
    assert bench.machine.idle


def test_a_done_for_somebody_elses_hand_over_is_refused() -> None:
    """Row 15."""
    bench = SenderBench()
    bench.announced()
    bench.done_channel(102, OTHER)
    actions = bench.frame(102, m.Done(0))
    assert [close.peer for close in of(actions, Close)] == [102] and not sent(actions) and not told(actions)
    assert bench.machine.figures().forged == 1
    assert [type(event) for event in told(bench.frame(101, m.Done(0)))] == [s.Returned]
    bench.done_channel(103, OTHER)
    assert of(bench.frame(103, m.Done(0)), Close)  # also when it has ended


def test_frames_from_numbers_nobody_knows_are_not_heard() -> None:
    """Rows 22, 23: what an old connection still delivers."""
    bench = SenderBench()
    bench.announced()
    assert bench.frame(55, m.Done(0)) == []
    bench.lost(101)
    assert bench.frame(101, m.Done(0)) == []
    assert ReceiverBench().frame(1, m.Offer(0, "x", 32, 32, names(1), "d", 1.0)) == []


def test_a_receiver_cannot_read_for_ever() -> None:
    """A page can be asked for again, but not endlessly."""
    bench = SenderBench(channel="tcp")
    bench.announced()
    closes: list[Any] = []
    asked = 0
    while not closes and asked < 100:
        asked += 1
        actions = bench.frame(101, m.Read(0, 0, 3))
        closes = of(actions, Close)
        for action in actions:
            if isinstance(action, SendPages):
                bench.feed(Sent(action.token, True))
    assert asked == 5


def test_a_million_done_signals_grow_nothing() -> None:
    """Rows 11, 12, 13."""
    bench = SenderBench(pd_pull_pending_ttl=5.0)
    bench.announced()
    bench.frame(101, m.Done(0))
    bench.announced("u", 3, 1)
    bench.at(50.0)  # the second one's lease runs out
    state = bench.machine.ctx
    sizes = (
        len(state.ended),
        len(state.deadlines),
        len(bench.machine.sessions.pulls),
        len(bench.machine.sessions.tickets),
    )
    answers: dict[str, int] = {}

    inputs = [FromPeer(101, m.Done(n)) for n in (0, 1, 5)]
    for n in range(1_000_000):
        (action,) = bench.machine.handle(inputs[n % 3], 60.0)
        answers[action.message.status] = answers.get(action.message.status, 0) + 1
    assert answers == {"ok": 333334, "late": 333333, "unknown": 333333}
    assert sizes == (
        len(state.ended),
        len(state.deadlines),
        len(bench.machine.sessions.pulls),
        len(bench.machine.sessions.tickets),
    )
    figures = bench.machine.figures()
    assert (figures.duplicates, figures.late, figures.unknown) == (333334, 333333, 333333)


ids = st.sampled_from([0, 1, 2, 3, 9])
small = st.integers(0, 5)
refs = st.builds(
    PageRef,
    st.sampled_from([THEIRS, MINE, OTHER]),
    st.sampled_from([0, 1, 2, 3, 60, 255, 256, 1 << 30]),
    st.integers(0, 2),
)
packed = st.sampled_from([b"", b"\1\0\0\0", b"\2" * 8, DIGEST, DIGEST * 2, b"\0" * 3, b"\xff" * 12])
digests = st.lists(st.sampled_from([DIGEST, b"d" * 8, b"e" * 16]), max_size=4)
texts = st.sampled_from(["", "x", "unix:@d", f"unix:@done{THEIRS.hex()}"])
tickets = st.sampled_from(["t", "u", "v", "w"])
counts = st.sampled_from([0, 1, 32, 33, 64, 96, 1 << 30])
identities = st.lists(st.just(b"n" * 16), max_size=4)
frames = st.one_of(
    st.builds(m.Offer, ids, tickets, counts, counts, identities, texts, st.sampled_from([0.0, 0.5, 1e6])),
    st.builds(
        m.OfferReply,
        ids,
        st.lists(small, max_size=3),
        st.lists(refs, max_size=4),
        st.booleans(),
        st.booleans(),
        small,
        st.sampled_from([0.0, 1e6]),
        st.booleans(),
        texts,
    ),
    st.builds(ready_of, ids, small, st.lists(refs, max_size=4), digests, st.booleans()),
    st.builds(m.Ready, ids, small, small, packed, st.booleans(), st.sampled_from([THEIRS, MINE, b""]), packed, packed),
    st.builds(m.Stored, ids, small, st.booleans(), texts),
    st.builds(m.Abandon, ids, texts),
    st.builds(m.Cancel, ids),
    st.builds(m.Drained, ids),
    st.builds(m.Done, ids, st.booleans()),
    st.builds(m.DoneAck, ids, st.sampled_from(["ok", "late", "unknown", "early"])),
    st.builds(m.Renew, st.lists(ids, max_size=3)),
    st.builds(m.Renewed, st.sampled_from([0.0, 1.0]), st.lists(ids, max_size=3)),
    st.builds(m.Read, ids, small, st.sampled_from([1, 3, 4096])),
    st.builds(
        m.Data, ids, small, small, st.sampled_from([0, 512, 1536, 1 << 39]), digests, st.booleans(), st.booleans()
    ),
)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
@pytest.mark.parametrize("mode", ["push", "pull-eager", "pull-delay"])
@settings(derandomize=True, max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 101]), frames), max_size=25))
def test_any_frames_leave_the_receiver_sound(mode: str, channel: str, said: list[tuple[int, Any]]) -> None:
    """Rows 36, 37: whatever one sender says, the other's hand-over arrives."""
    bench = ReceiverBench(mode, channel)
    bench.connect()
    bench.done_channel()
    bench.connect(2, OTHER)
    bench.done_channel(102, OTHER)
    bench.open("honest", 1, 0, 2, OTHER)
    bench.open("t", 3)
    for peer, frame in said:
        bench.now += 0.01
        for event in told(bench.frame(peer, frame)):
            if isinstance(event, s.Offered) and event.reserve:
                bench.engine(s.ReservationFailed(event.ticket, 0, "full"))
    bench.lost(1, dead=True)
    if mode == "pull-delay":
        bench.engine(s.Fetch("honest", [200], 0))
    actions: list[Any] = []
    if mode == "push" and channel == "tcp":
        actions = bench.frame(2, m.Data(0, 0, 1, 512, [DIGEST], True))
    else:
        actions = bench.frame(2, bench.ready(0, 1, True, 0, OTHER))
        if channel == "tcp":
            assert sent(actions, m.Read) == [m.Read(0, 0, 1)]
            actions = bench.frame(102, m.Data(0, 0, 1, 512, [DIGEST], True))

    (work,) = [a for a in actions if isinstance(a, Copy | Receive)]
    events = told(bench.feed(Copied(work.token, [DIGEST])))
    assert [(type(event), event.ticket, event.tokens) for event in events] == [(s.Arrived, "honest", BLOCK)]


@pytest.mark.parametrize("channel", ["shm", "tcp"])
@pytest.mark.parametrize("mode", ["push", "pull-eager"])
@settings(derandomize=True, max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 101]), frames), max_size=25))
def test_any_frames_leave_the_sender_sound(mode: str, channel: str, said: list[tuple[int, Any]]) -> None:
    """Rows 36, 37: whatever one receiver says, nothing stays pinned for it and the next is served."""
    bench = SenderBench(mode, channel)
    bench.want("t", 3)
    bench.connect()
    bench.done_channel()
    events = []
    for peer, frame in said:
        bench.now += 0.01
        events += told(bench.frame(peer, frame))
    if any(isinstance(event, s.SendAdmitted) for event in events):
        events += told(bench.copies(bench.engine(s.Abandoned("t", "over"))))
    events += told(bench.lost(1, dead=True)) + told(bench.lost(101, dead=True))
    assert [type(event) for event in events if isinstance(event, s.Returned | s.SendRefused)] in (
        [s.Returned],
        [s.SendRefused],
    )
    assert bench.machine.idle and bench.machine.ctx.admission.used == 0 and bench.machine.figures().pinned_pages == 0
    bench.now += 10.0
    bench.want("next", 3, "unix:@next")
    assert len(sent(bench.connect(2, OTHER, "unix:@next"), m.Offer)) == 1
