"""What holds of each carrier that moves bytes between the memories of two engines by itself: whole hand-overs, and the
death of either side. `channel`: its name.
"""

from __future__ import annotations

import os
import signal

from homenode.transfer.scheduler_events import Failed, Forgotten, Offered, Returned, Stopped
from homenode.transfer.state.machine import Limits
from tests.host.transfer.pair import compute, engines, hand_over, running_engine, want
from tests.host.transfer.test_deaths import _Document as Document
from tests.host.transfer.test_deaths import _receiver_until as receiver_until
from tests.host.transfer.test_deaths import _sender_until as sender_until
from tests.host.transfer.test_deaths import other_process
from tests.waiting import wait_until


def check_that_kv_arrives(channel: str, mode: str, receiver_block_size: int) -> None:
    with engines(channel=channel, mode=mode, receiver_block_size=receiver_block_size) as (sender, receiver):
        for number, tokens in enumerate((1, 16, 31, 32, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)
        for engine in (sender, receiver):
            wait_until(lambda engine=engine: engine.agent.figures().completed == 6, "six hand-overs told")
            wait_until(lambda engine=engine: engine.agent.figures().pinned_pages == 0, "nothing pinned")


def check_that_offloaded_kv_arrives(channel: str, mode: str) -> None:
    with engines(channel=channel, mode=mode, offload=True) as (sender, receiver):
        for number, tokens in enumerate((1, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)


def check_the_death_of_a_sender(channel: str, mode: str, step: str) -> None:
    """Killed at a step, it leaves nothing behind: the next one hands over as ever."""
    with running_engine("receiver", channel=channel, mode=mode) as receiver:
        with other_process(sender_until, step, channel, mode) as (process, pipe):
            pipe.send(receiver.document)
            pipe.recv()
            receiver.wait("t", Offered)
            os.kill(process.pid, signal.SIGKILL)
            process.join(10)
            receiver.fetch("t")
            assert receiver.ended("t", 300) is not None, "neither all arrived nor an end was told"
            receiver.agent.tell(Stopped("t"))
            receiver.wait("t", Failed, Forgotten)
        with running_engine("sender", channel=channel, mode=mode) as again:
            receiver.free = list(range(receiver.blocks))
            hand_over(again, receiver, "after", 300)


def check_the_death_of_a_receiver(channel: str, mode: str, returned_s: float, limits: Limits | None = None) -> None:
    """The sender has its pages back within `returned_s`."""
    with (
        running_engine("sender", channel=channel, mode=mode, **({"limits": limits} if limits else {})) as sender,
        other_process(receiver_until, channel, mode) as (process, pipe),
    ):
        want(sender, Document(pipe.recv()), "t", 300)  # type: ignore[arg-type]
        pipe.recv()
        compute(sender, "t", 300)
        os.kill(process.pid, signal.SIGKILL)
        sender.wait("t", Returned, timeout=returned_s)
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing pinned")
