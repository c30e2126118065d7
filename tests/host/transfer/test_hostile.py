"""Peers that mean harm or are broken: the service goes on, and nothing of theirs stays behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import time
from pathlib import Path

import msgspec
import pytest

from homenode.net.admission import HandshakeLimits
from homenode.net.frames import frame
from homenode.transfer.net.connection import MOST_FDS
from homenode.transfer.net.links import LinkLimits
from homenode.transfer.state.machine import Close, Connected, FromPeer, PeerLost, Send
from homenode.transfer.wire.greeting import MAX_HELLO
from homenode.transfer.wire.message import Buffer, Done, Envelope, Gone, Hello, Offer, Read, Refused, encode
from tests.host.transfer.hostile import RawPeer, connect, hostile_frames, say_last
from tests.host.transfer.pair import Engine, engines, hand_over
from tests.host.transfer.rig import Side, layout, running
from tests.waiting import wait_until

FRAMES = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "40000"))


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.timeout(7200 if FRAMES > 100_000 else 300)
@pytest.mark.parametrize(
    ("channel", "mode"), [("shm", "pull-eager"), ("tcp", "pull-delay"), ("shm", "push"), ("tcp", "push")]
)
def test_hostile_peers_of_real_engines_harm_nobody(channel: str, mode: str) -> None:
    """The machines end a connection over nearly every such frame, so it is greeted anew for each."""
    with engines(channel=channel, mode=mode, blocks=256) as (sender, receiver):
        hand_over(sender, receiver, "before", 100)
        fds = open_fds()
        rng = random.Random(f"{channel} {mode}")
        while frames_taken(sender) + frames_taken(receiver) < FRAMES // 100:
            engine, role = (receiver, "sender") if rng.random() < 0.5 else (sender, "receiver")
            attack(rng, next(iter(engine.agent.addresses.values()))[0], role, mode, channel)
        hand_over(sender, receiver, "after", 100)
        for engine in (sender, receiver):
            statistics = engine.agent.statistics()
            assert not statistics.broken and statistics.failures == 0
            assert statistics.refused.get("garbage", 0) > 0
        # The process of a sender whose offer was good is watched as long as its lease runs.
        wait_until(lambda: open_fds() <= fds + 12, f"descriptors given back: {open_fds()} of {fds}")


@pytest.mark.timeout(7200 if FRAMES > 100_000 else 300)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_flood_of_hostile_frames_ends_nothing_but_their_connections(channel: str) -> None:
    with running(
        "receiver", channel, answer=lambda given: [Close(given.peer, "lost")] if isinstance(given, PeerLost) else []
    ) as side:
        works(side, channel)
        fds = open_fds()
        rng = random.Random(channel)
        side.machine.keeps = False
        while frames_taken(side) < FRAMES // 2:
            attack(rng, side.address(), "sender", "pull-eager", channel)
        side.machine.keeps = True
        works(side, channel)
        statistics = side.agent.statistics()
        assert not statistics.broken and statistics.failures == 0
        assert (
            statistics.refused["garbage"] > 0
            and statistics.refused["too-large"] > 0
            and statistics.refused["stale"] > 0
        )
        wait_until(lambda: open_fds() <= fds + 1, "all descriptors are given back")


def frames_taken(engine: Engine | Side) -> int:
    """Frames that were read, understood or not."""
    statistics = engine.agent.statistics()
    return statistics.frames_in + statistics.refused.get("too-large", 0)


def attack(rng: random.Random, address: str, role: str, mode: str, channel: str) -> None:
    """Greet, and send hostile frames until cut off."""
    with RawPeer(address, role, mode, channel) as peer:
        answer = peer.greet()
        assert isinstance(answer, Hello), answer
        buffer = answer.buffers[0].id if answer.buffers else bytes(16)
        frames = hostile_frames(rng, peer.to, buffer)
        try:
            for _ in range(10):
                peer.sock.sendall(b"".join(next(frames) for _ in range(10)))
        except (BrokenPipeError, ConnectionResetError):
            pass


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_garbage_before_the_greeting_ends_the_connection(channel: str) -> None:
    rng = random.Random(1)
    pieces = [rng.randbytes(n) for n in (4, 5, 100, 70_000)] + [
        b"\0\0\0\0",
        b"\xff" * 4,
        frame(encode(Envelope(b"", Done(1)))),
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    with running("receiver", channel) as side:
        for piece in pieces:
            with connect(side.address()) as sock:
                say_last(sock, piece)
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(1000):
                        pass
        works(side, channel)
        assert side.refused()["garbage"] >= 2


def works(side: Side, channel: str = "shm") -> None:
    """The service is there for others."""
    role = "receiver" if side.identity.role == "sender" else "sender"
    with RawPeer(side.address("done" if role == "receiver" else "alloc"), role, side.identity.mode, channel) as peer:
        assert isinstance(peer.greet(), Hello)


def test_byte_by_byte_is_understood() -> None:
    with running("receiver") as side, RawPeer(side.address(), "sender") as peer:
        for byte in frame(encode(Envelope(b"", peer.hello()))):
            peer.sock.send(bytes([byte]))
        answer = peer.receive()
        assert isinstance(answer, Hello)
        for byte in frame(encode(Envelope(answer.incarnation, Read(1, 2, 3)))):
            peer.sock.send(bytes([byte]))
        assert side.machine.expect(FromPeer).message == Read(1, 2, 3)


def test_a_greeting_that_trickles_ends_at_its_deadline() -> None:
    with running("receiver", limits=LinkLimits(greeting_s=0.3, stall_s=0.3)) as side, connect(side.address()) as sock:
        sock.send(b"\x10")
        begun = time.monotonic()
        assert sock.recv(10) == b"" and time.monotonic() - begun < 5
        assert side.refused() == {"overdue": 1}


def test_a_frame_that_trickles_ends_at_its_deadline() -> None:
    with (
        running("receiver", limits=LinkLimits(greeting_s=5, stall_s=0.3)) as side,
        RawPeer(side.address(), "sender") as peer,
    ):
        peer.greet()
        peer.sock.sendall((10_000_000).to_bytes(4, "little"))
        peer.sock.settimeout(0.02)
        trickle(peer.sock)
        assert "frame" in side.machine.expect(PeerLost).reason


def trickle(sock: socket.socket) -> None:
    """A byte now and then, until the other side has had enough: progress does not count, only the frame's age does."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        try:
            sock.send(b"x")
            if not sock.recv(10):
                return
        except TimeoutError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            return


