"""Whole hand-overs, and deaths, over channel nixl with the real library, where it is installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from homenode.transfer.carriers.nixl import BUILDS
from homenode.transfer.scheduler_events import Returned, SendAdmitted
from homenode.transfer.state.machine import Limits
from tests.host.transfer.carrier_lives import (
    check_that_kv_arrives,
    check_that_offloaded_kv_arrives,
    check_the_death_of_a_receiver,
    check_the_death_of_a_sender,
)
from tests.host.transfer.pair import MODES, compute, running_engine, want
from tests.host.transfer.test_deaths import STEPS, other_process
from tests.host.transfer.test_deaths import _Document as Document
from tests.host.transfer.test_deaths import _receiver_until as receiver_until

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
    check_that_kv_arrives("nixl", mode, receiver_block_size)


@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
def test_offloaded_kv_arrives_as_it_was(mode: str) -> None:
    check_that_offloaded_kv_arrives("nixl", mode)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", MODES)
def test_a_sender_killed_at_any_step_leaves_nothing_behind(mode: str, step: str) -> None:
    check_the_death_of_a_sender("nixl", mode, step)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_receiver_frees_the_senders_pages(mode: str) -> None:
    check_the_death_of_a_receiver("nixl", mode, 10)


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
