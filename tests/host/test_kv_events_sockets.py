"""Events about KV blocks over ZeroMQ, on loopback: numbers, topics, replays, readers that are slow or send nonsense."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from tempfile import TemporaryDirectory

import msgspec
import pytest

from homenode.engine.kv.block_journal import BlockChange, BlockContent, BlockGone
from homenode.engine.kv_events.events import IN_KV_MEMORY, ON_DISK, KvEvent
from homenode.engine.kv_events.told_events import EventForm, StoreChanges, ToldEvents
from homenode.engine.kv_events_config import KvEventsSettings
from homenode.errors import HostError
from tests.waiting import PATIENCE_S, wait_until

zmq = pytest.importorskip("zmq")


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def content(number: int) -> BlockContent:
    return BlockContent(number.to_bytes(16, "big"), None, (number,))


class Pair:
    """A publisher, a reader of its events and one that asks for them again."""

    def __init__(self, elsewhere: Callable[[], StoreChanges] | None = None, **more: object) -> None:
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
        self.publisher = EventPublisher(self.settings, 0, EventForm(1), elsewhere)
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
        assert self.reader.poll(int(1000 * PATIENCE_S))
        topic, number, payload = self.reader.recv_multipart()
        return topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)

    def replay(self, *frames: bytes) -> list[tuple[int, list[object]]]:
        assert self.settings.replay_endpoint is not None
        with closing(self.context.socket(zmq.DEALER)) as asks:
            asks.setsockopt(zmq.LINGER, 0)
            asks.connect(self.settings.replay_endpoint)
            asks.send_multipart(frames)
            found = []
            while asks.poll(int(1000 * PATIENCE_S)):
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
    wait_until(lambda: len(pair.replay(b"", bytes(8))) >= number)


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
            wait_until(lambda number=number: pair.replay(b"", (number + 1).to_bytes(8, "big")))
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


def test_what_is_too_long_is_not_even_taken(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever sends it is cut off; others are answered."""
    assert pair.settings.replay_endpoint is not None
    with closing(pair.context.socket(zmq.DEALER)) as sends:
        sends.setsockopt(zmq.LINGER, 0)
        heard = sends.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        sends.connect(pair.settings.replay_endpoint)
        sends.send_multipart([bytes(1 << 20)])
        assert heard.poll(int(1000 * PATIENCE_S))
        sends.disable_monitor()
    assert [number for number, _ in pair.replay(b"", bytes(8))] == [0]
    assert "is no request" not in caplog.text


def test_a_topic_as_long_as_may_be_is_subscribed_to() -> None:
    topic = "\u20ac" * 255
    pair = Pair(topic=topic)
    pair.publisher.start()
    try:
        pair.reader.setsockopt(zmq.SUBSCRIBE, topic.encode())
        pair.listen()
        pair.publisher.give([content(1)])
        assert pair.heard()[0] == topic.encode()
    finally:
        pair.close()


def told_until(pair: Pair, count: int) -> list[tuple[str, str | None]]:
    """Kinds and media of all events, once there are so many of them."""
    end = time.monotonic() + PATIENCE_S
    while True:
        batches = [batch[1] for _, batch in pair.replay(b"", bytes(8))]
        told = [(event["type"], event.get("medium")) for batch in batches for event in batch]  # type: ignore[attr-defined]
        if len(told) >= count:
            return told
        assert time.monotonic() < end


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks elsewhere at once."""
    from homenode.engine.kv_events import publisher

    monkeypatch.setattr(publisher, "_LOOK_EVERY_S", 0.01)


def test_an_error_elsewhere_ends_what_is_told_of_that_alone(hasty: None, caplog: pytest.LogCaptureFixture) -> None:
    looks: list[int] = []

    def elsewhere() -> StoreChanges:
        looks.append(len(looks))
        if len(looks) > 1:
            raise RuntimeError("planted")
        return {ON_DISK: {content(1).digest: True}}

    pair = Pair(elsewhere)
    pair.publisher.start()
    try:
        pair.publisher.give([content(1)])
        told_until(pair, 3)  # cleared; stored in memory; on disk
        pair.publisher.give([content(2)])
        told_until(pair, 5)
        pair.publisher.give([content(3)])
        assert told_until(pair, 6)[2:] == [
            ("BlockStored", ON_DISK),
            ("BlockStored", IN_KV_MEMORY),
            ("BlockRemoved", ON_DISK),
            ("BlockStored", IN_KV_MEMORY),
        ]
        assert len(looks) == 2 and caplog.text.count("RuntimeError: planted") == 1
    finally:
        pair.close()


def plant(monkeypatch: pytest.MonkeyPatch, errors: list[Exception]) -> None:
    """Have the next changes fail with these once they are half taken."""
    take = ToldEvents.take

    def failing(told: ToldEvents, changes: list[BlockChange], states: frozenset[bytes] | None = None) -> list[KvEvent]:
        if errors and changes:
            take(told, changes[:1], states)
            raise errors.pop()
        return take(told, changes, states)

    monkeypatch.setattr(ToldEvents, "take", failing)


def test_after_an_error_all_that_is_held_is_told_anew(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, [MemoryError()])
    pair.publisher.give([content(1), content(2), BlockGone(content(1).digest)])
    wait_for(pair, 2)
    pair.publisher.give([content(3)])
    wait_for(pair, 3)
    (_, again), (_, later) = pair.replay(b"", (1).to_bytes(8, "big"))
    assert kinds(again) == ["AllBlocksCleared", "BlockStored"]
    assert again[1][1]["token_ids"] == [2]  # type: ignore[index]
    assert kinds(later) == ["BlockStored"] and not pair.publisher.ended


def test_after_an_error_that_stays_nothing_is_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.listen()
    plant(monkeypatch, [RuntimeError("planted"), RuntimeError("planted")])
    pair.publisher.give([content(1), content(2)])
    _, _, batch = pair.heard()
    assert kinds(batch) == ["AllBlocksCleared"]  # who reads believes nothing any more
    assert pair.publisher.ended
    pair.publisher.give([content(3)])
    assert pair.publisher._waiting == []


def test_after_an_error_what_lies_elsewhere_is_told_as_well(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that was just being taken, which is told by its journal once only."""
    changes: list[StoreChanges] = [{ON_DISK: {content(1).digest: True}}]
    errors = [RuntimeError("planted")]
    take = ToldEvents.take_stores

    def failing(told: ToldEvents, stores: StoreChanges) -> list[KvEvent]:
        if errors:
            raise errors.pop()
        return take(told, stores)

    monkeypatch.setattr(ToldEvents, "take_stores", failing)
    pair = Pair(lambda: changes.pop() if changes else {})
    pair.publisher.start()
    try:
        pair.publisher.give([content(1)])
        assert ("BlockStored", ON_DISK) in told_until(pair, 5)  # cleared; stored; then all of it once more
    finally:
        pair.close()


@pytest.fixture
def folder() -> Iterator[str]:
    """One whose path is short enough for sockets."""
    with TemporaryDirectory(prefix="kv") as made:
        yield made


def test_a_path_in_use_is_not_taken_from_its_owner(folder: str) -> None:
    endpoint = f"ipc://{folder}/events"
    first = Pair(endpoint=endpoint)
    try:
        with pytest.raises(HostError, match="events cannot be had"):
            Pair(endpoint=endpoint)
    finally:
        first.close()
    with closing(socket.socket(socket.AF_UNIX)) as left_over:
        left_over.bind(f"{folder}/left-over")  # by somebody who has died
    Pair(endpoint=f"ipc://{folder}/left-over").close()


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