def test_who_takes_nothing_is_dropped() -> None:
    limits = LinkLimits(greeting_s=5, stall_s=0.3)
    with running("receiver", limits=limits) as side, RawPeer(side.address(), "sender") as peer:
        peer.greet()
        number = side.machine.expect(Connected).peer
        offer = Offer(1, "t", 1 << 20, 32, [bytes(16)] * (1 << 15), "unix:@x", 1.0)
        side.do(*[Send(number, offer)] * 8)
        reason = side.machine.expect(PeerLost).reason
        assert "taken" in reason or "take" in reason
        works(side)


def test_a_backlog_that_grows_past_its_bound_ends_the_connection() -> None:
    with running("receiver") as side, RawPeer(side.address(), "sender") as peer:
        peer.greet()
        number = side.machine.expect(Connected).peer
        offer = Offer(1, "t", 1 << 20, 32, [bytes(16)] * (1 << 15), "unix:@x", 1.0)
        side.do(*[Send(number, offer)] * 100)
        assert "does not take them" in side.machine.expect(PeerLost).reason
        works(side)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_flood_of_connections_leaves_room_for_others(channel: str) -> None:
    admission = HandshakeLimits(ungreeted_per_address=4, ungreeted=6, connections=20)
    limits = LinkLimits(greeting_s=0.5, stall_s=5)
    with running("receiver", channel, admission=admission, limits=limits) as side:
        flood = [connect(side.address()) for _ in range(60)]
        wait_until(lambda: side.refused().get("crowd", 0) == 56, f"all but four are closed: {side.refused()}")
        wait_until(lambda: side.refused().get("overdue", 0) == 4, "those four end at their deadline")
        for sock in flood:
            sock.close()
        works(side, channel)


def test_connections_that_have_greeted_are_bounded() -> None:
    with running("receiver", admission=HandshakeLimits(connections=3)) as side:
        peers = [RawPeer(side.address(), "sender") for _ in range(3)]
        assert all(isinstance(peer.greet(), Hello) for peer in peers)
        with connect(side.address()) as sock:
            assert sock.recv(10) == b""
        peers[0].close()
        side.machine.expect(PeerLost)
        works(side)
        for peer in peers[1:]:
            peer.close()


def test_descriptors_nobody_asked_for_are_closed() -> None:
    with running(
        "receiver", answer=lambda given: [Close(given.peer, "lost")] if isinstance(given, PeerLost) else []
    ) as side:
        before = open_fds()  # of a lost peer a pidfd is kept until the machine says Close
        null = os.open("/dev/null", os.O_RDONLY)
        for count in (1, 2, 20, MOST_FDS, 200):
            with RawPeer(side.address(), "sender", "push") as peer:  # no buffers, so no descriptors are due
                peer.identity = peer.identity.__class__("sender", "pull-eager", "shm", peer.identity.fingerprint)
                answer = peer.greet([null] * count)
                assert isinstance(answer, Refused | Hello)
        with RawPeer(side.address(), "sender") as peer:
            peer.greet()
            peer.sock.sendmsg(
                [frame(encode(Envelope(peer.to, Read(1, 0, 1))))],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, null.to_bytes(4, "little") * 9)],
            )
            assert side.machine.expect(FromPeer).message == Read(1, 0, 1)
        os.close(null)
        wait_until(lambda: open_fds() <= before, "no descriptor is left")


