"""Two agents on one host: greeting, frames, copies and payloads over every channel, with real sockets and memory."""

from __future__ import annotations

import os

import pytest

from homenode.transfer.state.machine import (
    Close,
    Connect,
    Connected,
    ConnectFailed,
    Copied,
    Copy,
    Epochs,
    FromPeer,
    PeerLost,
    Receive,
    Send,
    SendPages,
    Sent,
)
from homenode.transfer.wire.message import Data, Done, DoneAck, Offer, Read
from tests.host.transfer.rig import FINGERPRINT, Side, layout, running
from tests.waiting import wait_until

CHANNELS = [("shm", None), ("tcp", None), ("tcp", "a secret"), ("tls", None)]
NETWORKS = CHANNELS[1:]


def meet(sender: Side, receiver: Side) -> tuple[int, int]:
    """Connect; the numbers by which each side knows the other."""
    sender.do(Connect(receiver.address()))
    there = sender.machine.expect(Connected)
    here = receiver.machine.expect(Connected)
    assert there.hello.incarnation == receiver.identity.incarnation and there.address == receiver.address()
    assert here.hello.incarnation == sender.identity.incarnation and here.address == ""
    return there.peer, here.peer


@pytest.mark.parametrize(("channel", "secret"), CHANNELS)
def test_two_agents_greet_and_talk(channel: str, secret: str | None) -> None:
    with running("sender", channel, secret=secret) as sender, running("receiver", channel, secret=secret) as receiver:
        to_receiver, to_sender = meet(sender, receiver)
        offer = Offer(7, "t", 65, 32, [bytes(16)] * 3, sender.address("done"), 30.0)
        sender.do(Send(to_receiver, offer))
        assert receiver.machine.expect(FromPeer) == FromPeer(to_sender, offer)
        receiver.do(Connect(sender.address("done")))
        done_channel = receiver.machine.expect(Connected).peer
        came = sender.machine.expect(Connected).peer
        assert came != to_receiver
        receiver.do(Send(done_channel, Done(7)))
        assert sender.machine.expect(FromPeer) == FromPeer(came, Done(7))
        sender.do(Send(came, DoneAck(7, "ok")), Close(came, "test"))
        assert receiver.machine.expect(FromPeer) == FromPeer(done_channel, DoneAck(7, "ok"))
        assert receiver.machine.expect(PeerLost).peer == done_channel


@pytest.mark.parametrize(("channel", "secret"), CHANNELS)
def test_nobody_there_is_told(channel: str, secret: str | None) -> None:
    with running("sender", channel, secret=secret) as sender:
        address = "unix:@homenode-nobody" if channel == "shm" else "tcp:127.0.0.1:1"
        sender.do(Connect(address))
        failed = sender.machine.expect(ConnectFailed)
        assert failed.address == address and "nobody takes connections" in failed.reason


@pytest.mark.parametrize(
    "address",
    [
        "",
        "unix:name",
        "unix:@",
        "tcp:localhost:80",
        "tcp:127.0.0.1:0",
        "tcp:127.0.0.1:70000",
        "http://x",
        "unix:@" + "x" * 200,
    ],
)
def test_an_address_that_is_none_is_told(address: str) -> None:
    with running("sender") as sender:
        sender.do(Connect(address))
        assert sender.machine.expect(ConnectFailed).address == address


def test_a_channel_does_not_leave_its_kind_of_address() -> None:
    with running("sender", "shm") as sender, running("sender", "tcp") as other:
        sender.do(Connect("tcp:127.0.0.1:9"))
        assert "transfer_channel shm" in sender.machine.expect(ConnectFailed).reason
        other.do(Connect("unix:@x"))
        assert "transfer_channel tcp" in other.machine.expect(ConnectFailed).reason
        other.do(Connect("tcp:192.0.2.1:9"))
        assert "--peer-keys" in other.machine.expect(ConnectFailed).reason


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mode": "pull-delay"}, "mode"),
        ({"fingerprint": FINGERPRINT | {"rope": "500000"}}, "rope"),
        ({"fingerprint": {"model": "toy", "dtype": "f16"}}, "rope"),
        ({"protocol": (3, 4)}, "protocol"),
    ],
)
def test_what_differs_is_named_on_both_sides(change: dict[str, object], word: str) -> None:
    with running("sender") as sender, running("receiver", **{"mode": "pull-eager", **change}) as receiver:  # type: ignore[arg-type]
        sender.do(Connect(receiver.address()))
        assert word in sender.machine.expect(ConnectFailed).reason
        assert receiver.machine.inputs.empty()
        assert receiver.refused() == {word: 1}


