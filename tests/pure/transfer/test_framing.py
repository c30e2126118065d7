"""Frames, MACs and payloads, however the stream is cut."""

from __future__ import annotations

import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.net.frame_mac import Direction, FrameMac, session_key
from homenode.net.frames import FrameError, FrameParser, frame
from homenode.transfer.wire.stream import MOST_QUEUED, WriteQueue, discarding, into

KEY = session_key("secret", b"one", b"two")


def parse(parser: FrameParser, stream: bytes, cuts: list[int]) -> list[bytes]:
    """Feed a stream in pieces; the bodies."""
    bodies: list[bytes] = []
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    for begin, end in itertools.pairwise(places):
        parser.feed(stream[begin:end])
        while (body := parser.next()) is not None:
            bodies.append(body)
    return bodies


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_frames_come_out_as_they_went_in(bodies: list[bytes], cuts: list[int], secret: bool) -> None:
    parser = FrameParser()
    mac = FrameMac(KEY, Direction.FROM_CONNECTOR) if secret else None
    parser.mac = FrameMac(KEY, Direction.FROM_CONNECTOR) if secret else None
    assert parse(parser, b"".join(frame(body, mac) for body in bodies), cuts) == bodies
    assert parser.held == 0


@pytest.mark.parametrize("size", [101, 1 << 31, (1 << 32) - 1])
def test_a_length_past_the_bound_is_refused_before_anything_is_kept(size: int) -> None:
    parser = FrameParser(100)
    parser.feed(size.to_bytes(4, "little"))
    with pytest.raises(FrameError, match="announces"):
        parser.next()
    with pytest.raises(FrameError):
        frame(bytes(101), None, 100)


@given(st.integers(0, 60), st.integers(1, 255))
def test_any_changed_byte_shows(at: int, change: int) -> None:
    stream = bytearray(frame(b"a body of some length that is", FrameMac(KEY, Direction.FROM_ACCEPTOR)))
    at %= len(stream)
    stream[at] ^= change
    parser = FrameParser(1000)
    parser.mac = FrameMac(KEY, Direction.FROM_ACCEPTOR)
    parser.feed(bytes(stream))
    if at >= 4:
        with pytest.raises(FrameError, match="MAC"):
            parser.next()
    else:  # another length: too large, not complete, or wrong
        try:
            assert parser.next() is None
        except FrameError:
            pass


def test_a_frame_cannot_be_repeated_left_out_or_sent_back() -> None:
    out = FrameMac(KEY, Direction.FROM_CONNECTOR)
    first, second = frame(b"1", out), frame(b"2", out)
    for stream, direction in ((first + first, 0), (second, 0), (first, 1)):
        parser = FrameParser()
        parser.mac = FrameMac(KEY, Direction(direction))
        parser.feed(stream)
        with pytest.raises(FrameError):
            while parser.next() is not None:
                pass


def test_keys_differ_by_secret_and_by_either_hello() -> None:
    keys = {
        session_key(*parts)
        for parts in (("s", b"a", b"b"), ("t", b"a", b"b"), ("s", b"x", b"b"), ("s", b"a", b"x"), ("s", b"ab", b""))
    }
    assert len(keys) == 5


@given(st.lists(st.integers(0, 200), max_size=20), st.booleans(), st.booleans())
def test_payloads_land_in_their_views(sizes: list[int], secret: bool, wanted: bool) -> None:
    here, there = socket.socketpair()
    with here, there:
        out = FrameMac(KEY, Direction.FROM_CONNECTOR) if secret else None
        came = FrameMac(KEY, Direction.FROM_CONNECTOR) if secret else None
        sent = [bytes([1 + number % 255]) * size for number, size in enumerate(sizes)]
        queue = WriteQueue()
        queue.push(frame(b"header", out))
        queue.push_payload([memoryview(piece) for piece in sent], 7, out.start() if out else None)
        queue.push(frame(b"after", out))
        tokens: list[int] = []
        while queue:
            tokens += queue.flush(here)
        assert tokens == [7]
        parser = FrameParser()
        parser.mac = came
        parser.feed(there.recv(13 if secret else 12))  # somewhere around the header's end
        while (header := parser.next()) is None:
            parser.feed(there.recv(5))
        assert header == b"header"
        targets = [bytearray(size) for size in sizes]
        mac = came.start() if came else None
        incoming = into(map(memoryview, targets), 7, mac) if wanted else discarding(sum(sizes), mac)
        incoming.take(parser)
        while not incoming.complete:
            incoming.receive(there)
        incoming.check()
        assert not wanted or [bytes(target) for target in targets] == sent
        while (body := parser.next()) is None:
            parser.feed(there.recv(100))
        assert body == b"after"


def test_a_changed_payload_shows() -> None:
    mac = FrameMac(KEY, Direction.FROM_CONNECTOR).start()
    mac.update(b"right")
    parser = FrameParser()
    parser.feed(b"wrong" + mac.digest())
    incoming = into([memoryview(bytearray(5))], 1, FrameMac(KEY, Direction.FROM_CONNECTOR).start())
    incoming.take(parser)
    assert incoming.complete
    with pytest.raises(FrameError):
        incoming.check()


def test_the_queue_is_bounded() -> None:
    queue = WriteQueue()
    with pytest.raises(FrameError, match="wait"):
        for _ in range(MOST_QUEUED // 1000 + 2):
            queue.push(bytes(1000))
    queue = WriteQueue()
    with pytest.raises(FrameError, match="payloads"):
        for token in range(2000):
            queue.push_payload([], token, None)
    assert len(queue.tokens()) < 2000
