"""Events about KV blocks over ZeroMQ, on loopback: numbers, topics, replays, readers that are slow or send nonsense."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from homenode.engine.kv.block_journal import BlockContent, BlockGone
from homenode.engine.kv_events.told_events import EventForm
from homenode.engine.kv_events_config import KvEventsSettings
from homenode.errors import HostError

zmq = pytest.importorskip("zmq")
PATIENCE_MS = 10_000


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def content(number: int) -> BlockContent:
    return BlockContent(number.to_bytes(16, "big"), None, (number,))


class Pair:
    """A publisher, a reader of its events and one that asks for them again."""

    def __init__(self, **more: object) -> None:
        from homenode.engine.kv_events.publisher import EventPublisher

        self.settings = msgspec.convert(
            {
                "enable_kv_cache_events": True,
                "endpoint": f"tcp://127.0.0.1:{free_port()}",
                "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
                "topic": "kv",
                **more,
            },
            KvEventsSettings,
        )
        self.publisher = EventPublisher(self.settings, 0, EventForm(1))
        self.context = zmq.Context()
        self.reader = self.context.socket(zmq.SUB)
        self.reader.setsockopt(zmq.RCVHWM, 2)
        self.reader.setsockopt(zmq.SUBSCRIBE, b"kv")

    def listen(self) -> None:
        """Connect, and wait until batches come."""
        self.reader.connect(self.settings.endpoint)
        for number in range(10_000, 10_200):
            self.publisher.give([content(number)])
            if self.reader.poll(50):
                break
        while self.reader.poll(100):
            self.reader.recv_multipart()

    def heard(self) -> tuple[bytes, int, list[object]]:
        assert self.reader.poll(PATIENCE_MS)
        topic, number, payload = self.reader.recv_multipart()
        return topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)

    def replay(self, *frames: bytes) -> list[tuple[int, list[object]]]:
        assert self.settings.replay_endpoint is not None
        with closing(self.context.socket(zmq.DEALER)) as asks:
            asks.setsockopt(zmq.LINGER, 0)
            asks.connect(self.settings.replay_endpoint)
            asks.send_multipart(frames)
            found = []
            while asks.poll(PATIENCE_MS):
                _, _, number, payload = asks.recv_multipart()
                if not payload:
                    assert number == (-1).to_bytes(8, "big", signed=True)
                    return found
                found.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
        raise AssertionError("a replay has no end")

    def close(self) -> None:
        self.publisher.close(5.0)
        self.context.destroy(0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(buffer_steps=1000)
    made.publisher.start()
    yield made
    made.close()


def kinds(batch: list[object]) -> list[str]:
    events = batch[1]
    assert isinstance(events, list)
    return [event["type"] for event in events]


def test_batches_are_numbered_under_their_topic(pair: Pair) -> None:
    pair.listen()
    pair.publisher.give([content(1)])
    topic, first, batch = pair.heard()
    assert (topic, batch[2], kinds(batch)) == (b"kv", 0, ["BlockStored"])
    pair.publisher.give([BlockGone(content(1).digest)])
    _, second, batch = pair.heard()
    assert (second, kinds(batch)) == (first + 1, ["BlockRemoved"])


def wait_for(pair: Pair, number: int) -> None:
    """Until so many batches were published."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while len(pair.replay(b"", bytes(8))) < number:
        assert time.monotonic() < end


def test_a_replay_from_a_number_has_what_follows(pair: Pair) -> None:
    for number in range(5):
        pair.publisher.give([content(number)])
        wait_for(pair, number + 2)  # the first batch says that nothing is held
    assert [number for number, _ in pair.replay(b"", bytes(8))] == [0, 1, 2, 3, 4, 5]
    assert [number for number, _ in pair.replay(b"", (4).to_bytes(8, "big"))] == [4, 5]
    assert pair.replay(b"", (99).to_bytes(8, "big")) == []


def test_beyond_what_is_kept_a_replay_is_a_snapshot() -> None:
    pair = Pair(buffer_steps=2)
    pair.publisher.start()
    try:
        for number in range(6):
            pair.publisher.give([content(number)])
            time.sleep(0.02)
        ((_, batch),) = pair.replay(b"", bytes(8))
        assert kinds(batch) == ["AllBlocksCleared", *["BlockStored"] * 6]
    finally:
        pair.close()


def test_nonsense_is_not_answered_and_harms_nobody(pair: Pair) -> None:
    assert pair.settings.replay_endpoint is not None
    with closing(pair.context.socket(zmq.DEALER)) as asks:
        asks.setsockopt(zmq.LINGER, 0)
        asks.connect(pair.settings.replay_endpoint)
        for frames in ([b""], [b"", b"x"], [b"", bytes(9)], [b"x", bytes(8)], [b"", bytes(8), b""], [b"", bytes(65)]):
            asks.send_multipart(frames)
        assert not asks.poll(200)
    assert [number for number, _ in pair.replay(b"", bytes(8))] == [0]


def test_a_reader_that_does_not_read_is_not_waited_for() -> None:
    pair = Pair(hwm=2, buffer_steps=10)
    pair.publisher.start()
    try:
        pair.listen()
        began, tokens = time.monotonic(), tuple(range(4_000))
        for number in range(60):
            pair.publisher.give([BlockContent(number.to_bytes(16, "big"), None, tokens)])
        assert time.monotonic() - began < 5
        assert pair.replay(b"", bytes(8))  # it goes on
    finally:
        pair.close()


def test_an_endpoint_in_use_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=f"endpoint tcp://127.0.0.1:{port} cannot be had"):
            Pair(endpoint=f"tcp://127.0.0.1:{port}")
