"""Whoever is no peer is refused by name, at both ends where both can know: another key, another authority, an expired
certificate, something older than TLS 1.3, plain text, another protocol, a replay."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from homenode.engine.channels.topics import IAm, call
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.errors import HostError, PeerError, UserError
from homenode.net import accept, greeting, secure_stream
from homenode.net.accept import CallServer
from homenode.net.greeting import Credentials
from homenode.net.keys import CERTIFICATE, KEY, PEERS, KeyFolder, digest_text
from homenode.net.make_keys import AUTHORITY_KEY, make_keys
from homenode.net.settings import NetConfig, contradiction, is_loopback, plain_text_problem
from homenode.net.tls import TlsEnd, TlsError
from tests.host.net.ends import PROTOCOL, ends, greet, keys_of_days_ago
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("cluster") / "keys"
    make_keys(folder, ["a", "b"], 30)
    return folder


def test_peers_greet_and_their_bytes_arrive(cluster: Path) -> None:
    caller, called = ends(KeyFolder(cluster / "a"), KeyFolder(cluster / "b"))
    assert greet(caller, called) == (None, None) and caller.greeted and called.greeted and called.role == "worker"
    said = random.Random(1).randbytes(100_000)
    caller.write(memoryview(said))
    called.feed(wire := caller.take_wire())
    came, view = bytearray(len(said) + 10), 0
    while count := called.read_into(memoryview(came)[view:]):
        view += count
    assert bytes(came[:view]) == said and said[:64] not in wire


def test_a_connection_that_is_ended_in_place_of_a_greeting_is_refused(cluster: Path) -> None:
    called = TlsEnd(KeyFolder(cluster / "b"), PROTOCOL, "engine", connects=False, peer="the caller")
    context = ssl.create_default_context(cafile=cluster / "a" / "authority.pem")
    context.check_hostname = False
    context.load_cert_chain(cluster / "a" / CERTIFICATE, cluster / "a" / KEY)
    context.set_alpn_protocols([PROTOCOL])
    came, wire = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = context.wrap_bio(came, wire)
    with pytest.raises(TlsError, match="ended the connection"):
        for step in (caller.do_handshake, caller.do_handshake, caller.unwrap):
            with suppress(ssl.SSLWantReadError):
                step()
            called.feed(wire.read())
            called.greet()
            came.write(called.take_wire())


def foreign(cluster: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """The keys of another cluster, whose holder accepts anybody of this one."""
    make_keys(tmp / "other", ["a"], 30)
    shutil.copy(cluster / "authority.pem", tmp / "other" / "a")
    (tmp / "other" / "a" / PEERS).unlink()
    return tmp / "other" / "a"


def unpinned(cluster: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A key that the same authority has signed, which nobody was told to accept."""
    shutil.copytree(cluster, tmp / "later")
    make_keys(tmp / "later", ["c"], 30)
    return tmp / "later" / "c"


