"""Whole hand-overs, and deaths, over channel nixl with the real library, where it is installed."""

from __future__ import annotations

import importlib.util

import pytest

from tests.host.transfer.pair import MODES, engines, hand_over
from tests.host.transfer.rig import eventually

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="nixl is not installed (pip install 'homenode[nixl]')")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("receiver_block_size", [32, 64])
def test_kv_arrives_as_it_was(mode: str, receiver_block_size: int) -> None:
    with engines(channel="nixl", mode=mode, receiver_block_size=receiver_block_size) as (sender, receiver):
        for number, tokens in enumerate((1, 16, 31, 32, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)
        for engine in (sender, receiver):
            eventually(lambda engine=engine: engine.agent.figures().completed == 6, "six hand-overs told")
            eventually(lambda engine=engine: engine.agent.figures().pinned_pages == 0, "nothing pinned")
