"""Whole hand-overs between real machines over real sockets and memory, in every mode and over every channel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host.transfer.pair import MODES, compute, engines, hand_over, want
from tests.waiting import wait_until

CHANNELS: list[dict[str, Any]] = [
    {"channel": "shm"},
    {"channel": "tcp"},
    {"channel": "tcp", "settings": {"pd_secret": "a secret"}},
    {"channel": "tcp", "encrypted": True},
]
IDS = ["shm", "tcp", "tcp-secret", "tls"]


@pytest.mark.parametrize("channel", CHANNELS, ids=IDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("receiver_block_size", [32, 64])
def test_kv_arrives_as_it_was(channel: dict[str, Any], mode: str, receiver_block_size: int) -> None:
    with engines(mode=mode, receiver_block_size=receiver_block_size, **channel) as (sender, receiver):
        for number, tokens in enumerate((1, 16, 31, 32, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)
        for engine in (sender, receiver):
            wait_until(lambda engine=engine: engine.agent.figures().completed == 6, "six hand-overs told")
            wait_until(lambda engine=engine: engine.agent.figures().pinned_pages == 0, "nothing pinned")


@pytest.mark.parametrize("channel", CHANNELS, ids=IDS)
@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
def test_offloaded_kv_arrives_as_it_was(channel: dict[str, Any], mode: str) -> None:
    with engines(mode=mode, offload=True, **channel) as (sender, receiver):
        for number, tokens in enumerate((1, 33, 400)):
            hand_over(sender, receiver, f"t{number}", tokens)


@pytest.mark.parametrize("channel", CHANNELS, ids=IDS)
@pytest.mark.parametrize("mode", MODES)
def test_many_at_once(channel: dict[str, Any], mode: str) -> None:
    with engines(mode=mode, blocks=256, **channel) as (sender, receiver):
        tickets = [f"t{number}" for number in range(24)]
        for ticket in tickets:
            want(sender, receiver, ticket, 150)
        for ticket in tickets:
            compute(sender, ticket, 150, chunk=2)
        for ticket in tickets:
            receiver.fetch(ticket)
        for ticket in tickets:
            receiver.arrived(ticket, 150)
            receiver.claim(ticket, 150)
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing pinned")