def expired(cluster: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A pinned one whose time is over."""
    return _of_another_time(cluster, tmp, patch, 3)


def not_yet(cluster: Path, tmp: Path, patch: pytest.MonkeyPatch) -> Path:
    """A pinned one of a host whose clock is ahead."""
    return _of_another_time(cluster, tmp, patch, -3)


def _of_another_time(cluster: Path, tmp: Path, patch: pytest.MonkeyPatch, ago: int) -> Path:
    shutil.copytree(cluster, tmp / "older")
    keys_of_days_ago(tmp / "older", ["d"], 1, ago, patch)
    (tmp / "older" / "d" / PEERS).unlink()
    return tmp / "older" / "d"


STRANGERS: dict[str, tuple[Callable[[Path, Path, pytest.MonkeyPatch], Path], str, str]] = {
    "another authority": (foreign, "authority", "authority has not signed"),
    "another key": (unpinned, "pin", "none of those in"),
    "expired": (expired, "expired", "has expired"),
    "not yet": (not_yet, "expired", "does not count yet"),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("calls", [True, False], ids=["caller", "called"])
def test_a_stranger_is_refused_by_name(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, calls: bool
) -> None:
    make, code, words = STRANGERS[name]
    stranger, peer = KeyFolder(make(cluster, tmp_path, monkeypatch)), KeyFolder(cluster / "b")
    if name in ("expired", "not yet"):
        (shutil.copytree(cluster / "b", tmp_path / "b") / PEERS).unlink()  # it is its time alone that is wrong
        peer = KeyFolder(tmp_path / "b")
    caller, called = ends(stranger, peer) if calls else ends(peer, stranger)
    failures = greet(caller, called)
    mine = failures[1 if calls else 0]
    assert mine is not None and mine.code == code and words in mine.message
    assert not called.greeted
    theirs = failures[0 if calls else 1]
    assert theirs is not None or not calls, "a caller hears that it was refused"


def _raw(context: ssl.SSLContext) -> tuple[ssl.MemoryBIO, ssl.MemoryBIO, ssl.SSLObject]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return incoming, outgoing, context.wrap_bio(incoming, outgoing)


@pytest.mark.parametrize(("what", "code"), [("TLS 1.2", "downgrade"), ("nothing shown", "no certificate")])
def test_an_older_tls_and_a_caller_without_a_certificate_are_refused(cluster: Path, what: str, code: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if what == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(cluster / "a" / CERTIFICATE, cluster / "a" / KEY)
    incoming, outgoing, caller = _raw(context)
    _, called = ends(KeyFolder(cluster / "a"), KeyFolder(cluster / "b"))
    with pytest.raises(TlsError) as found:
        for _ in range(4):
            try:
                caller.do_handshake()
            except ssl.SSLError:
                pass
            called.feed(outgoing.read())
            called.greet()
            incoming.write(called.take_wire())
    assert found.value.code == code


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", greeting.MAGIC + bytes(32), b"\x10\0\0\0" + b"x" * 60])
def test_plain_text_is_refused_by_name(cluster: Path, said: bytes) -> None:
    _, called = ends(KeyFolder(cluster / "a"), KeyFolder(cluster / "b"))
    called.feed(said)
    with pytest.raises(TlsError, match="plain text") as found:
        called.greet()
    assert found.value.code == "plain text"


def test_another_protocol_is_refused_by_name(cluster: Path) -> None:
    caller, called = ends(KeyFolder(cluster / "a"), KeyFolder(cluster / "b"), (PROTOCOL, "homenode-kv/1"))
    failures = greet(caller, called)
    assert failures[1] is not None and failures[1].code == "protocol" and "homenode-kv/1" in failures[1].message
    assert failures[0] is not None and not caller.greeted


def test_a_replay_is_refused_in_tls_and_in_the_greeting(cluster: Path) -> None:
    recorded: list[bytes] = []

    def record(data: bytes) -> bytes:
        recorded.append(data)
        return data

    keys = KeyFolder(cluster / "a"), KeyFolder(cluster / "b")
    assert greet(*ends(*keys), changed=record) == (None, None)
    again = iter(recorded)
    caller, called = ends(*keys)
    failures = greet(caller, called, changed=lambda data: next(again, b""))
    assert failures[1] is not None and not called.greeted and failures[1].code in ("handshake", "damaged")
    said = _greeting_of(b"secret", b"a topic")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(said)
        with pytest.raises(PeerError, match="does not know the secret"):
            greeting.answer(theirs, b"secret", time.monotonic() + PATIENCE_S)


def _greeting_of(secret: bytes, topic: bytes) -> bytes:
    """All that a caller says in a greeting that is accepted."""
    ours, theirs = socket.socketpair()
    middle, said = socket.socketpair(), b""
    with ours, theirs, middle[0], middle[1], ThreadPoolExecutor(2) as pool:
        calling = pool.submit(greeting.introduce, ours, "there", secret, topic, time.monotonic() + PATIENCE_S)
        answering = pool.submit(greeting.answer, middle[1], secret, time.monotonic() + PATIENCE_S)
        said = theirs.recv(4096)
        middle[0].sendall(said)
        theirs.sendall(middle[0].recv(4096))
        rest = theirs.recv(4096)
        middle[0].sendall(rest)
        calling.result(PATIENCE_S)
        assert answering.result(PATIENCE_S) == topic
    return said + rest


def _mutated(draw: random.Random, data: bytes) -> bytes:
    """The same with bits turned, bytes lost, repeated or made up."""
    if not data:
        return data
    changed = bytearray(data)
    at = draw.randrange(len(changed))
    match draw.randrange(5):
        case 0:
            for _ in range(draw.choice((1, 1, 8, 64))):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        case 1:
            del changed[at : at + draw.randint(1, len(changed))]
        case 2:
            changed[at:at] = draw.randbytes(draw.choice((1, 20, 3000)))
        case 3:
            changed[at:] = draw.randbytes(len(changed) - at)
        case 4:
            changed += changed[at:]
    return bytes(changed)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


_AT_ONCE = 12
MUTATIONS = [40, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", MUTATIONS)
def test_mutated_handshakes_end_in_a_refusal_or_as_if_nothing_had_happened(cluster: Path, count: int) -> None:
    """Only what is left as it was is accepted: a changed byte of TLS never reaches who is called."""
    keys, draw, refused = (KeyFolder(cluster / "a"), KeyFolder(cluster / "b")), random.Random(7), 0
    for _ in range(count):
        flight, seen = draw.randrange(2), [-1]

        def changed(data: bytes, flight: int = flight, seen: list[int] = seen) -> bytes:
            seen[0] += 1
            return _mutated(draw, data) if seen[0] == flight else data

        caller, called = ends(*keys)
        try:
            failures = greet(caller, called, changed)
        except TlsError:  # more than a handshake has
            refused += 1
            continue
        refused += failures[1] is not None
        assert failures[1] is None or failures[1].code != "internal"
    assert refused > count // 2  # what was cut short waits for the rest, until its deadline


@pytest.mark.parametrize("count", MUTATIONS)
def test_mutated_greetings_are_refused_and_leave_nothing(cluster: Path, count: int) -> None:
    said, draw = _greeting_of(b"secret", b"a topic"), random.Random(3)
    for _ in range(count):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(_mutated(draw, said))
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises(PeerError):
                greeting.answer(theirs, b"secret", time.monotonic() + PATIENCE_S)


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_strangers_at_a_live_door_leave_nothing_and_hold_up_nobody(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Some say nothing, some garbage, some half of a handshake; a peer comes in meanwhile."""
    keys, draw = KeyFolder(shared_keys()), random.Random(5)
    rendezvous = Rendezvous("127.0.0.1", PATIENCE_S, NetConfig(str(shared_keys())))
    before, idle = (threading.active_count(), _descriptors()), deque[socket.socket]()
    try:
        where = ("127.0.0.1", int(rendezvous.address.rpartition(":")[2]))
        hello = ends(keys, keys)[0]
        hello.greet()
        first = hello.take_wire()
        for number in range(count):
            sock = socket.create_connection(where, PATIENCE_S)
            idle.append(sock)
            if len(idle) > _AT_ONCE:
                idle.popleft().close()
            sock.sendall((b"", first[:40], _mutated(draw, first), draw.randbytes(600))[number % 4])
        with rendezvous.expect(0, 0) as here:
            here.settimeout(PATIENCE_S)
            with call(rendezvous.address, rendezvous.credentials, IAm(0, 0), PATIENCE_S) as there:
                there.sendall(b"in time")
                assert here.recv(100) == b"in time"
        for sock in idle:
            sock.close()
        wait_until(
            lambda: threading.active_count() <= before[0] and _descriptors() <= before[1],
            "no thread and no descriptor is left of them",
        )
    finally:
        rendezvous.close()
    assert "is refused" in caplog.text or "was sent away" in caplog.text


def test_a_caller_without_keys_and_a_called_without_them_say_so() -> None:
    with_keys = Credentials(b"secret", KeyFolder(shared_keys()))
    for caller, called, words in (
        (Credentials(b"secret"), with_keys, "speaks TLS, and this host has no --peer-keys|closed|failed"),
        (with_keys, Credentials(b"secret"), "--peer-keys|ended the connection"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            calling = pool.submit(greeting.call, address, caller, b"topic", 5.0)
            accepted, _ = server.accept()
            with pytest.raises(PeerError, match=r"plain text|no --peer-keys"):
                greeting.accept_call(accepted, called, 5.0)
            with pytest.raises(PeerError, match=words):
                calling.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / KEY).chmod(0o644), "can be read by others"),
        (lambda folder: (folder / KEY).unlink(), "homenode keys make"),
        (lambda folder: (folder / CERTIFICATE).write_text("no certificate"), "key.pem cannot be used"),
        (lambda folder: (folder / "authority.pem").write_text(""), "authority.pem cannot be used"),
        (lambda folder: (folder / PEERS).write_text("sha256:12 x\n"), "line 1"),
        (lambda folder: (folder / PEERS).write_text("# nobody\n"), "names no certificate"),
    ],
)
def test_keys_that_cannot_be_used_are_told_by_their_file(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    folder = tmp_path / "keys"
    make_keys(folder, [], 30)
    KeyFolder(folder).check()
    spoil(folder)
    with pytest.raises(UserError, match=words):
        KeyFolder(folder).check()


def test_a_certificate_whose_time_is_over_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys_of_days_ago(tmp_path / "keys", [], 1, 3, monkeypatch)
    with pytest.raises(UserError, match="has expired"):
        KeyFolder(tmp_path / "keys").check()


def test_hosts_can_be_added_and_know_each_other(tmp_path: Path) -> None:
    make_keys(tmp_path / "k", ["a"], 30)
    made = make_keys(tmp_path / "k", ["b", "c"], 30)
    assert [one.name for one in made] == ["a", "b", "c"]
    pins = KeyFolder(tmp_path / "k" / "a").pins()
    assert {digest_text(digest): name for digest, name in pins.items()} == {one.digest: one.name for one in made}
    assert greet(*ends(KeyFolder(tmp_path / "k" / "a"), KeyFolder(tmp_path / "k" / "c"))) == (None, None)
    assert (tmp_path / "k" / "a" / KEY).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "k" / AUTHORITY_KEY).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "k" / "a" / AUTHORITY_KEY).exists()
    for wrong in (["a"], ["../x"], ["peers"]):
        with pytest.raises(UserError):
            make_keys(tmp_path / "k", wrong, 30)
    with pytest.raises(UserError, match="folder of a host"):
        make_keys(tmp_path / "k" / "a", ["x"], 30)


