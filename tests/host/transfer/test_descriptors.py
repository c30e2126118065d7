"""A process that has no descriptors left: who connects then is turned away or waits, and KV transfer goes on as soon as
there are some again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.net import secure_stream
from homenode.transfer.net import acceptor
from homenode.transfer.state.machine import Close, Connect, Connected, ConnectFailed, Input, PeerLost
from tests.host.transfer.hostile import RawPeer
from tests.host.transfer.rig import Side, running
from tests.waiting import PATIENCE_S, wait_until


@contextlib.contextmanager
def descriptors(spare: int) -> Iterator[None]:
    """So many more can be opened, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    fill: list[int] = []
    while not fill or fill[-1] < most:
        fill.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, fill[-1]) + 1 + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fill:
            os.close(fd)


def close_lost(given: Input) -> list[Close]:
    return [Close(given.peer, "lost")] if isinstance(given, PeerLost) else []


def greets(side: Side, role: str) -> None:
    with RawPeer(side.address("done" if role == "receiver" else "alloc"), role) as peer:
        peer.greet()
        side.machine.expect(Connected)
    wait_until(lambda: not side.agent._links._connections, "its end")


@pytest.mark.parametrize("role", ["sender", "receiver"])
@pytest.mark.parametrize("spare", range(6))
def test_who_connects_then_does_no_harm(role: str, spare: int) -> None:
    other = "sender" if role == "receiver" else "receiver"
    with running(role, answer=close_lost) as side:
        greets(side, other)
        address = side.address("done" if other == "receiver" else "alloc")
        with socket.socket(socket.AF_UNIX) as sock, descriptors(spare):
            sock.connect("\0" + address.removeprefix("unix:@"))
            wait_until(
                lambda: bool(side.refused()) or bool(side.agent._links._connections), "it is taken in or turned away"
            )
        greets(side, other)
        assert not side.agent.statistics().broken


def test_nobody_is_accepted_in_vain_all_the_time() -> None:
    with running("receiver", answer=close_lost) as side:
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(40)]
            stack.enter_context(descriptors(0))
            begun = time.monotonic()
            for sock in socks:
                sock.connect("\0" + side.address().removeprefix("unix:@"))
            wait_until(lambda: side.refused().get("accept", 0) >= 2 or time.monotonic() - begun > 2, "attempts")
            attempts = side.refused()["accept"]
            assert attempts <= 2 + (time.monotonic() - begun) / 0.5
        greets(side, "sender")


@pytest.mark.parametrize("channel", ["shm", "tcp"])
@pytest.mark.parametrize("spare", range(4))
def test_connections_that_cannot_be_made_are_told_of(channel: str, spare: int) -> None:
    with (
        running("sender", channel, answer=close_lost) as side,
        running("receiver", channel, answer=close_lost) as other,
    ):
        with descriptors(spare):
            side.do(Connect(other.address()))
            answer = side.machine.inputs.get(timeout=PATIENCE_S) if spare == 0 else None
        assert spare or isinstance(answer, ConnectFailed)
        side.do(Connect(other.address()))
        side.machine.expect(Connected)
        assert not side.agent.statistics().broken and not other.agent.statistics().broken


@pytest.mark.parametrize("which", [1, 2])
def test_no_descriptor_left_when_tls_begins_is_no_end_of_all_connections(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At either end, whichever comes first."""
    make, made = secure_stream.open_socket_pair, list[int]()

    def none_once() -> tuple[socket.socket, socket.socket]:
        made.append(1)
        if len(made) == which:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make()

    monkeypatch.setattr(secure_stream, "open_socket_pair", none_once)
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.05)
    with running("receiver", "tls") as receiver, running("sender", "tls") as sender:
        sender.do(Connect(receiver.address()))
        sender.machine.expect(ConnectFailed)
        sender.do(Connect(receiver.address()))
        sender.machine.expect(Connected)
        receiver.machine.expect(Connected)
        assert not sender.agent.statistics().broken and not receiver.agent.statistics().broken
