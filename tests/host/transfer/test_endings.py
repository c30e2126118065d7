"""How an agent ends: closed in the middle of things, or broken by a failure of its own; the scheduler is never left
waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import PeerError, UnsupportedError, UserError
from homenode.net.settings import NetConfig
from homenode.transfer.agent.agent import open_agent, open_carrier
from homenode.transfer.agent.buffers import register
from homenode.transfer.carriers import hccl_link
from homenode.transfer.carriers.carrier import TcpAddress
from homenode.transfer.carriers.sockets import TcpCarrier
from homenode.transfer.scheduler_events import (
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Quarantined,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    Stopped,
)
from homenode.transfer.setup.settings import TransferConfig, parse_networks
from homenode.transfer.state.machine import Connect, Connected, FromEngine, FromPeer, PeerLost, Send, Tell
from homenode.transfer.wire.message import Read
from tests.host.transfer.pair import engines, hand_over, want, within
from tests.host.transfer.rig import FINGERPRINT, PythonKv, layout, new_memory, running
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S, wait_until


def boom(given: object) -> list[Any]:
    if isinstance(given, FromEngine) and isinstance(given.message, Fetch):
        raise RuntimeError("boom")
    return []


def kinds(events: Sequence[object]) -> list[type]:
    return [type(event) for event in events]


def test_a_broken_sender_ends_every_ticket_and_refuses_new_ones() -> None:
    with running("sender", answer=boom) as side:
        side.agent.tell(SendWanted("a", b"", 64, []))
        side.agent.tell(SendWanted("b", b"", 64, []))
        side.do(Tell(SendAdmitted(0.0, "b")))
        side.agent.tell(Fetch("x", [], 0))
        wait_until(lambda: bool(side.agent.statistics().broken), "broken")
        wait_until(lambda: len(side.events) >= 3, "the tickets are ended")
        assert kinds(side.events[1:3]) == [SendRefused, Returned]
        words = side.cache.words
        # Whoever reads now notices.
        assert words is not None and all(words.read(block) == 1 for block in range(len(words)))
        side.agent.tell(SendWanted("c", b"", 64, []))
        wait_until(lambda: kinds(side.events)[3:] == [SendRefused], "the new one is refused")
        assert side.agent.close(1.0) is False


@pytest.mark.parametrize(("mode", "end"), [("pull-eager", Forgotten), ("push", Quarantined)])
def test_a_broken_receiver_frees_only_what_nobody_can_write(mode: str, end: type) -> None:
    with running("receiver", mode=mode, answer=boom) as side:
        side.do(Tell(Offered(0.0, "a", 64, 32, [], True)))
        side.agent.tell(Fetch("x", [], 0))
        wait_until(lambda: kinds(side.events) == [Offered, end], f"ended: {side.events}")
        side.agent.tell(Stopped("b"))
        wait_until(lambda: kinds(side.events)[2:] == [Failed], "later ones are answered")


def test_a_failure_over_a_peers_frame_costs_that_peer_only() -> None:
    def answer(given: object) -> list[Any]:
        if isinstance(given, FromPeer):
            raise RuntimeError("boom")
        return []

    with running("sender") as sender, running("receiver", answer=answer) as receiver:
        for _ in range(2):
            sender.do(Connect(receiver.address()))
            peer = sender.machine.expect(Connected).peer
            sender.do(Send(peer, Read(1, 0, 1)))
            assert receiver.machine.expect(PeerLost)
            assert sender.machine.expect(PeerLost).peer == peer
        assert receiver.agent.statistics().failures == 2 and not receiver.agent.statistics().broken


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_closing_calls_off_what_is_under_way(channel: str) -> None:
    with engines(channel=channel) as (sender, receiver):
        for number in range(5):
            want(sender, receiver, f"t{number}", 100)
        begun = time.monotonic()
        assert sender.agent.close(3.0)
        assert time.monotonic() - begun < 3
        for number in range(5):
            sender.wait(f"t{number}", SendRefused, Returned, SendAdmitted)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_closing_waits_for_no_scheduler(channel: str) -> None:
    """What was admitted is to be computed by a scheduler that ends before its agent does: it will say nothing more."""
    with engines(channel=channel) as (sender, receiver):
        want(sender, receiver, "nothing computed", 100)
        want(sender, receiver, "a part computed", 100)
        sender.wait("nothing computed", SendAdmitted)
        sender.wait("a part computed", SendAdmitted)
        sender.agent.tell(Computed("a part computed", 0, sender.take_blocks("a part computed", 64), False))
        receiver.arrived("a part computed", 64)
        begun = time.monotonic()
        assert sender.agent.close(PATIENCE_S)
        assert within(PATIENCE_S / 2, begun)
        for ticket in ("nothing computed", "a part computed"):
            sender.wait(ticket, Returned, timeout=0.0)


def test_closing_right_after_pages_were_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were announced before the machine had heard of them: it hears of them first, and of the end then."""
    with engines(mode="pull-delay") as (sender, receiver):
        want(sender, receiver, "t", 100)
        sender.wait("t", SendAdmitted)
        wait_until(lambda: sender.agent._mailbox._asleep, "the agent's thread sleeps")
        with monkeypatch.context() as patch:
            patch.setattr(sender.agent._mailbox, "wake", lambda: None)  # and sleeps on
            sender.agent.tell(Computed("t", 0, sender.take_blocks("t", 100), True))
        assert sender.agent.close(1.0)


