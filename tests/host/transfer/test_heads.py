"""Engines that keep different heads, as ranks of different degrees of parallelism do: refused by name before any KV is
handed over.
"""

from __future__ import annotations

import pytest

from homenode.transfer.scheduler_events import SendRefused
from tests.host.transfer.pair import MODES, running_engine, want
from tests.host.transfer.rig import layout, new_memory
from tests.waiting import wait_until

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(("ours", "theirs"), [(4, 2), (2, 4)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_memory_with_other_heads_is_refused_whatever_the_engines_say_of_themselves(
    channel: str, mode: str, ours: int, theirs: int
) -> None:
    """Their fingerprints are the same."""
    with (
        running_engine("sender", channel=channel, mode=mode, cache=new_memory(layout(64, kv_heads=ours))) as sender,
        running_engine(
            "receiver", channel=channel, mode=mode, cache=new_memory(layout(64, kv_heads=theirs))
        ) as receiver,
    ):
        before = bytes(receiver.cache.bytes)  # type: ignore[union-attr]
        want(sender, receiver, "t", 100)
        refused = sender.wait("t", SendRefused)
        if mode == "push":  # who registers memory is told what is wrong with it; a reader that finds it wrong hangs up
            assert "kv_heads" in refused.reason and str(ours) in refused.reason and str(theirs) in refused.reason
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing is pinned")
        assert not receiver.events and bytes(receiver.cache.bytes) == before  # type: ignore[union-attr]