def test_plain_text_stays_on_this_host_unless_it_is_said() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "a.localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "host", "0.0.0.0", "::", "fe80::1%eth0", "127.0.0.1.example")))
    assert plain_text_problem(NetConfig(), "127.0.0.1", "KV", "x") is None
    problem = plain_text_problem(NetConfig(), "10.0.0.1", "KV", "x")
    assert problem is not None and "homenode keys make" in problem.message
    assert plain_text_problem(NetConfig(peer_plain_text=True), "10.0.0.1", "KV", "x") is None
    assert contradiction(NetConfig("folder", True)) is not None and contradiction(NetConfig("folder")) is None


def test_a_list_of_peers_that_leads_nowhere_lets_in_nobody(cluster: Path, tmp_path: Path) -> None:
    shutil.copytree(cluster / "a", tmp_path / "a")
    (tmp_path / "a" / PEERS).unlink(missing_ok=True)
    assert KeyFolder(tmp_path / "a").pins() == {}
    (tmp_path / "a" / PEERS).symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=PEERS):
        KeyFolder(tmp_path / "a").pins()


def test_a_machine_without_descriptors_refuses_a_stream_by_name(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(secure_stream, "open_socket_pair", none_left)
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        with pytest.raises(HostError, match="no connection over TLS can be made: Too many open files"):
            secure_stream.secure_stream(
                caller, KeyFolder(cluster / "a"), PROTOCOL, "worker", connects=True, timeout_s=PATIENCE_S
            )
        assert caller.fileno() == -1


def test_a_machine_without_threads_closes_a_call_and_takes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused, served = accept.start_thread, [1], list[socket.socket]()

    def start_later(thread: threading.Thread) -> None:
        if refused:
            raise HostError(f"no thread can be started ({refused.pop()})")
        start(thread)

    monkeypatch.setattr(accept, "start_thread", start_later)
    monkeypatch.setattr(accept, "_AGAIN_S", 0.01)
    monkeypatch.setattr(accept, "_MOST_GREETINGS", 1)  # which the refused one gives back
    with socket.create_server(("127.0.0.1", 0)) as server:
        CallServer(server, lambda sock, greeted: served.append(sock), lambda: False, "test-calls")
        first = socket.create_connection(server.getsockname(), PATIENCE_S)
        assert first.recv(1) == b""
        second = socket.create_connection(server.getsockname(), PATIENCE_S)
        wait_until(lambda: len(served) == 1)
        server.shutdown(socket.SHUT_RDWR)
    for each in (first, second, *served):
        each.close()