def test_closing_twice_or_before_the_start_is_no_error() -> None:
    memory = new_memory(layout())
    agent = open_agent(
        TransferConfig(pd_role="sender", pd_pull_mode=True), FINGERPRINT, memory, None, PythonKv(), lambda _: None
    )
    assert agent.close(1.0)
    agent.tell(SendWanted("t", b"", 1, []))
    assert agent.close(1.0)


def open_sockets() -> list[str]:
    """Sockets, pidfds, epolls and eventfds; the memory of these tests' engines lives as long as Python likes."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except FileNotFoundError:
            pass
    return [name for name in found if name.startswith(("socket:", "anon_inode:"))]


def test_no_thread_and_no_descriptor_is_left() -> None:
    before = threading.active_count(), len(open_sockets())
    for _ in range(3):
        with engines() as (sender, receiver):
            hand_over(sender, receiver, "t", 40)
    wait_until(lambda: threading.active_count() <= before[0], "threads have ended")
    assert len(open_sockets()) <= before[1]


def test_a_port_that_is_taken_is_named() -> None:
    with running("receiver", "tcp") as side:
        port = int(side.address().rpartition(":")[2])
        config = TransferConfig(
            pd_role="receiver", pd_pull_mode=True, transfer_channel="tcp", pd_peer_alloc_port=(port,)
        )
        with pytest.raises(UserError, match=f"port {port} .* in use"):
            open_agent(config, FINGERPRINT, new_memory(layout()), None, PythonKv(), lambda _: None)


@pytest.mark.parametrize(
    ("host", "word"),
    [("0.0.0.0", "stands for all"), ("no.such.host.invalid", "pd_peer_host"), ("10.255.255.1", "--peer-keys")],
)
def test_hosts_that_will_not_do_are_refused(host: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        TcpCarrier(host)


def test_all_addresses_cannot_be_published() -> None:
    with pytest.raises(UserError, match="pd_peer_host"):
        TcpCarrier("0.0.0.0", "a secret")


@pytest.mark.parametrize(
    ("channel", "error", "word"), [("hccl", UnsupportedError, "libascendcl.so"), ("pigeon", UserError, "shm, tcp")]
)
def test_channels_that_are_not_here_say_what_is_missing(
    channel: str, error: type[UserError], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hccl_link, "library_file", lambda name, variables: None)
    memory = new_memory(layout())
    with pytest.raises(error, match=word):
        open_carrier(TransferConfig(pd_role="sender", transfer_channel=channel), memory.layout, PythonKv())
    assert register(memory, PythonKv()).buffer.layout == memory.layout


class FarSocket:
    """As one that another host's is at the other end of."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getpeername(self) -> tuple[str, int]:
        return (self._host, 7300)

    def setsockopt(self, *_: int) -> None: ...


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.2.3", True),
        ("10.2.0.7", True),
        ("10.2.0.8", False),
        ("127.0.0.1", True),
        ("::1", True),
        ("fd00::1", False),
    ],
)
def test_only_peers_that_are_allowed(host: str, allowed: bool) -> None:
    carrier = TcpCarrier("127.0.0.1", "a secret of some length", parse_networks("10.1.0.0/16, 10.2.0.7"))
    if allowed:
        assert carrier.vet(FarSocket(host)).address == host  # type: ignore[arg-type]
        return
    with pytest.raises(PeerError, match="pd_allowed_peers"):
        carrier.vet(FarSocket(host))  # type: ignore[arg-type]
    with pytest.raises(PeerError, match="pd_allowed_peers"):
        carrier.connect(str(TcpAddress(host, 7300)))


def test_anybody_who_knows_the_secret_where_nothing_is_said_and_nobody_else() -> None:
    assert TcpCarrier("127.0.0.1", "a secret").vet(FarSocket("10.2.0.8")).address == "10.2.0.8"  # type: ignore[arg-type]
    with pytest.raises(PeerError, match="--peer-keys"):
        TcpCarrier("127.0.0.1").connect("tcp:10.2.0.8:7300")
    plain = NetConfig(peer_plain_text=True)
    with pytest.raises(PeerError, match="pd_secret"):
        TcpCarrier("127.0.0.1", net=plain).connect("tcp:10.2.0.8:7300")
    with pytest.raises(UserError, match="pd_secret"):
        TcpCarrier("10.2.0.8", net=plain)


def test_a_library_that_moves_pages_past_tls_leaves_this_host_only_by_the_flag_that_says_so() -> None:
    keys = NetConfig(str(shared_keys()))
    with pytest.raises(UserError, match="NIXL moves KV past TLS"):
        TcpCarrier("10.2.0.8", net=keys, past_tls="NIXL")
    with pytest.raises(PeerError, match="NIXL moves KV past TLS"):
        TcpCarrier("127.0.0.1", net=keys, past_tls="NIXL").connect("tcp:10.2.0.8:7300")
