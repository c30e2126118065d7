"""Everything that goes from one host to another, read off the wire between two network namespaces: with keys no text,
no ids and no KV or rows can be found in it; with the flag that says so they can, so this test can fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

from homenode.engine.channels.host_ranks import HostRanksName
from homenode.engine.channels.tcp import TcpInlet, TcpOutlet
from homenode.engine.channels.tcp_ranks import TcpRanks
from homenode.engine.channels.topics import Group, IAm, Key, call
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.net.message_frames import FrameSocket, encode_frame
from homenode.net.settings import NetConfig
from tests.host.net.namespaces import Capture, FarHost, far_host
from tests.host.transfer.pair import Engine, compute, want
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S

TEXT = b"the quokka on the windowsill said nothing at all"
IDS = random.Random(4).sample(range(200, 60_000), 64)
TOKENS, PAGE = 200, 48  # bytes of a page that are looked for


@pytest.fixture(scope="module")
def far() -> Iterator[FarHost]:
    with far_host() as host:
        yield host


def samples(data: bytes | memoryview, count: int = 40) -> list[bytes]:
    """Pieces of some bytes that say nothing by chance."""
    draw, found = random.Random(9), bytes(data)
    pieces = (found[at : at + PAGE] for at in (draw.randrange(len(found) - PAGE) for _ in range(20 * count)))
    return [piece for piece in pieces if len(set(piece)) > PAGE // 4][:count]


def ids_as_sent() -> list[bytes]:
    """The ids as a list of bytes in each form that frames or arrays have."""
    return [msgspec.msgpack.encode(IDS)[5:-5], np.array(IDS, "<i4").tobytes(), np.array(IDS, "<i8").tobytes()]


def hand_kv_over(far: FarHost, net: NetConfig) -> list[bytes]:
    """From a sender here to a receiver there; pieces of the pages that were handed over."""
    options: dict[str, Any] = {"channel": "tcp", "mode": "pull-eager", "net": net}
    secret = {} if net.peer_keys else {"pd_secret": "a secret of some length"}
    sender = Engine("sender", settings={"pd_peer_host": far.here, **secret}, **options)
    receiver = far.run(lambda: Engine("receiver", settings={"pd_peer_host": far.there, **secret}, **options))
    tell = receiver.agent.tell
    receiver.agent.tell = lambda message: far.run(tell, message)  # what is done at once is done there, too
    sender.agent.start()
    far.run(receiver.agent.start)
    try:
        want(sender, receiver, "ticket", TOKENS)
        blocks = compute(sender, "ticket", TOKENS)
        receiver.fetch("ticket")
        receiver.arrived("ticket", TOKENS)
        receiver.claim("ticket", TOKENS)
        return [
            piece
            for block in blocks[:-1]
            for layer in range(2)
            for view in sender.cache.head(block, layer, 0, 2)  # type: ignore[union-attr]
            for piece in samples(view, 1)
        ]
    finally:
        sender.agent.close(2.0)
        far.run(receiver.agent.close, 2.0)


def send_rows(far: FarHost, net: NetConfig) -> list[bytes]:
    """From a stage here to one there."""
    rendezvous, key = Rendezvous(far.here, PATIENCE_S, net), Key(0, 1, 0)
    rows = np.random.default_rng(1).standard_normal((30, 64)).astype(np.float32)
    inlet = TcpInlet(rendezvous.address, far.there, rendezvous.credentials, key, PATIENCE_S, 64)
    outlet = TcpOutlet(rendezvous.address, rendezvous.credentials, key, PATIENCE_S)
    try:
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(outlet.put, 0, rows)
            np.testing.assert_array_equal(far.run(inlet.take, 0, 30, 64), rows)
            writing.result(PATIENCE_S)
        return samples(rows.tobytes())
    finally:
        inlet.leave()
        outlet.leave()
        rendezvous.close()


def add_up(far: FarHost, net: NetConfig) -> list[bytes]:
    """Between a rank here and one there."""
    rendezvous, group = Rendezvous(far.here, PATIENCE_S, net), Group(0, 0)
    rendezvous.forget(0)

    def seat(rank: int, ip: str) -> TcpRanks:
        name = HostRanksName(group, 2, ip, ip, rendezvous.credentials)
        return TcpRanks(rendezvous.address, name, rank, PATIENCE_S, 0)

    values = [np.random.default_rng(rank).standard_normal((8, 64)).astype(np.float32) for rank in range(2)]
    sums = [each.copy() for each in values]
    mine, theirs = seat(0, far.here), far.run(seat, 1, far.there)
    try:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(theirs.group.sum, sums[1])
            mine.group.sum(sums[0])
            other.result(PATIENCE_S)
        np.testing.assert_array_equal(sums[0], values[0] + values[1])
        return samples(values[0].tobytes()) + samples(values[1].tobytes())
    finally:
        mine.close()
        theirs.close()
        rendezvous.close()


def speak_with_a_worker(far: FarHost, net: NetConfig) -> list[bytes]:
    """Frames with text and ids, as steps have them, to a worker there and back."""
    rendezvous = Rendezvous(far.here, PATIENCE_S, net)
    try:
        with (
            rendezvous.expect(0, 0) as here,
            far.run(call, rendezvous.address, rendezvous.credentials, IAm(0, 0), PATIENCE_S) as there,
        ):
            here.sendall(encode_frame({"ids": IDS, "text": TEXT, "array": np.array(IDS, "<i4").tobytes()}))
            there.settimeout(PATIENCE_S)
            body = FrameSocket(there).receive()
            there.sendall(encode_frame(np.array(IDS, "<i8").tobytes()))
            here.settimeout(PATIENCE_S)
            assert body and FrameSocket(here).receive()
        return [TEXT, *ids_as_sent()]
    finally:
        rendezvous.close()


TALKS: dict[str, Callable[[FarHost, NetConfig], Sequence[bytes]]] = {
    "KV": hand_kv_over,
    "stages": send_rows,
    "ranks": add_up,
    "worker": speak_with_a_worker,
}


def captured(far: FarHost, talk: Callable[[FarHost, NetConfig], Sequence[bytes]], net: NetConfig) -> tuple[int, int]:
    """Pieces that were said, and how many of them can be found on the wire."""
    capture = Capture(far.device)
    said = talk(far, net)
    streams = capture.close()
    assert sum(map(len, streams)) > 500, "the capture has nothing"
    return len(said), sum(any(piece in stream for stream in streams) for piece in said)


@pytest.mark.parametrize("name", TALKS)
def test_nothing_that_was_said_can_be_found_on_the_wire(far: FarHost, name: str) -> None:
    said, found = captured(far, TALKS[name], NetConfig(str(shared_keys())))
    assert said and not found
    said, found = captured(far, TALKS[name], NetConfig(peer_plain_text=True))
    assert found == said, "in clear all of it is there: the capture sees what it should"
