"""Peers that are killed, stopped or restarted at any moment: noticed in milliseconds on one host, and what they left is
dealt with.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from homenode.transfer.scheduler_events import (
    Failed,
    Forgotten,
    Offered,
    Quarantined,
    Returned,
    SendAdmitted,
    SendRefused,
    Stopped,
)
from homenode.transfer.state.machine import Connect, Connected, Copied, Copy, FromPeer, Limits, PeerLost, Send
from homenode.transfer.wire.message import Read
from tests.host.transfer.pair import Engine, compute, content, hand_over, running_engine, want
from tests.host.transfer.rig import Side, running

pytestmark = pytest.mark.alone

_FORK = multiprocessing.get_context("fork")
NOTICED_S = (
    0.5  # milliseconds, and 50 more without proof of death, if nobody else runs; a missed heartbeat takes seconds
)


def _serve(channel: str, mode: str, said: Connection) -> None:
    """A scripted sender in a process of its own: tells where it is and what it has, then obeys."""
    with running("sender", channel, mode) as side:
        said.send((side.address("done"), side.cache.buffer.id, side.cache.memory.digests([0, 1], 0, 2, 64)))
        address = said.recv()
        side.do(Connect(address))
        side.machine.expect(Connected)
        said.recv()


@contextlib.contextmanager
def other_process(target: Any, *arguments: Any) -> Iterator[tuple[Any, Connection]]:
    here, there = _FORK.Pipe()
    process = _FORK.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    try:
        yield process, here
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.join(10)


def freeze(process: Any) -> None:
    """Stop it; none of its threads runs any more when this returns."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def proof_of_death(side: Side) -> PeerLost:
    """What is told last of a process of this host that was killed. Its connection may be told as lost before, where
    others have the CPU on which it ends.
    """
    lost = side.machine.expect(PeerLost)
    return lost if lost.dead else side.machine.expect(PeerLost)


@pytest.mark.parametrize(("channel", "dead"), [("shm", True), ("tcp", False)])
def test_a_killed_peer_is_noticed_at_once(channel: str, dead: bool) -> None:
    with other_process(_serve, channel, "pull-eager") as (process, pipe):
        _, source, wanted = pipe.recv()
        with running("receiver", channel) as side:
            pipe.send(side.address())
            peer = side.machine.expect(Connected).peer
            begun = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
            lost = proof_of_death(side) if dead else side.machine.expect(PeerLost)
            took = time.monotonic() - begun
            assert lost.peer == peer and lost.dead is dead and took < NOTICED_S, took
            if channel == "shm":  # its memory outlives it
                side.do(Copy(1, source, [0, 1], side.cache.buffer.id, [4, 5], 0, 2, 64, 32))
                assert side.machine.expect(Copied) == Copied(1, wanted)


def test_a_connection_that_ends_before_its_process_is_told_twice() -> None:
    with other_process(_linger) as (process, pipe), running("receiver") as side:
        pipe.send(side.address())
        peer = side.machine.expect(Connected).peer
        lost = side.machine.expect(PeerLost)
        assert lost.peer == peer and not lost.dead
        os.kill(process.pid, signal.SIGKILL)
        lost = side.machine.expect(PeerLost)
        assert lost.peer == peer and lost.dead


def _linger(said: Connection) -> None:
    """Greets, closes the connection, and lives on."""
    from tests.host.transfer.hostile import RawPeer

    with RawPeer(said.recv(), "sender") as peer:
        peer.greet()
    signal.pause()


def test_what_a_peer_said_before_it_died_counts() -> None:
    with other_process(_say_and_die) as (_, pipe), running("receiver") as side:
        pipe.send(side.address())
        seen = [side.machine.expect(FromPeer).message for _ in range(50)]
        assert seen == [Read(number, 0, 1) for number in range(50)]
        assert proof_of_death(side).dead


def _say_and_die(said: Connection) -> None:
    from tests.host.transfer.hostile import RawPeer

    peer = RawPeer(said.recv(), "sender")
    peer.greet()
    for number in range(50):
        peer.send(Read(number, 0, 1))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_stopped_peer_goes_on_where_it_was(channel: str) -> None:
    with other_process(_echo, channel) as (process, pipe), running("receiver", channel) as side:
        pipe.send(side.address())
        peer = side.machine.expect(Connected).peer
        side.do(Send(peer, Read(1, 0, 1)))
        assert side.machine.expect(FromPeer).message == Read(1, 0, 1)
        freeze(process)
        side.do(Send(peer, Read(2, 0, 1)))
        with pytest.raises(queue.Empty):
            side.machine.expect(FromPeer, 0.2)
        os.kill(process.pid, signal.SIGCONT)
        assert side.machine.expect(FromPeer).message == Read(2, 0, 1)


