"""A sending and a receiving engine without models: real machines, agents, sockets and memory; toy schedulers that take
blocks in order.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from homenode.compute.kv_memory import KvMemory
from homenode.net.settings import NetConfig
from homenode.transfer.agent.agent import open_agent
from homenode.transfer.scheduler_events import (
    Arrived,
    Claimed,
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Quarantined,
    ReservationFailed,
    Reserved,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    ToScheduler,
)
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.machine import Limits
from homenode.transfer.wire.message import Published, encode_published
from tests.host.transfer.rig import FINGERPRINT, PythonKv, layout, new_memory
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S

MODES = {"push": {}, "pull-eager": {"pd_pull_mode": True}, "pull-delay": {"pd_pull_mode": True, "pd_delay_pull": True}}


@dataclass
class Engine:
    """One side. `wait` blocks until an event of a ticket came."""

    role: str
    channel: str = "shm"
    mode: str = "pull-eager"
    block_size: int = 32
    blocks: int = 64
    offload: bool = False
    kv: Any = None
    cache: KvMemory | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    limits: Limits | None = None
    encrypted: bool = False
    net: NetConfig | None = None

    def __post_init__(self) -> None:
        self.kv = self.kv or PythonKv()
        self.cache = self.cache or new_memory(layout(self.blocks, self.block_size))
        self.pool = new_memory(layout(self.blocks, self.block_size)) if self.offload else None
        config = TransferConfig(
            pd_role=self.role,
            transfer_channel=self.channel,
            pd_use_cpu_offload=self.offload,
            **MODES[self.mode],
            **self.settings,
        )
        self.incarnation = os.urandom(16)
        self.free = list(range(self.cache.layout.blocks))
        self.placed: dict[str, list[int]] = {}
        self._offers: dict[str, Offered] = {}
        self.events: list[ToScheduler] = []
        self.changed = threading.Condition()
        self.agent = open_agent(
            config,
            FINGERPRINT,
            self.cache,
            self.pool,
            self.kv,
            self._take,
            incarnation=self.incarnation,
            limits=self.limits,
            net=NetConfig(str(shared_keys())) if self.encrypted else self.net,
        )

    @property
    def document(self) -> bytes:
        """What a receiver publishes."""
        addresses = self.agent.addresses
        return encode_published(
            Published(
                role="receiver",
                mode=self.mode,  # type: ignore[arg-type]
                channel=self.channel,
                incarnation=self.incarnation.hex(),
                fingerprint=FINGERPRINT,
                block_size=self.block_size,
                alloc=addresses["alloc"],
                init=addresses["init"],
            )
        )

    def _take(self, event: ToScheduler) -> None:
        """On the agent's thread."""
        match event:
            case Offered(_, ticket, tokens, _, _, reserve):
                self._offers[ticket] = event
                if reserve and self.has_room(ticket, tokens):
                    self.agent.tell(Reserved(ticket, self.take_blocks(ticket, tokens), 0))
                elif reserve:
                    self.agent.tell(ReservationFailed(ticket, len(self.free), "full"))
            case Returned(_, ticket) | Forgotten(_, ticket):
                self.free += self.placed.pop(ticket, [])
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def has_room(self, ticket: str, tokens: int) -> bool:
        """Whether `take_blocks` would do."""
        return ticket not in self.placed and -(-tokens // self.block_size) <= len(self.free)

    def take_blocks(self, ticket: str, tokens: int) -> list[int]:
        """Blocks for so many positions."""
        count = -(-tokens // self.block_size)
        assert len(self.free) >= count
        self.placed[ticket] = [self.free.pop() for _ in range(count)]
        return self.placed[ticket]

    def fetch(self, ticket: str) -> None:
        """The ticket's request is here."""
        self.wait(ticket, Offered)
        offer = self._offers[ticket]
        blocks = self.placed[ticket] if offer.reserve else self.take_blocks(ticket, offer.tokens)
        self.agent.tell(Fetch(ticket, blocks, 0))

    def claim(self, ticket: str, tokens: int) -> list[int]:
        """Take the arrived KV over; its blocks."""
        self.agent.tell(Claimed(ticket, tokens))
        return self.placed.pop(ticket)

    def wait(self, ticket: str, *kinds: type, timeout: float = PATIENCE_S) -> Any:
        """The first event of one of these kinds for the ticket, past or to come."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [event for event in self.events if event.ticket == ticket and isinstance(event, kinds)]
            return bool(found)

        with self.changed:
            if not self.changed.wait_for(look, timeout):
                raise AssertionError(
                    f"{self.role}: no {kinds} of {ticket} within {timeout} s; there came {self.events[-8:]}"
                )
        return found[0]

    def arrived(self, ticket: str, tokens: int, timeout: float = PATIENCE_S) -> None:
        """All of it, or an error."""
        with self.changed:
            self.changed.wait_for(lambda: self._ended(ticket, tokens) is not None, timeout)
        assert self._ended(ticket, tokens) is True, f"{ticket}: {[e for e in self.events if e.ticket == ticket]}"

    def ended(self, ticket: str, tokens: int, timeout: float = PATIENCE_S) -> bool | None:
        """Whether all of it arrived (True) or its end was told (False); None: neither in time."""
        with self.changed:
            self.changed.wait_for(lambda: self._ended(ticket, tokens) is not None, timeout)
        return self._ended(ticket, tokens)

    def _ended(self, ticket: str, tokens: int) -> bool | None:
        for event in self.events:
            if event.ticket == ticket:
                if isinstance(event, Failed | Forgotten | Quarantined):
                    return False
                if isinstance(event, Arrived) and event.tokens >= tokens:
                    return True
        return None


@contextlib.contextmanager
def engines(**options: Any) -> Iterator[tuple[Engine, Engine]]:
    """A sender and a receiver of the same channel and mode."""
    offload = options.pop("offload", False)
    receiver_block_size = options.pop("receiver_block_size", options.get("block_size", 32))
    with running_engine("sender", offload=offload, **options) as sender:
        options["block_size"] = receiver_block_size
        with running_engine("receiver", **options) as receiver:
            yield sender, receiver


@contextlib.contextmanager
def running_engine(role: str, **options: Any) -> Iterator[Engine]:
    engine = Engine(role, **options)
    engine.agent.start()
    try:
        yield engine
    finally:
        engine.agent.close(2.0)
        assert not engine.agent.statistics().broken


def identities(ticket: str, tokens: int, page_tokens: int) -> list[bytes]:
    """Of a prompt that is the ticket's own."""
    return [
        hashlib.blake2b(f"{ticket} {page}".encode(), digest_size=16).digest()
        for page in range(-(-tokens // page_tokens))
    ]


def want(sender: Engine, receiver: Engine, ticket: str, tokens: int) -> None:
    """A request came to the sender."""
    sender.agent.tell(SendWanted(ticket, receiver.document, tokens, identities(ticket, tokens, sender.block_size)))


def compute(sender: Engine, ticket: str, tokens: int, chunk: int = 3) -> list[int]:
    """Wait for admission, 'compute' in chunks; the blocks."""
    answer = sender.wait(ticket, SendAdmitted, SendRefused)
    assert isinstance(answer, SendAdmitted), answer
    blocks = sender.take_blocks(ticket, tokens)
    for first in range(answer.held, len(blocks), chunk):
        sender.agent.tell(Computed(ticket, first, blocks[first : first + chunk], first + chunk >= len(blocks)))
    return blocks


def hand_over(sender: Engine, receiver: Engine, ticket: str, tokens: int) -> None:
    """One whole hand-over; the receiver's KV is compared with the sender's."""
    want(sender, receiver, ticket, tokens)
    blocks = compute(sender, ticket, tokens)
    receiver.fetch(ticket)
    wanted = None if sender.offload else content(sender, blocks, tokens)
    receiver.arrived(ticket, tokens)
    placed = receiver.claim(ticket, tokens)
    sender.wait(ticket, Returned)
    got = content(receiver, placed, tokens)
    assert got == (wanted or content(sender, blocks, tokens))
    receiver.free += placed


def content(engine: Engine, blocks: list[int], tokens: int) -> list[bytes]:
    """Digests by pages of 16 tokens, whatever the block size."""
    assert engine.cache is not None
    return engine.cache.digests(blocks, 0, -(-tokens // 16), tokens, 16)


def within(seconds: float, begun: float) -> bool:
    return time.monotonic() - begun < seconds
