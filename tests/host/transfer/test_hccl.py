"""Whole hand-overs, and deaths, over channel hccl: everything up to the NPU, with libraries that stand in for the
vendor's.
"""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from homenode.errors import HostError, PeerError, UnsupportedError
from homenode.net.frame_mac import Direction
from homenode.transfer.carriers import hccl, hccl_link
from homenode.transfer.carriers.hccl import HcclAddress, HcclEngine
from homenode.transfer.carriers.hccl_link import (
    ACL,
    CHUNK,
    HCCL,
    MOST_SPANS,
    ControlStream,
    HcclLibrary,
    HcclMove,
    HcclOpening,
    chunks,
)
from homenode.transfer.setup.surroundings import missing_libraries
from homenode.transfer.state.machine import Limits
from tests.host.transfer.carrier_lives import (
    check_that_kv_arrives,
    check_that_offloaded_kv_arrives,
    check_the_death_of_a_receiver,
    check_the_death_of_a_sender,
)
from tests.host.transfer.hccl_stand_in import COMPILER, build
from tests.host.transfer.pair import MODES
from tests.host.transfer.test_deaths import STEPS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the libraries that stand in"),
]
LIMITS = Limits(heartbeat=0.1, silence=0.5, reply=3.0, drained=0.5)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cann"))


