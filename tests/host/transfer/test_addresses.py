"""Addresses are exchanged, never computed: whatever listens where arithmetic over ports would lead is left alone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from homenode.transfer.scheduler_events import Returned, SendWanted
from tests.host.transfer.pair import MODES, Engine, compute, content, identities, running_engine
from tests.host.transfer.relay import relaying
from tests.host.transfer.test_faults import by_way_of

pytestmark = pytest.mark.alone

TOKENS = 100
STEPS = (-100, -2, -1, 1, 2, 100)  # what the field's examples add, and what ranks would


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextlib.contextmanager
def listening_at(ports: set[int]) -> Iterator[list[socket.socket]]:
    """Somebody else's sockets, as far as these ports are free."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for port in sorted(ports):
            with contextlib.suppress(OSError):
                sockets.append(stack.enter_context(socket.create_server(("127.0.0.1", port))))
                sockets[-1].setblocking(False)
        assert sockets, f"all of {ports} are taken"
        yield sockets


def was_called(one: socket.socket) -> bool:
    try:
        one.accept()
    except BlockingIOError:
        return False
    return True


def neighbours(*engines: Engine) -> set[int]:
    ports = {
        port_of(address) for engine in engines for addresses in engine.agent.addresses.values() for address in addresses
    }
    return {port + step for port in ports for step in STEPS if 1024 <= port + step <= 65535} - ports


@pytest.mark.parametrize("mode", MODES)
def test_only_published_addresses_are_spoken_to(mode: str) -> None:
    """The receiver publishes where it can be reached, which is not where it listens."""
    with (
        running_engine("sender", channel="tcp", mode=mode) as sender,
        running_engine("receiver", channel="tcp", mode=mode) as receiver,
        relaying(receiver.agent.addresses["alloc"][0]) as relay,
        listening_at(neighbours(sender, receiver) | {port_of(relay.address) + 100}) as others,
    ):
        names = identities("t", TOKENS, sender.block_size)
        sender.agent.tell(SendWanted("t", by_way_of(relay.address, receiver.document), TOKENS, names))
        blocks = compute(sender, "t", TOKENS)
        receiver.fetch("t")
        wanted = content(sender, blocks, TOKENS)
        receiver.arrived("t", TOKENS)
        assert content(receiver, receiver.claim("t", TOKENS), TOKENS) == wanted
        sender.wait("t", Returned)
        assert relay.passed > 0
        assert not any(was_called(one) for one in others)


@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
def test_a_done_port_that_was_given_is_used_and_not_the_one_that_follows_from_another(mode: str) -> None:
    """The default is 100 above the alloc port. Somebody else is there, and the address that was published counts."""
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        theirs.setblocking(False)
        ports = {"pd_peer_alloc_port": (theirs.getsockname()[1] - 100,), "pd_pull_done_port": (0,)}
        sender = stack.enter_context(running_engine("sender", channel="tcp", mode=mode, settings=ports))
        receiver = stack.enter_context(running_engine("receiver", channel="tcp", mode=mode))
        sender.agent.tell(SendWanted("t", receiver.document, TOKENS, identities("t", TOKENS, sender.block_size)))
        compute(sender, "t", TOKENS)
        receiver.fetch("t")
        receiver.arrived("t", TOKENS)
        receiver.claim("t", TOKENS)
        sender.wait("t", Returned)
        assert not was_called(theirs)