def test_two_senders_refuse_each_other() -> None:
    with running("sender") as one, running("sender") as two:
        one.do(Connect(two.address("done")))
        assert "pd_role" in one.machine.expect(ConnectFailed).reason


def test_other_protocol_ranges_that_overlap_get_along() -> None:
    with running("sender", protocol=(1, 4)) as sender, running("receiver") as receiver:
        meet(sender, receiver)


@pytest.mark.parametrize(("ours", "theirs"), [("a", "b"), ("a", None), (None, "b")])
def test_a_wrong_secret_gets_nowhere(ours: str | None, theirs: str | None) -> None:
    with running("sender", "tcp", secret=ours) as sender, running("receiver", "tcp", secret=theirs) as receiver:
        sender.do(Connect(receiver.address()))
        reason = sender.machine.expect(ConnectFailed).reason
        assert "secret" in reason or "closed" in reason
        assert receiver.machine.inputs.empty()


def test_pull_over_shared_memory_reads_the_sender_in_place() -> None:
    with running("sender") as sender, running("receiver") as receiver:
        _, peer = meet(sender, receiver)
        source = receiver_buffer(sender)
        words = sender.cache.words
        assert words is not None
        sender.do(Epochs(sender.cache.buffer.id, [3, 5], [7, 9]))
        wait_until(lambda: words.read(5) == 9, "the epochs are written, by another thread")
        table, tokens = [3, 5], 50
        receiver.do(copy(1, source, table, receiver, [1, 0], tokens, epochs=[7, 9]))
        copied = receiver.machine.expect(Copied)
        wanted = sender.cache.memory.digests(table, 0, 2, tokens)
        assert copied == Copied(1, wanted) and receiver.cache.memory.digests([1, 0], 0, 2, tokens) == wanted
        receiver.do(copy(2, source, table, receiver, [1, 0], tokens, epochs=[7, 8]))
        assert receiver.machine.expect(Copied).digests is None
        receiver.do(Close(peer, "test"), copy(3, source, table, receiver, [1, 0], tokens))
        assert "not in reach" in receiver.machine.expect(Copied).reason


def receiver_buffer(side: Side) -> bytes:
    return side.cache.buffer.id


def copy(
    token: int, source: bytes, table: list[int], target: Side, target_table: list[int], tokens: int, **rest: object
) -> Copy:
    return Copy(token, source, table, target.cache.buffer.id, target_table, 0, len(table), tokens, 32, **rest)  # type: ignore[arg-type]


def test_what_is_mapped_for_reading_cannot_be_written() -> None:
    with running("sender") as sender, running("receiver") as receiver:
        meet(sender, receiver)
        receiver.do(Copy(1, receiver.cache.buffer.id, [0], sender.cache.buffer.id, [0], 0, 1, 32, 32))
        assert receiver.machine.expect(Copied).digests is None
        meet(sender, receiver)  # and the agent lives


def test_push_over_shared_memory_writes_into_the_receiver() -> None:
    with running("sender", mode="push") as sender, running("receiver", mode="push") as receiver:
        meet(sender, receiver)
        sender.do(Copy(4, sender.cache.buffer.id, [2, 6, 1], receiver.cache.buffer.id, [7, 0, 3], 0, 3, 70, 32))
        assert sender.machine.expect(Copied).digests == receiver.cache.memory.digests([7, 0, 3], 0, 3, 70)
        sender.do(Copy(5, sender.cache.buffer.id, [2], b"", [], 0, 1, 16, 32, digest_only=True))
        assert sender.machine.expect(Copied).digests == sender.cache.memory.digests([2], 0, 1, 16)


def test_memory_of_a_lost_sender_can_still_be_read() -> None:
    with running("receiver") as receiver:
        with running("sender") as sender:
            _, peer = meet(sender, receiver)
            wanted = sender.cache.memory.digests([0, 1], 0, 2, 64)
            source = sender.cache.buffer.id
        assert receiver.machine.expect(PeerLost).peer == peer
        receiver.do(copy(1, source, [0, 1], receiver, [2, 3], 64))
        assert receiver.machine.expect(Copied) == Copied(1, wanted)


