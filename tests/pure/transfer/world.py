"""Engines, memory and a network for the transfer machines to be played in: every delay, loss, crash and corruption is
drawn, time is simulated.

What is promised is asserted where it would break: whoever writes into a block that is not his, reads one that was given
back, or lets a token arrive whose value is not the right one, fails the test at once.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.machine import Limits
from tests.pure.transfer.world_memory import Memory

if TYPE_CHECKING:
    from tests.pure.transfer.endpoint import Endpoint

LIMITS = Limits(
    chunk=1,  # one page
    read=1,
    connect=1.0,
    room=2.0,
    reply=4.0,
    heartbeat=0.3,
    silence=1.0,
    slowest=0.5,
    worst_rate=1e5,
    progress=6.0,
    drained=1.0,
    repeat=0.2,
    remembered=64,
    backoff=0.2,
)
TTL = 5.0


class World:
    """Time, network and all processes."""

    def __init__(
        self, rng: random.Random, mode: str, channel: str, *, corruption: float = 0.0, offload: bool = False
    ) -> None:
        self.rng = rng
        self.mode = mode
        self.channel = channel
        self.shared = channel == "shm"
        self.offload = offload
        self.corruption = corruption
        self.now = 0.0
        self.listening: dict[str, Endpoint] = {}
        self.memories: dict[bytes, Memory] = {}
        self.count: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._n = 0
        self.processes: list[Endpoint] = []
        self.duplicate_done = 0.0
        self.in_place = False  # receivers whose engine can read pages where they are
        self.slowness = 0.02  # seconds a page takes at most
        self.limits = LIMITS
        self.full = 0.0  # how often the receiver's scheduler has no blocks

    def after(self, delay: float, what: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._events, (self.now + delay, self._n, what))

    def lag(self, most: float = 0.05) -> float:
        return self.rng.random() * most

    def unique(self) -> bytes:
        self._n += 1
        return self._n.to_bytes(16, "big")

    def run(self, until: float) -> None:
        """Events and deadlines, in order."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            for process in self.processes:
                if process.alive:
                    process.watch()
        self.now = until

    def settings(self, role: str, buffer: int, **more: Any) -> TransferConfig:
        return TransferConfig(
            transfer_channel=self.channel,
            pd_role=role,
            pd_buffer_size=buffer,
            pd_pull_mode=self.mode != "push",
            pd_delay_pull=self.mode == "pull-delay",
            pd_use_cpu_offload=self.offload and role == "sender",
            pd_in_place=self.in_place and role == "receiver",
            pd_pull_pending_ttl=TTL,
            pd_alloc_fail_backoff_ttl=0.5,
            pd_room_wait=10.0,  # nothing is computed in a play, whose time would say how long
            **more,
        )