def _echo(channel: str, said: Connection) -> None:
    with running(
        "sender", channel, answer=lambda given: [Send(given.peer, given.message)] if isinstance(given, FromPeer) else []
    ) as side:
        side.do(Connect(said.recv()))
        said.recv()


# Engines: a sender (or receiver) in a process of its own is killed or frozen at each step of a hand-over


STEPS = ("offered", "some", "all")


def _sender_until(step: str, channel: str, mode: str, said: Connection) -> None:
    """A sender that goes as far as a step of a hand-over of 300 tokens and says so."""
    document = said.recv()
    with running_engine("sender", channel=channel, mode=mode) as sender:
        receiver = _Document(document)
        want(sender, receiver, "t", 300)  # type: ignore[arg-type]
        if step != "offered":
            compute(sender, "t", 300) if step == "all" else _compute_some(sender)
        else:
            sender.wait("t", SendAdmitted, SendRefused)
        said.send(None)
        said.recv()


class _Document:
    def __init__(self, document: bytes) -> None:
        self.document = document


def _compute_some(sender: Engine) -> None:
    from homenode.transfer.scheduler_events import Computed

    sender.wait("t", SendAdmitted)
    blocks = sender.take_blocks("t", 300)
    sender.agent.tell(Computed("t", 0, blocks[:4], False))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", ["push", "pull-eager", "pull-delay"])
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_sender_killed_at_any_step_leaves_nothing_behind(channel: str, mode: str, step: str) -> None:
    with running_engine("receiver", channel=channel, mode=mode) as receiver:
        with other_process(_sender_until, step, channel, mode) as (process, pipe):
            pipe.send(receiver.document)
            pipe.recv()
            receiver.wait("t", Offered)
            os.kill(process.pid, signal.SIGKILL)
            process.join(10)
            receiver.fetch("t")
            ended = receiver.ended("t", 300)
            assert ended is not None, "neither all arrived nor an end was told"
            receiver.agent.tell(Stopped("t"))
            receiver.wait("t", Failed, Forgotten)
        with running_engine("sender", channel=channel, mode=mode) as again:
            receiver.free = list(range(receiver.blocks))
            hand_over(again, receiver, "after", 300)


@pytest.mark.parametrize("mode", ["push", "pull-eager", "pull-delay"])
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_frozen_sender_is_given_up_in_time(channel: str, mode: str) -> None:
    limits = Limits(heartbeat=0.1, silence=0.5, progress=2.0, drained=0.5)
    with (
        running_engine("receiver", channel=channel, mode=mode, limits=limits) as receiver,
        other_process(_sender_until, "some", channel, mode) as (process, pipe),
    ):
        pipe.send(receiver.document)
        pipe.recv()
        receiver.fetch("t")
        freeze(process)
        begun = time.monotonic()
        ended = receiver.wait("t", Failed, Forgotten, Quarantined)
        assert time.monotonic() - begun < 10
        # It may still write into this process's memory, until it is known to be dead.
        if isinstance(ended, Quarantined):
            assert (channel, mode) == ("shm", "push")
            os.kill(process.pid, signal.SIGKILL)
            receiver.wait("t", Forgotten)


def _receiver_until(channel: str, mode: str, said: Connection) -> None:
    with running_engine("receiver", channel=channel, mode=mode) as receiver:
        said.send(receiver.document)
        receiver.wait("t", Offered)
        said.send(None)
        said.recv()


@pytest.mark.parametrize("mode", ["push", "pull-eager", "pull-delay"])
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_receiver_killed_with_a_lease_frees_the_senders_pages(channel: str, mode: str) -> None:
    with (
        running_engine("sender", channel=channel, mode=mode) as sender,
        other_process(_receiver_until, channel, mode) as (process, pipe),
    ):
        want(sender, _Document(pipe.recv()), "t", 300)  # type: ignore[arg-type]
        pipe.recv()
        compute(sender, "t", 300)
        begun = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        sender.wait("t", Returned)
        took = time.monotonic() - begun
        assert took < (NOTICED_S if channel == "shm" else 5), took


def test_the_last_pages_of_a_dead_sender_are_still_read() -> None:
    """pull-delay over shared memory: announced, then the sender dies, then the request comes."""
    with (
        running_engine("receiver", mode="pull-delay") as receiver,
        other_process(_sender_until, "all", "shm", "pull-delay") as (process, pipe),
    ):
        pipe.send(receiver.document)
        pipe.recv()
        receiver.wait("t", Offered)
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        receiver.fetch("t")
        ended = receiver.ended("t", 300)
        if ended is True:
            assert any(any(digest) for digest in content(receiver, receiver.placed["t"], 300))
        assert ended is not None
