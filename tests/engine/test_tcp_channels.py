"""Connections between hosts: who may come, what may be said, and that nobody waits in vain. Threads of one process
stand for hosts.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from homenode.engine.channels.tcp import TcpInlet, TcpOutlet
from homenode.engine.channels.topics import Ask, IAm, Key, Rows, RowsOffer, accept_call, call
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.errors import PeerError
from homenode.net.greeting import MAGIC, VERSION, Credentials, answer, introduce
from homenode.net.settings import NetConfig
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S

HOST = "127.0.0.1"
SECRET = Credentials(b"a secret of this start")
KEY = Key(0, 1, 0)


def _connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((HOST, 0)) as server:
        ours = socket.create_connection(server.getsockname(), PATIENCE_S)
        theirs, _ = server.accept()
        return ours, theirs


@pytest.fixture(params=["plain text", "TLS"])
def rendezvous(request: pytest.FixtureRequest) -> Iterator[Rendezvous]:
    made = Rendezvous(HOST, PATIENCE_S, NetConfig(peer_keys=str(shared_keys()) if request.param == "TLS" else None))
    yield made
    made.close()


def inlet(at: Rendezvous, key: Key = KEY, timeout_s: float = PATIENCE_S, max_rows: int = 64) -> TcpInlet:
    return TcpInlet(at.address, HOST, at.credentials, key, timeout_s, max_rows)


def outlet(at: Rendezvous, key: Key = KEY, timeout_s: float = PATIENCE_S) -> TcpOutlet:
    return TcpOutlet(at.address, at.credentials, key, timeout_s)


def test_rows_come_as_they_were_sent_step_after_step(rendezvous: Rendezvous) -> None:
    reader, writer = inlet(rendezvous), outlet(rendezvous)
    rng = np.random.default_rng(1)
    sent = [rng.standard_normal((rows, 48), np.float32) for rows in (1, 64, 7, 30)]
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [writer.put(number, rows) for number, rows in enumerate(sent)])
        for number, rows in enumerate(sent):
            np.testing.assert_array_equal(reader.take(number, *rows.shape), rows)
            reader.free()
        writing.result(PATIENCE_S)
    reader.leave()
    writer.leave()


@pytest.mark.parametrize("awaited", [(1, 3, 8), (0, 4, 8), (0, 3, 9)])
def test_other_rows_than_those_awaited_are_refused(rendezvous: Rendezvous, awaited: tuple[int, int, int]) -> None:
    reader, writer = inlet(rendezvous), outlet(rendezvous)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.put, 0, np.ones((3, 8), np.float32))
        with pytest.raises(PeerError, match=r"rows of step 0 came, 3 x 8"):
            reader.take(*awaited)
        writing.result(PATIENCE_S)
    reader.leave()
    writer.leave()


def test_more_rows_than_a_step_has_are_refused_before_there_is_memory_for_them(rendezvous: Rendezvous) -> None:
    reader, writer = inlet(rendezvous, max_rows=2), outlet(rendezvous)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.put, 0, np.ones((3, 8), np.float32))
        with pytest.raises(PeerError, match="rows of step 0"):
            reader.take(0, 3, 8)
        writing.result(PATIENCE_S)


@pytest.mark.parametrize("side", ["inlet", "outlet"])
def test_who_waits_is_let_go_when_the_channel_is_over(rendezvous: Rendezvous, side: str) -> None:
    end = inlet(rendezvous) if side == "inlet" else outlet(rendezvous)
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        end.take(0, 1, 8) if isinstance(end, TcpInlet) else end.put(0, np.ones((1, 8), np.float32))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        begun.wait(PATIENCE_S)
        begin = time.monotonic()
        end.leave()
        with pytest.raises(PeerError):
            waiting.result(PATIENCE_S)
        assert time.monotonic() - begin < PATIENCE_S / 2
    with pytest.raises(PeerError):
        end.take(1, 1, 8) if isinstance(end, TcpInlet) else end.put(1, np.ones((1, 8), np.float32))


@pytest.mark.parametrize("side", ["inlet", "outlet"])
def test_nobody_waits_longer_than_told(rendezvous: Rendezvous, side: str) -> None:
    begin = time.monotonic()
    with pytest.raises(PeerError):
        if side == "inlet":
            inlet(rendezvous, timeout_s=0.3).take(0, 1, 8)
        else:
            outlet(rendezvous, timeout_s=0.3).put(0, np.ones((1, 8), np.float32))
    assert time.monotonic() - begin < PATIENCE_S / 2


def test_an_address_of_an_earlier_generation_is_told_to_nobody(rendezvous: Rendezvous) -> None:
    with call(rendezvous.address, rendezvous.credentials, RowsOffer(KEY, "127.0.0.1:1"), PATIENCE_S):
        pass
    rendezvous.forget(1)
    with call(rendezvous.address, rendezvous.credentials, Ask(KEY), PATIENCE_S) as asked:
        asked.settimeout(PATIENCE_S)
        assert asked.recv(100) == b""


def test_a_worker_is_heard_where_it_is_expected_and_only_in_its_present_life(rendezvous: Rendezvous) -> None:
    rendezvous.expect(0, 0).close()
    with rendezvous.expect(0, 1) as here:
        here.settimeout(PATIENCE_S)
        with call(rendezvous.address, rendezvous.credentials, IAm(0, 0), PATIENCE_S) as former:
            former.settimeout(PATIENCE_S)
            assert former.recv(1) == b""
        with call(rendezvous.address, rendezvous.credentials, IAm(0, 1), PATIENCE_S) as there:
            there.settimeout(PATIENCE_S)
            here.sendall(b"to the worker")
            assert there.recv(100) == b"to the worker"
            there.sendall(b"to the engine")
            assert here.recv(100) == b"to the engine"
        assert here.recv(1) == b""


def test_the_stream_of_a_worker_that_ended_before_it_called_ends(rendezvous: Rendezvous) -> None:
    with rendezvous.expect(0, 0) as here:
        rendezvous.give_up(0, 1)
        here.settimeout(0.05)
        with pytest.raises(TimeoutError):
            here.recv(1)
        rendezvous.give_up(0, 0)
        here.settimeout(PATIENCE_S)
        assert here.recv(1) == b""


def test_the_end_of_the_engine_reaches_a_worker_that_was_never_expected_or_came_late(rendezvous: Rendezvous) -> None:
    here = rendezvous.expect(3, 0)
    rendezvous.close()
    here.settimeout(PATIENCE_S)
    assert here.recv(1) == b""
    here.close()


def test_a_caller_without_the_secret_is_told_nothing(rendezvous: Rendezvous) -> None:
    with rendezvous.expect(0, 0):
        with pytest.raises(PeerError, match="does not know the secret"):
            call(rendezvous.address, replace(rendezvous.credentials, secret=b"another"), IAm(0, 0), PATIENCE_S)
        if rendezvous.credentials.keys is not None:
            return  # nobody gets so far without a key
        with socket.create_connection((HOST, int(rendezvous.address.rpartition(":")[2])), PATIENCE_S) as sock:
            sock.sendall(MAGIC + bytes(32))
            sock.settimeout(PATIENCE_S)
            assert len(sock.recv(64, socket.MSG_WAITALL)) == 64
            sock.sendall(bytes(32) + (5).to_bytes(2, "little") + b"hello")
            assert sock.recv(1) == b""


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n" + bytes(100), bytes(100), MAGIC + bytes(32) + b"\xff" * 40, b""],
    ids=["http", "zeros", "long", "nothing"],
)
def test_a_stranger_is_sent_away(words: bytes) -> None:
    ours, theirs = _connection()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        told = pool.submit(accept_call, theirs, SECRET, 1.0 if not words else PATIENCE_S)
        ours.sendall(words)
        if words:
            with contextlib.suppress(OSError):  # who was sent away is gone
                ours.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerError):
            told.result(PATIENCE_S)


def test_both_ends_say_which_versions_they_are() -> None:
    other, both = MAGIC[:-1] + b"9", f"speaks version 9 .* this is version {VERSION}; run the same version"
    ours, theirs = _connection()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        told = pool.submit(accept_call, theirs, SECRET, PATIENCE_S)
        ours.sendall(other + bytes(32))
        ours.settimeout(PATIENCE_S)
        assert ours.recv(64, socket.MSG_WAITALL) == MAGIC.ljust(64, b"\0")
        with pytest.raises(PeerError, match=f"a caller {both}"):
            told.result(PATIENCE_S)
    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as pool:
        address = f"{HOST}:{server.getsockname()[1]}"
        calling = pool.submit(call, address, SECRET, Rows(KEY), PATIENCE_S)
        called, _ = server.accept()
        with called:
            called.sendall(other.ljust(64, b"\0"))
            with pytest.raises(PeerError, match=f"{address} {both}"):
                calling.result(PATIENCE_S)


@pytest.mark.parametrize("begins", [b"\x16\x03\x01", b"\x15\x03", MAGIC])
def test_no_answer_begins_as_something_else(monkeypatch: pytest.MonkeyPatch, begins: bytes) -> None:
    """Nonces are random: one in 30,000 began as a record of TLS does."""
    draws = itertools.count()

    def drawn(count: int) -> bytes:
        """The second and the third begin so, which who answers would send."""
        number = next(draws)
        return begins.ljust(count, b"x") if number in (1, 2) else bytes([number]) * count

    monkeypatch.setattr("homenode.net.greeting.secrets.token_bytes", drawn)
    ours, theirs = _connection()
    with contextlib.closing(ours), contextlib.closing(theirs), ThreadPoolExecutor(1) as pool:
        called = pool.submit(answer, theirs, b"s", time.monotonic() + PATIENCE_S)
        introduce(ours, HOST, b"s", b"topic", time.monotonic() + PATIENCE_S)
        assert called.result(PATIENCE_S) == b"topic" and next(draws) == 4


def test_whoever_answers_without_the_secret_hears_no_topic() -> None:
    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, f"{HOST}:{server.getsockname()[1]}", SECRET, Rows(KEY), PATIENCE_S)
        called, _ = server.accept()
        with called:
            called.settimeout(PATIENCE_S)
            called.recv(len(MAGIC) + 32, socket.MSG_WAITALL)
            called.sendall(bytes(64))
            with pytest.raises(PeerError, match="does not know the secret"):
                calling.result(PATIENCE_S)
            assert called.recv(100) == b""