@pytest.fixture(autouse=True)
def stand_in(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries where the vendor's would be, and short waits."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "5")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("receiver_block_size", [32, 64])
def test_kv_arrives_as_it_was(mode: str, receiver_block_size: int) -> None:
    check_that_kv_arrives("hccl", mode, receiver_block_size)


@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
def test_offloaded_kv_arrives_as_it_was(mode: str) -> None:
    check_that_offloaded_kv_arrives("hccl", mode)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", MODES)
def test_a_killed_sender_leaves_nothing_behind(mode: str, step: str) -> None:
    check_the_death_of_a_sender("hccl", mode, step)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_receiver_frees_the_senders_pages(mode: str) -> None:
    check_the_death_of_a_receiver("hccl", mode, 20, LIMITS)


# The engine alone


class Pair:
    """Two engines of this process, and memory of the one that serves."""

    def __init__(self, nbytes: int) -> None:
        library = HcclLibrary(0, 5)
        self.server = HcclEngine(library, "127.0.0.1", "a secret of both", lambda sock: None)
        self.client = HcclEngine(library, "127.0.0.1", "a secret of both", lambda sock: None)
        rng = np.random.default_rng(1)
        self.there = rng.integers(0, 256, nbytes, np.uint8)
        self.here = np.zeros(nbytes, np.uint8)
        self.server.register([(self.there.ctypes.data, nbytes)])
        self.name = self.client.add_peer(self.server.metadata)

    def move(self, operation: str, rows: list[tuple[int, int, int]], seconds: float = 30.0) -> bool:
        """Rows are (offset here, offset there, bytes); whether it went well."""
        ours = np.array([(self.here.ctypes.data + a, n, 0) for a, _, n in rows], np.uint64)
        theirs = np.array([(self.there.ctypes.data + b, n, 0) for _, b, n in rows], np.uint64)
        transfer = self.client.begin(operation, ours, theirs, self.name)
        assert self.client.wait(transfer, seconds), "no end was told in time"
        return transfer.good

    def close(self) -> None:
        self.client.close(0)
        self.server.close(0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(3 * CHUNK + 12345)
    yield made
    made.close()


def test_reads_and_writes_of_every_size(pair: Pair) -> None:
    whole = len(pair.there)
    assert pair.move("READ", [(0, 0, whole)]) and (pair.here == pair.there).all()
    pair.here[:] = 0
    rows = [(3 * n, whole - 7 * (n + 1), 3) for n in range(MOST_SPANS + 5)]
    assert pair.move("READ", rows)
    assert all((pair.here[a : a + n] == pair.there[b : b + n]).all() for a, b, n in rows)
    assert not pair.here[3 * len(rows) :].any(), "nothing else was written"
    pair.here[:] = 9
    assert pair.move("WRITE", [(0, 100, CHUNK + 1)])
    assert (pair.there[100 : 100 + CHUNK + 1] == 9).all()


def test_memory_that_was_not_registered_is_refused(pair: Pair) -> None:
    before = pair.there.copy()
    for operation in ("READ", "WRITE"):
        for offset, nbytes in ((-8, 16), (len(before) - 8, 16), (1 << 40, 8)):
            assert not pair.move(operation, [(0, offset, nbytes)])
    assert (pair.there == before).all() and not pair.here.any()
    pair.server.register([(before.ctypes.data, 8), (before.ctypes.data + 8, 8)])
    assert pair.move("READ", [(0, before.ctypes.data + 4 - pair.there.ctypes.data, 8)]), "neighbours are one"
    private = np.zeros(64, np.uint8)
    pair.server.register([(private.ctypes.data, 64)], exported=False)
    assert not pair.move("READ", [(0, private.ctypes.data - pair.there.ctypes.data, 64)])
    assert pair.move("READ", [(0, 0, 64)]), "the next one goes well again"


def test_who_does_not_know_the_secret_is_not_served(pair: Pair) -> None:
    address = msgspec.msgpack.decode(pair.server.metadata, type=HcclAddress)
    with socket.create_connection((address.host, address.port), 5) as sock:
        stream = ControlStream(sock, f"another secret{address.key.hex()}", Direction.FROM_CONNECTOR)
        stream.send(HcclOpening(b"\0" * hccl_link.ROOT_BYTES))
        with pytest.raises(PeerError):
            stream.answered(10)
    assert pair.move("READ", [(0, 0, 64)])


@pytest.mark.parametrize("root", [b"", b"x" * 10, b"\xff" * 4108])
def test_roots_that_are_none_end_the_connection(pair: Pair, root: bytes) -> None:
    address = msgspec.msgpack.decode(pair.server.metadata, type=HcclAddress)
    with socket.create_connection((address.host, address.port), 5) as sock:
        stream = ControlStream(sock, f"a secret of both{address.key.hex()}", Direction.FROM_CONNECTOR)
        stream.send(HcclOpening(root))
        with pytest.raises(PeerError):
            stream.answered(10)
            stream.send(HcclMove(False, ((pair.there.ctypes.data, 8),)))
            stream.answered(10)


def test_a_side_that_falls_silent_ends_the_transfer_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hccl_link, "ANSWER_S", 0.5)
    monkeypatch.setattr(hccl, "ANSWER_S", 0.5)
    monkeypatch.setattr(hccl, "_WRITTEN_S", 1.5)
    assert pair.move("READ", [(0, 0, 64)])
    silent = threading.Event()
    monkeypatch.setattr(HcclEngine, "_move", lambda *_: silent.wait(60))
    try:
        assert not pair.move("READ", [(0, 0, 64)])
        assert not pair.move("WRITE", [(0, 0, 64)])
        assert not silent.is_set()
    finally:
        silent.set()


def test_whoever_waits_for_a_silent_side_goes_on_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thread that copies is everybody's: what hangs is left to itself, and known to be under way."""
    assert pair.move("READ", [(0, 0, 64)])
    silent = threading.Event()
    monkeypatch.setattr(HcclEngine, "_move", lambda *_: silent.wait(60))
    rows = [np.array([(array.ctypes.data, 64, 0)], np.uint64) for array in (pair.here, pair.there)]
    try:
        transfer = pair.client.begin("WRITE", rows[0], rows[1], pair.name)
        assert not pair.client.wait(transfer, 0.3) and not transfer.ended()
    finally:
        silent.set()


def test_metadata_that_is_none_is_refused(pair: Pair) -> None:
    good = msgspec.msgpack.decode(pair.server.metadata, type=HcclAddress)
    for wrong in (
        b"",
        b"\x93\x01\x02\x03",
        msgspec.msgpack.encode(msgspec.structs.replace(good, key=b"short")),
        msgspec.msgpack.encode(msgspec.structs.replace(good, port=0)),
        msgspec.msgpack.encode(msgspec.structs.replace(good, name="x" * 65)),
    ):
        with pytest.raises(PeerError):
            pair.client.add_peer(wrong)


def test_pieces_are_cut_into_requests_of_bounded_size() -> None:
    ours, theirs = [(0, CHUNK - 1), (1 << 30, 2 * CHUNK + 5)], [(1 << 40, CHUNK - 1), (1 << 41, 2 * CHUNK + 5)]
    made = list(chunks(ours, theirs))
    assert all(sum(n for _, n in here) <= CHUNK and len(here) <= MOST_SPANS for here, _ in made)
    for side, pieces in ((0, ours), (1, theirs)):
        flat = [span for request in made for span in request[side]]
        assert sum(n for _, n in flat) == sum(n for _, n in pieces)
        assert {a for a, _ in pieces} <= {a for a, _ in flat}
    assert [n for here, _ in made for _, n in here] == [n for _, there in made for _, n in there]


# The libraries


def test_an_npu_that_is_not_there_is_named() -> None:
    with pytest.raises(HostError, match="NPU 99 cannot be opened"):
        HcclLibrary(99, 5)


def test_the_npus_memory_is_not_the_hosts() -> None:
    """The stand-in holds the carrier to it: an address of the host in place of one of the NPU is an error."""
    library = HcclLibrary(0, 5)
    here = ctypes.create_string_buffer(b"abcd", 4)
    device = library.allocate(4)
    library.upload(device, ctypes.addressof(here), 4)
    here.raw = b"\0" * 4
    library.download(ctypes.addressof(here), device, 4)
    assert here.raw == b"abcd"
    with pytest.raises(HostError):
        library.upload(ctypes.addressof(here), ctypes.addressof(here), 4)
    library.free(device)


def test_libraries_that_are_missing_or_none_are_named(tmp_path: Path, libraries: Path) -> None:
    nowhere = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert missing_libraries(nowhere) == (HCCL, ACL) and missing_libraries({"LD_LIBRARY_PATH": str(libraries)}) == ()
    with pytest.raises(UnsupportedError, match=f"{ACL}.*LD_LIBRARY_PATH.*shm.*tcp"):
        HcclLibrary(0, 5, nowhere)
    (tmp_path / ACL).write_bytes(b"no library")
    with pytest.raises(UnsupportedError, match="does not load"):
        HcclLibrary(0, 5, nowhere)
    (tmp_path / ACL).unlink()
    (tmp_path / ACL).symlink_to(libraries / ACL)
    (tmp_path / HCCL).symlink_to(libraries / ACL)
    with pytest.raises(UnsupportedError, match="HcclGetRootInfo"):
        HcclLibrary(0, 5, nowhere)
