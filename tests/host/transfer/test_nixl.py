"""Whole hand-overs, and deaths, over channel nixl with the real library, where it is installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from homenode.transfer.carriers.nixl_engine import BUILDS
from homenode.transfer.limits import Limits
from homenode.transfer.seam import Failed, Forgotten, Offered, Returned, SendAdmitted, Stopped
from tests.host.transfer.pair import MODES, compute, engines, hand_over, running_engine, want
from tests.host.transfer.test_deaths import STEPS, other_process
from tests.host.transfer.test_deaths import _Document as Document
from tests.host.transfer.test_deaths import _receiver_until as receiver_until
from tests.host.transfer.test_deaths import _sender_until as sender_until
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        all(importlib.util.find_spec(name) is None for name in BUILDS),
        reason="nixl is not installed (the extra nixl)",
    ),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("receiver_block_size", [32, 64])
def test_kv_arrives_as_it_was(mode: str, receiver_block_size: int) -> None:
    with engines(channel="nixl", mode=mode, receiver_block_size=receiver_block_size) as (sender, receiver):
        for number, tokens in enumerate((1, 16, 31, 32, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)
        for engine in (sender, receiver):
            wait_until(lambda engine=engine: engine.agent.figures().completed == 6, "six hand-overs told")
            wait_until(lambda engine=engine: engine.agent.figures().pinned_pages == 0, "nothing pinned")


@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
def test_offloaded_kv_arrives_as_it_was(mode: str) -> None:
    with engines(channel="nixl", mode=mode, offload=True) as (sender, receiver):
        for number, tokens in enumerate((1, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", MODES)
def test_a_sender_killed_at_any_step_leaves_nothing_behind(mode: str, step: str) -> None:
    with running_engine("receiver", channel="nixl", mode=mode) as receiver:
        with other_process(sender_until, step, "nixl", mode) as (process, pipe):
            pipe.send(receiver.document)
            pipe.recv()
            receiver.wait("t", Offered)
            os.kill(process.pid, signal.SIGKILL)
            process.join(10)
            receiver.fetch("t")
            assert receiver.ended("t", 300) is not None, "neither all arrived nor an end was told"
            receiver.agent.tell(Stopped("t"))
            receiver.wait("t", Failed, Forgotten)
        with running_engine("sender", channel="nixl", mode=mode) as again:
            receiver.free = list(range(receiver.blocks))
            hand_over(again, receiver, "after", 300)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_receiver_frees_the_senders_pages(mode: str) -> None:
    with (
        running_engine("sender", channel="nixl", mode=mode) as sender,
        other_process(receiver_until, "nixl", mode) as (process, pipe),
    ):
        want(sender, Document(pipe.recv()), "t", 300)  # type: ignore[arg-type]
        pipe.recv()
        compute(sender, "t", 300)
        os.kill(process.pid, signal.SIGKILL)
        sender.wait("t", Returned, timeout=10)
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing pinned")


def test_a_frozen_receiver_that_was_never_reached_ends_in_time_and_is_not_written_twice() -> None:
    """Push: the first write needs the receiver's process to set up the connection, so it hangs while that
    is stopped.
    """
    limits = Limits(heartbeat=0.1, silence=0.5, reply=3.0, drained=0.5)
    with (
        running_engine("sender", channel="nixl", mode="push", limits=limits) as sender,
        other_process(receiver_until, "nixl", "push") as (process, pipe),
    ):
        want(sender, Document(pipe.recv()), "t", 300)  # type: ignore[arg-type]
        pipe.recv()
        sender.wait("t", SendAdmitted)
        os.kill(process.pid, signal.SIGSTOP)
        compute(sender, "t", 300)
        with pytest.raises(AssertionError, match="within"):
            sender.wait("t", Returned, timeout=1)
        os.kill(process.pid, signal.SIGKILL)
        sender.wait("t", Returned, timeout=20)


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_that_used_nixl_ends_as_it_means_to(status: int) -> None:
    program = f"""
import sys
from homenode.transfer.carriers.nixl_engine import NixlEngine
NixlEngine().close(0)
print("written at the end", end="")
sys.exit({status})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (status, "written at the end"), ended.stderr