def memfd(nbytes: int, seals: int) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    "what", ["unsealed", "short", "short words", "pipe", "file", "one", "none", "layout", "overlap", "negative"]
)
def test_memory_that_is_not_what_it_says_is_refused(what: str, tmp_path: Path) -> None:
    of = layout()
    region = of.regions[0]
    hostile = {
        "layout": msgspec.structs.replace(of, blocks=of.blocks + 1),
        "overlap": msgspec.structs.replace(of, regions=(region, region)),
        "negative": msgspec.structs.replace(of, regions=(msgspec.structs.replace(region, offset=-4096),)),
    }.get(what, of)
    good = (of.nbytes, fcntl.F_SEAL_SHRINK)
    fds = {
        "unsealed": lambda: [memfd(of.nbytes, 0), memfd(8 * of.blocks, fcntl.F_SEAL_SHRINK)],
        "short": lambda: [memfd(of.nbytes - 1, fcntl.F_SEAL_SHRINK), memfd(8 * of.blocks, fcntl.F_SEAL_SHRINK)],
        "short words": lambda: [memfd(*good), memfd(8, fcntl.F_SEAL_SHRINK)],
        "pipe": lambda: list(os.pipe()),
        "file": lambda: [os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT), memfd(8 * of.blocks, fcntl.F_SEAL_SHRINK)],
        "one": lambda: [memfd(*good)],
        "none": list,
    }.get(what, lambda: [memfd(*good), memfd(8 * of.blocks, fcntl.F_SEAL_SHRINK)])()
    with running("receiver") as side:
        with RawPeer(side.address(), "sender", buffers=(Buffer(bytes(16), hostile),)) as peer:
            answer = peer.greet(fds)
            assert isinstance(answer, Hello)  # it answers first, then looks at the memory
            assert isinstance(peer.receive(), Refused) and peer.ended()
        for fd in fds:
            os.close(fd)
        assert side.machine.inputs.empty()
        works(side)


def test_a_buffer_id_of_another_process_is_refused() -> None:
    of = layout()
    with running("receiver") as side:
        for buffer_id in (side.cache.buffer.id,):
            fds = [memfd(of.nbytes, fcntl.F_SEAL_SHRINK), memfd(8 * of.blocks, fcntl.F_SEAL_SHRINK)]
            with RawPeer(side.address(), "sender", buffers=(Buffer(buffer_id, of),)) as peer:
                peer.greet(fds)
                assert isinstance(peer.receive(), Refused) and peer.ended()
            for fd in fds:
                os.close(fd)


def test_a_frame_for_a_former_process_is_answered_gone() -> None:
    with running("receiver") as side, RawPeer(side.address(), "sender") as peer:
        peer.greet()
        number = side.machine.expect(Connected).peer
        peer.send(Read(1, 0, 1), to=bytes(16))
        assert peer.receive() == Gone(side.identity.incarnation) and peer.ended()
        lost = side.machine.expect(PeerLost)
        assert lost.peer == number and not lost.dead
        works(side)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_signals_come_with_the_connection_they_came_over(channel: str) -> None:
    """A forged Done can be told from a true one: it has another number, and on one host another process cannot take on
    an incarnation.
    """
    with (
        running("sender", channel) as side,
        RawPeer(side.address("done"), "receiver", channel=channel) as one,
        RawPeer(side.address("done"), "receiver", channel=channel) as two,
    ):
        one.greet()
        first = side.machine.expect(Connected)
        two.greet()
        second = side.machine.expect(Connected)
        two.send(Done(1))
        assert side.machine.expect(FromPeer) == FromPeer(second.peer, Done(1))
        assert first.peer != second.peer and first.hello.incarnation != second.hello.incarnation


def test_another_process_cannot_take_on_an_incarnation() -> None:
    incarnation = os.urandom(16)
    with running("sender") as side:
        with RawPeer(side.address("done"), "receiver", incarnation=incarnation) as peer:
            peer.greet()
            side.machine.expect(Connected)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    with RawPeer(side.address("done"), "receiver", incarnation=incarnation) as forger:
                        forger.greet()
                        code = 0 if isinstance(forger.receive(), Refused) else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            peer.send(Done(1))
            assert side.machine.expect(FromPeer).message == Done(1)
        assert side.refused()["incarnation"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_word() -> None:
    with running("receiver") as side:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setuid(65534)
                with connect(side.address()) as sock:
                    code = 0 if sock.recv(10) == b"" else 2
            except ConnectionResetError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert side.refused() == {"uid": 1}
        works(side)


def test_a_hello_larger_than_its_bound_is_not_kept() -> None:
    with running("receiver", "tcp") as side, connect(side.address()) as sock:
        sock.sendall((MAX_HELLO + 1).to_bytes(4, "little"))
        assert sock.recv(10) == b""
        assert side.refused() == {"too-large": 1}


def test_a_second_hello_ends_the_connection() -> None:
    with running("receiver") as side, RawPeer(side.address(), "sender") as peer:
        peer.greet()
        peer.send(peer.hello())
        assert peer.ended()
        assert side.refused() == {"garbage": 1}
