"""Pages that several receivers read, each in a process of its own: whatever becomes of one of them, the others' pages
stay as they are.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import pytest

from homenode.transfer.scheduler_events import (
    Computed,
    Failed,
    Forgotten,
    Offered,
    Released,
    Returned,
    SendAdmitted,
    SendWanted,
    Stopped,
)
from tests.host.transfer.pair import Engine, content, identities, running_engine
from tests.host.transfer.test_deaths import freeze, other_process
from tests.waiting import wait_until

pytestmark = pytest.mark.alone

TOKENS, BLOCKS = 100, 4
LEASE = {"pd_pull_pending_ttl": 1.0}
ENDS = ("reads", "stops", "is released", "is killed", "freezes")


def _receive(channel: str, ticket: str, said: Connection) -> None:
    """A receiver that does with its ticket what it is told."""
    with running_engine("receiver", channel=channel, mode="pull-delay") as receiver:
        said.send(receiver.document)
        receiver.wait(ticket, Offered)
        said.send("offered")
        while (order := said.recv()) != "end":
            if order == "stop":
                receiver.agent.tell(Stopped(ticket))
                receiver.wait(ticket, Failed, Forgotten)
                said.send(None)
            else:
                receiver.fetch(ticket)
                arrived = receiver.ended(ticket, TOKENS)
                said.send(content(receiver, receiver.placed[ticket], TOKENS) if arrived else None)
                receiver.agent.tell(Stopped(ticket))


def lend(sender: Engine, documents: dict[str, bytes]) -> list[int]:
    """The same blocks under each ticket, as for prompts that begin alike."""
    for ticket, document in documents.items():
        sender.agent.tell(SendWanted(ticket, document, TOKENS, identities("alike", TOKENS, sender.block_size)))
    for ticket in documents:
        sender.wait(ticket, SendAdmitted)
    blocks = sender.free[-BLOCKS:]
    for ticket in documents:
        sender.agent.tell(Computed(ticket, 0, blocks, True))
    return blocks


def epochs(sender: Engine, blocks: list[int]) -> list[int]:
    words = sender.agent._local[0].words
    assert words is not None
    return [words.read(block) for block in blocks]


def leaves(how: str, sender: Engine, process: Any, pipe: Connection) -> None:
    """The first reader ends in this way."""
    if how == "is killed":
        os.kill(process.pid, signal.SIGKILL)
    elif how == "freezes":
        freeze(process)
    elif how == "is released":
        sender.agent.tell(Released("one", "a test"))
        pipe.send("stop")
    else:
        pipe.send({"reads": "fetch", "stops": "stop"}[how])


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_one_of_two_readers_lets_go_and_the_other_reads_what_was_there(channel: str, how: str) -> None:
    with (
        running_engine("sender", channel=channel, mode="pull-delay", settings=LEASE) as sender,
        other_process(_receive, channel, "one") as (first, to_first),
        other_process(_receive, channel, "two") as (_, to_second),
    ):
        blocks = lend(sender, {"one": to_first.recv(), "two": to_second.recv()})
        wanted, before = content(sender, blocks, TOKENS), epochs(sender, blocks)
        assert to_first.recv() == to_second.recv() == "offered"
        wait_until(lambda: sender.agent.figures().pinned_pages == BLOCKS, "a page counts once, however many keep it")
        leaves(how, sender, first, to_first)
        sender.wait("one", Returned)
        assert epochs(sender, blocks) == before, "the pages are still lent to the other"
        assert not any(event for event in sender.events if isinstance(event, Returned) and event.ticket == "two")
        to_second.send("fetch")
        assert to_second.recv() == wanted
        sender.wait("two", Returned)
        assert epochs(sender, blocks) == [epoch + 1 for epoch in before]
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing is pinned")
        if how == "freezes":
            used_again(sender, blocks)
            os.kill(first.pid, signal.SIGCONT)
            to_first.send("fetch")
            assert to_first.recv() is None, "it read what the pages are used for now"


def used_again(sender: Engine, blocks: list[int]) -> None:
    assert sender.cache is not None
    for block in blocks:
        for piece in sender.cache.pieces(block, sender.block_size // 16):  # type: ignore[attr-defined]
            piece[:] = b"\xee" * len(piece)