@pytest.mark.parametrize(("channel", "secret"), NETWORKS)
@pytest.mark.parametrize("block_size", [32, 64, 96])
@pytest.mark.parametrize("tokens", [1, 16, 33, 96, 95])
def test_bytes_over_tcp_arrive_as_they_were(channel: str, secret: str | None, block_size: int, tokens: int) -> None:
    """The sender's pages are of 32 tokens; the receiver's blocks may be larger."""
    pages = -(-tokens // 32)
    target = [4, 0, 2][: -(-tokens // block_size)]

    def answer(given: object) -> list[object]:
        if isinstance(given, FromPeer) and isinstance(given.message, Data) and given.message.nbytes:
            return [Receive(11, given.peer, receiver_id[0], target, 0, pages, tokens, 32)]
        return []

    receiver_id: list[bytes] = []
    wide = layout(block_size=block_size)
    with (
        running("sender", channel, secret=secret) as sender,
        running("receiver", channel, secret=secret, of=wide, answer=answer) as receiver,
    ):  # type: ignore[arg-type]
        receiver_id.append(receiver.cache.buffer.id)
        to_receiver, _ = meet(sender, receiver)
        blocks = [5, 1, 6][:pages]
        counts = [min(32, tokens - 32 * page) for page in range(pages)]
        wanted = sender.cache.memory.digests(blocks, 0, pages, tokens)
        header = Data(1, 0, pages, 0, wanted, True)
        sender.do(
            SendPages(3, to_receiver, header, sender.cache.buffer.id, blocks, counts), Send(to_receiver, Read(1, 0, 1))
        )
        assert sender.machine.expect(Sent) == Sent(3, True)
        assert receiver.machine.expect(Copied) == Copied(11, wanted)
        assert receiver.machine.expect(FromPeer).message == Read(1, 0, 1)  # the stream goes on where the payload ended
        if block_size == 32:
            assert receiver.cache.memory.digests(target, 0, pages, tokens) == wanted


@pytest.mark.parametrize(("channel", "secret"), NETWORKS)
def test_bytes_nobody_wants_are_dropped_and_the_stream_goes_on(channel: str, secret: str | None) -> None:
    with running("sender", channel, secret=secret) as sender, running("receiver", channel, secret=secret) as receiver:
        to_receiver, _ = meet(sender, receiver)
        before = bytes(receiver.cache.memory.bytes)  # type: ignore[attr-defined]
        for number in range(20):
            header = Data(number, 0, 8, 0, [], False)
            sender.do(SendPages(number, to_receiver, header, sender.cache.buffer.id, list(range(8)), [32] * 8))
            sender.do(Send(to_receiver, Read(number, 0, 1)))
        for number in range(20):
            assert sender.machine.expect(Sent) == Sent(number, True)
        seen = [receiver.machine.expect(FromPeer).message for _ in range(40)]
        assert [message for message in seen if isinstance(message, Read)] == [
            Read(number, 0, 1) for number in range(20)
        ]
        assert bytes(receiver.cache.memory.bytes) == before  # type: ignore[attr-defined]


def test_a_payload_of_the_wrong_size_is_not_taken() -> None:
    def answer(given: object) -> list[object]:
        if isinstance(given, FromPeer) and isinstance(given.message, Data):
            return [Receive(11, given.peer, target[0], [0], 0, 1, 32, 32)]
        return []

    target: list[bytes] = []
    with running("sender", "tcp") as sender, running("receiver", "tcp", answer=answer) as receiver:  # type: ignore[arg-type]
        target.append(receiver.cache.buffer.id)
        to_receiver, _ = meet(sender, receiver)
        sender.do(SendPages(1, to_receiver, Data(1, 0, 2, 0, [], False), sender.cache.buffer.id, [0, 1], [32, 32]))
        assert "announced" in receiver.machine.expect(Copied).reason
        sender.do(Send(to_receiver, Read(1, 0, 1)))
        assert receiver.machine.expect(FromPeer).message  # Data
        meet(sender, receiver)


def test_a_large_frame_and_a_backlog_pass() -> None:
    with running("sender") as sender, running("receiver") as receiver:
        to_receiver, _ = meet(sender, receiver)
        offer = Offer(1, "t", 1 << 20, 32, [os.urandom(16) for _ in range(1 << 15)], sender.address("done"), 1.0)
        sender.do(*[Send(to_receiver, offer)] * 10, Send(to_receiver, Read(1, 0, 1)))
        for _ in range(10):
            assert receiver.machine.expect(FromPeer).message == offer
        assert receiver.machine.expect(FromPeer).message == Read(1, 0, 1)


def test_shutting_down_while_things_are_under_way_ends_in_time() -> None:
    with running("sender", "tcp") as sender:
        with running("receiver", "tcp") as receiver:
            to_receiver, _ = meet(sender, receiver)
            for number in range(300):
                header = Data(number, 0, 8, 0, [], False)
                sender.do(SendPages(number, to_receiver, header, sender.cache.buffer.id, list(range(8)), [32] * 8))
            sender.machine.expect(Sent)
        assert sender.machine.expect(PeerLost).peer == to_receiver
