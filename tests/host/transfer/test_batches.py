"""Hand-overs to several receivers, processes of their own, asked for together: each goes to its own, whatever becomes
of another.
"""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Connection

import pytest

from tests.host.transfer.pair import MODES
from tests.host.transfer.players import Outcome, Player, playing
from tests.host.transfer.test_deaths import freeze, other_process
from tests.host.transfer.test_every_step import PATIENT
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.alone

EACH = 8
NAMES = ("one", "two", "three")


def tickets_of(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(EACH)]


def _receive(channel: str, mode: str, name: str, said: Connection) -> None:
    """Says how each of its tickets ended, and what else it has heard of."""
    with playing("receiver", channel, mode, PATIENT, blocks=64) as receiver:
        for ticket in tickets_of(name):
            receiver.outcomes[ticket] = Outcome()
        said.send(receiver.document)
        said.send((receiver.ends(), receiver.untouched()))
        said.recv()


def length(number: int) -> int:
    """Tokens: whole pages, parts, and none but a part."""
    return (100, 33, 64, 1)[number % 4]


def ask_together(sender: Player, documents: dict[str, bytes]) -> None:
    """One for each in turn, from several threads at once."""
    threads = [
        threading.Thread(
            target=lambda n=number: [sender.want(f"{name}-{n}", documents[name], length(n)) for name in documents]
        )
        for number in range(EACH)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_each_of_a_batch_goes_to_its_own_receiver(channel: str, mode: str) -> None:
    """One of the three stands still from the beginning, and is killed when the others have all of theirs."""
    with (
        playing("sender", channel, mode, PATIENT, blocks=512) as sender,
        other_process(_receive, channel, mode, "one") as (_, one),
        other_process(_receive, channel, mode, "two") as (_, two),
        other_process(_receive, channel, mode, "three") as (third, three),
    ):
        pipes = {"one": one, "two": two}
        documents = {name: pipe.recv() for name, pipe in {**pipes, "three": three}.items()}
        freeze(third)
        ask_together(sender, documents)
        for name, pipe in pipes.items():
            assert pipe.poll(PATIENCE_S), f"{name} has not all of its own"
            outcomes, untouched = pipe.recv()
            assert sorted(outcomes) == tickets_of(name) and untouched
            for ticket, outcome in outcomes.items():
                assert outcome.end == "all arrived" and outcome.digests == sender.expected[ticket], ticket
        wait_until(
            lambda: all(sender.outcomes[t].end == "Returned" for name in pipes for t in tickets_of(name)),
            "both are done with",
        )
        os.kill(third.pid, signal.SIGKILL)
        sender.ends()
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing is pinned")
