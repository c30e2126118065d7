"""One end of a measured hand-over: real agent, machine and memory; a scheduler that answers at once and computes nothing."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

from homenode.compute.native.backend import NativeBackend
from homenode.compute.ops import KvGeometry
from homenode.transfer import published
from homenode.transfer.native_kv import NativeKv
from homenode.transfer.opening import open_agent
from homenode.transfer.seam import (
    Arrived,
    Claimed,
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Returned,
    Room,
    SendAdmitted,
    SendRefused,
    SendWanted,
    ToScheduler,
)
from homenode.transfer.settings import TransferConfig

Mode = Literal["push", "pull-eager", "pull-delay"]
_FINGERPRINT = {"measured by": "homenode bench transfer"}
_LARGE_PAGE = 16 << 20
MOSTLY_HELD = "held-"  # tickets that begin so: the receiver says that it holds all pages but the last


def page_geometry(page_bytes: int) -> KvGeometry:
    """KV memory whose block is one piece of so many bytes, a multiple of 16 KiB: one layer, one head, bf16."""
    head_dim = 128 if page_bytes < _LARGE_PAGE else 1024
    return KvGeometry(layers=1, kv_heads=1, head_dim=head_dim, block_size=page_bytes // (4 * head_dim), dtype="bf16")


@dataclass
class Ended:
    """How a ticket ended at this side, and when (time.perf_counter)."""

    at: float
    event: ToScheduler


@dataclass
class Side:
    """A sender or receiver of `pages` pages. A sender's KV counts as computed the moment it is admitted; a receiver with `holds` never claims."""

    role: str
    channel: str
    mode: Mode
    page_bytes: int
    pages: int
    holds: bool = False
    _ends: dict[str, Ended] = field(default_factory=dict)
    _pages: dict[str, int] = field(default_factory=dict)  # of each ticket
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.told_last = False  # all pages of a ticket were named as computed
        backend = NativeBackend((-1,))
        geometry = page_geometry(self.page_bytes)
        self.block_size = geometry.block_size
        writable = self.role == "receiver" and self.mode == "push"
        self.memory = backend.kv_pool(geometry, self.pages, others_write=writable)
        self.incarnation = os.urandom(16)
        config = TransferConfig(
            pd_role=self.role,
            transfer_channel=self.channel,
            pd_buffer_size=4 * self.pages * self.page_bytes,
            pd_pull_mode=self.mode != "push",
            pd_delay_pull=self.mode == "pull-delay",
        )
        kv = NativeKv(backend.map_kv)
        self.agent = open_agent(config, _FINGERPRINT, self.memory, None, kv, self._take, incarnation=self.incarnation)
        self.agent.start()

    @property
    def document(self) -> bytes:
        """What a receiver publishes."""
        addresses = self.agent.addresses
        return published.encode(
            published.Published(
                role="receiver",
                mode=self.mode,
                channel=self.channel,
                incarnation=self.incarnation.hex(),
                fingerprint=_FINGERPRINT,
                block_size=self.block_size,
                alloc=addresses["alloc"],
                init=addresses["init"],
            )
        )

    def send(self, ticket: str, peer: bytes, pages: int) -> None:
        """Hand the first pages over; `wait` tells when they are back."""
        self._pages[ticket] = pages
        identities = [page.to_bytes(16, "little") for page in range(pages)]
        self.agent.tell(SendWanted(ticket, peer, pages * self.block_size, identities))

    def wait(self, ticket: str, timeout: float) -> Ended:
        """The end of a ticket. TimeoutError when it does not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: ticket in self._ends, timeout):
                raise TimeoutError(f"{self.role}: ticket {ticket} did not end within {timeout} s")
            return self._ends.pop(ticket)

    def close(self) -> None:
        """End agent and connections."""
        self.agent.close(5.0)

    def _take(self, event: ToScheduler) -> None:
        """On the agent's thread: what a scheduler would say, without one."""
        match event:
            case SendAdmitted(_, ticket, held):
                self.agent.tell(Computed(ticket, held, list(range(held, self._pages[ticket])), True))
                self.told_last = True
            case Offered(_, ticket, tokens, _, _, reserve):
                self._pages[ticket] = tokens // self.block_size
                blocks = list(range(self._pages[ticket]))
                if reserve:
                    self.agent.tell(Room(ticket, blocks, len(blocks) - 1 if ticket.startswith(MOSTLY_HELD) else 0))
                elif not self.holds:
                    self.agent.tell(Fetch(ticket, blocks, 0))
            case Arrived(_, ticket, tokens):
                if tokens == self._pages[ticket] * self.block_size:
                    self.agent.tell(Claimed(ticket, tokens))
                    self._end(ticket, event)
            case Returned(_, ticket) | SendRefused(_, ticket) | Failed(_, ticket) | Forgotten(_, ticket):
                self._end(ticket, event)

    def _end(self, ticket: str, event: ToScheduler) -> None:
        with self._changed:
            self._ends[ticket] = Ended(time.perf_counter(), event)
            self._changed.notify_all()
