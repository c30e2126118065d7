"""A million hostile frames: well-formed ones with values nobody means well with, damaged ones, and noise, against the
framing and both machines.

Nothing raises but what a stream is ended for, memory does not grow with what was said, and honest hand-overs beside it
go on.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from homenode.net.frames import FrameError, FrameParser, frame
from homenode.transfer import scheduler_events as s
from homenode.transfer.state.machine import Connected, Copied, Copy, FromPeer, Send, Tell
from homenode.transfer.wire import message as m
from tests.host.transfer.hostile import hostile_messages
from tests.pure.transfer.bench import DIGEST, THEIRS, ReceiverBench, SenderBench, of, sent, told

FRAMES = 250_000  # on each of four ways
OF_LINKS = (m.Hello, m.Greeted, m.Refused, m.Gone)
GOOD = b"g" * 16


def messages(rng: random.Random) -> Any:
    """Without end."""
    while True:
        yield from hostile_messages(rng, THEIRS)


def bodies(rng: random.Random) -> Any:
    """Bodies of frames: of messages, and of messages with some bytes changed, cut out or put in."""
    for message in messages(rng):
        body = bytearray(m.encode(m.Envelope(b"to" * 8, message)))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
            at = rng.randrange(len(body) + 1)
            match rng.randrange(4):
                case 0 if at < len(body):
                    body[at] = rng.randrange(256)
                case 1:
                    del body[at : at + rng.randrange(4)]
                case 2:
                    body[at:at] = rng.randbytes(rng.randrange(4))
                case _:
                    del body[at:]
        yield bytes(body)


@pytest.mark.slow
def test_bodies() -> None:
    rng, good = random.Random(1), 0
    source = bodies(rng)
    for _ in range(FRAMES):
        body = next(source)
        try:
            envelope = m.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        good += 1
        assert len(m.encode(envelope)) <= m.MAX_FRAME
    assert FRAMES // 4 < good < FRAMES


@pytest.mark.slow
def test_streams() -> None:
    """Cut anywhere, with lengths that lie; a stream ends at its first impossible length, and holds no more than it was
    given.
    """
    rng = random.Random(2)
    source, parser, whole, ends, given = bodies(rng), FrameParser(1 << 16), 0, 0, 0
    for _ in range(FRAMES):
        data = frame(next(source))
        if rng.random() < 0.02:
            data = rng.randbytes(4) + data[4:]
        at = rng.randrange(len(data) + 1) if rng.random() < 0.3 else 0
        try:
            for piece in (data[:at], data[at:]):
                if piece:
                    given += len(piece)
                    parser.feed(piece)
                while (body := parser.next()) is not None:
                    whole += 1
                    given -= 4 + len(body)
                assert parser.held == given < 2 << 16
        except FrameError:
            parser, given, ends = FrameParser(1 << 16), 0, ends + 1
    assert whole > FRAMES // 2 and ends > FRAMES // 1000


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["push", "pull-eager", "pull-delay"])
def test_a_sender(mode: str) -> None:
    bench, rng = SenderBench(mode), random.Random(3)
    play(bench, rng, FRAMES // 3, honest_sender)
    assert bench.machine.figures().completed > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["push", "pull-eager", "pull-delay"])
def test_a_receiver(mode: str) -> None:
    bench, rng = ReceiverBench(mode, pd_in_place=mode != "push"), random.Random(4)
    play(bench, rng, FRAMES // 3, honest_receiver)
    assert bench.machine.figures().completed > 0


def play(bench: Any, rng: random.Random, frames: int, honest: Any) -> None:
    """One hostile process after another, for each breaks the protocol sooner or later; now and then somebody means
    well.
    """
    source, peer, live = messages(rng), 1000, 0
    for number in range(frames):
        if not live:
            peer, live = peer + 2, rng.choice((1, 3, 10, 40))
            name = peer.to_bytes(16, "little")
            hello = bench.hello(name)
            bench.feed(Connected(peer, hello, ""))
            bench.feed(Connected(peer + 1, hello, f"unix:@done{name.hex()}"))
        live -= 1
        hear(bench, rng, peer, next(source))
        if not live:
            bench.lost(peer, dead=True)
            bench.lost(peer + 1, dead=True)
        if number % 5000 == 0:
            bench.at(bench.now + 400.0)  # leases and waits of what was left lying run out
            honest(bench, number)
            state = bench.machine.ctx
            assert (
                len(state.processes) <= 4 and len(bench.machine.sessions.tickets) <= 64 and len(state.deadlines) <= 256
            )


def hear(bench: Any, rng: random.Random, peer: int, message: m.Message) -> None:
    """One frame, if it would come through the decoder; copies fail, and the scheduler has no room."""
    try:
        message = m.decode(m.encode(m.Envelope(b"", message))).message
    except msgspec.DecodeError:
        return
    if isinstance(message, OF_LINKS):
        return
    given = FromPeer(peer + rng.randrange(2), message)
    bench.machine.foresee(given, bench.now)
    actions = bench.feed(given)
    while actions:
        action = actions.pop()
        if isinstance(action, Copy):
            actions += bench.feed(Copied(action.token, None, "hostile"))
        elif isinstance(action, Tell) and isinstance(action.event, s.Offered) and action.event.reserve:
            actions += bench.engine(s.ReservationFailed(action.event.ticket, 0, "hostile"))


def honest_sender(bench: SenderBench, number: int) -> None:
    """A hand-over to a receiver that does as it should."""
    name, ticket = number.to_bytes(15, "little") + b"h", f"good{number}"
    alloc = f"unix:@good{number}"
    bench.want(ticket, 3, alloc)
    peer = 10**9 + 2 * number
    bench.connect(peer, name, alloc)
    actions = bench.feed(Connected(peer + 1, bench.hello(name), ""))
    pull = bench.machine.sessions.tickets[ticket].pull_id
    targets = [m.PageRef(name, n, 0) for n in range(3)] if bench.mode == "push" else []
    actions = bench.frame(peer, m.OfferReply(pull, targets=targets))
    assert any(isinstance(event, s.SendAdmitted) for event in told(actions))
    actions = bench.copies(bench.engine(s.Computed(ticket, 0, [10, 11, 12], True)))
    assert len(sent(actions, m.Ready)) >= 1
    actions += bench.frame(peer, m.Stored(pull, 3)) if bench.mode == "push" else bench.frame(peer + 1, m.Done(pull))
    assert any(isinstance(event, s.Returned) for event in told(actions))
    bench.lost(peer, dead=True)
    bench.lost(peer + 1, dead=True)


def honest_receiver(bench: ReceiverBench, number: int) -> None:
    """A hand-over from a sender that does as it should."""
    name, ticket, peer = number.to_bytes(15, "little") + b"h", f"good{number}", 10**9 + 2 * number
    bench.connect(peer, name)
    bench.done_channel(peer + 1, name)
    names = [bytes([n]) * 16 for n in range(3)]
    actions = bench.frame(peer, m.Offer(0, ticket, 96, 32, names, f"unix:@done{name.hex()}", 60.0))
    assert [event.ticket for event in told(actions) if isinstance(event, s.Offered)] == [ticket]
    room: Any = s.Fetch if bench.mode == "pull-delay" else s.Reserved
    bench.engine(room(ticket, [5, 6, 7], 0))
    actions = bench.copies(bench.frame(peer, bench.ready(0, 3, True, 0, name)), DIGEST)
    arrived = [event.tokens for event in told(actions) if isinstance(event, s.Arrived)]
    assert arrived and arrived[-1] == 96, actions
    bench.engine(s.Claimed(ticket, 96))
    for action in of(actions, Send):
        if isinstance(action.message, m.Done):
            bench.frame(peer + 1, m.DoneAck(action.message.pull_id, "ok"))
    bench.lost(peer, dead=True)
    bench.lost(peer + 1, dead=True)
