"""One end of a measured hand-over: real agent, machine and memory; a scheduler on a thread of its own, as an engine's,
that answers at once and computes nothing."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Literal

from homenode.compute.native.backend import NativeBackend
from homenode.compute.native.kv_backend import NativeKv
from homenode.compute.ops import KvGeometry
from homenode.engine.runtime.inbox import Inbox
from homenode.net.settings import NetConfig
from homenode.transfer.agent.agent import open_agent
from homenode.transfer.agent.buffers import InPlace
from homenode.transfer.scheduler_events import (
    Arrived,
    Claimed,
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Reserved,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    ToScheduler,
    Unused,
)
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.wire.message import Published, encode_published
from homenode.units import format_count

Mode = Literal["push", "pull-eager", "pull-delay"]
_FINGERPRINT = {"measured by": "homenode bench transfer"}
_LARGE_PAGE = 16 << 20
_LOOK_S = 0.01  # between looks at what no event tells
_STEP_S = 60.0  # no step takes so long
_USED_S = 200e-6  # a receiver reads in place for so long
MOSTLY_HELD = "held-"  # tickets that begin so: the receiver says that it holds all pages but the last


def compute_for(seconds: float) -> None:
    """Keep the CPU busy, as a prompt does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def page_geometry(page_bytes: int) -> KvGeometry:
    """KV memory whose block is one piece of so many bytes, a multiple of 16 KiB: one layer, one head, bf16."""
    head_dim = 128 if page_bytes < _LARGE_PAGE else 1024
    return KvGeometry.uniform(
        layers=1, kv_heads=1, head_dim=head_dim, block_size=page_bytes // (4 * head_dim), dtype="bf16"
    )


@dataclass(frozen=True)
class _StepEnd:
    """Left in the inbox when a step has ended, as an executor does."""

    ticket: str


@dataclass
class TicketEnd:
    """The end of a ticket at this side, and when (time.perf_counter)."""

    at: float
    event: ToScheduler


@dataclass
class Side:
    """A sender or receiver of `pages` pages. A sender's KV counts as computed the moment it is admitted, but for what
    is kept back; a receiver with `holds` never claims, one that is `in_place` reads pages where they are."""

    role: str
    channel: str
    mode: Mode
    page_bytes: int
    pages: int
    holds: bool = False
    in_place: bool = False
    keys: str | None = None  # folder of keys of both sides: they speak over TLS
    _ends: dict[str, TicketEnd] = field(default_factory=dict)
    _pages: dict[str, int] = field(default_factory=dict)  # of each ticket
    # Blocks of a ticket's last pages, computed when `finish` says so.
    _late: dict[str, list[int]] = field(default_factory=dict)
    # Tokens that have arrived (sender: that were computed), since when.
    _arrivals: dict[str, tuple[int, float]] = field(default_factory=dict)
    _inbox: Inbox = field(default_factory=Inbox)
    _used: deque[tuple[float, str]] = field(default_factory=deque)  # tickets that are read in place, until when
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.unused_at: dict[str, float] = {}  # when the scheduler said that a ticket's pages are read no more
        self.copied_at: dict[str, float] = {}  # seconds of digests and copies until all of a ticket was there
        self.failures: list[str] = []  # what did not arrive at this receiver, and why
        self.announced_last = False  # all pages of a ticket were named as computed
        backend = NativeBackend((-1,))
        geometry = page_geometry(self.page_bytes)
        self.block_size = geometry.block_size
        if self.in_place:  # what steps read, and other engines' memory beside it
            cache = backend.kv_cache(geometry, self.pages, shared=True)
            self.memory = backend.kv_memory(cache)
            in_place = InPlace(
                lambda memory: backend.attach_kv(cache, memory),  # type: ignore[arg-type]
                lambda first: backend.detach_kv(cache, first),
            )
        else:
            self.memory = backend.kv_pool(
                geometry, self.pages, others_write=self.role == "receiver" and self.mode == "push"
            )
            in_place = None
        self.incarnation = os.urandom(16)
        config = TransferConfig(
            pd_role=self.role,
            transfer_channel=self.channel,
            pd_buffer_size=4 * self.pages * self.page_bytes,
            pd_pull_mode=self.mode != "push",
            pd_delay_pull=self.mode == "pull-delay",
            pd_in_place=self.in_place,
        )
        self.agent = open_agent(
            config,
            _FINGERPRINT,
            self.memory,
            None,
            NativeKv(backend.map_kv),
            self._inbox.put,
            incarnation=self.incarnation,
            in_place=in_place,
            net=NetConfig(self.keys),
        )
        self.agent.start()
        self._steps: SimpleQueue[tuple[str, float] | None] = SimpleQueue()
        self._computed = ""  # the ticket of the last step
        threading.Thread(target=self._compute, name="steps", daemon=True).start()
        self._thread = (
            threading.Thread(target=self._schedule, name="scheduler", daemon=True) if self.role == "receiver" else None
        )
        if self._thread is not None:
            self._thread.start()
        else:
            self._inbox.work_for(self.agent)

    @property
    def document(self) -> bytes:
        """Return what a receiver publishes."""
        addresses = self.agent.addresses
        return encode_published(
            Published(
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

    def send(self, ticket: str, peer: bytes, pages: int, late: list[int] | None = None) -> None:
        """Hand the first pages over; `wait` tells when they are back. `late`: the last ones lie in these blocks, once
        `finish` says that they are computed."""
        late = late or []
        self._pages[ticket], self._late[ticket] = pages, late
        identities = [page.to_bytes(16, "little") for page in range(pages)]
        self.agent.tell(SendWanted(ticket, peer, pages * self.block_size, identities))

    def compute(self, ticket: str, step_s: float, applying_s: float) -> None:
        """A step, and what the scheduler does with its result before it tells of pages. As in an engine the thread that
        computes promises these, and wakes the scheduler's; then it waits for the next step."""
        self._steps.put((ticket, step_s))
        self.wait_for(lambda: self._computed == ticket, _STEP_S, f"the step of ticket {ticket}")
        compute_for(applying_s)

    def _compute(self) -> None:
        while (step := self._steps.get()) is not None:
            ticket, seconds = step
            compute_for(seconds)
            self.agent.promise([ticket])
            self._inbox.put(_StepEnd(ticket))

    def finish(self, ticket: str) -> None:
        """What was kept back is computed: said on the caller's thread, as a scheduler's."""
        late = self._late.pop(ticket)
        self.agent.tell(Computed(ticket, self._pages[ticket] - len(late), late, True))

    def wait(self, ticket: str, timeout: float) -> TicketEnd:
        """The end of a ticket. TimeoutError when it does not come."""
        self.wait_for(lambda: ticket in self._ends, timeout, f"the end of ticket {ticket}")
        self._pages.pop(ticket, None)
        return self._ends.pop(ticket)

    def arrival(self, ticket: str, pages: int, timeout: float) -> float:
        """Return when so many pages of a ticket had arrived, or were computed but for its late ones
        (time.perf_counter). TimeoutError when they do not.
        """
        wanted = pages * self.block_size
        self.wait_for(
            lambda: self._arrivals.get(ticket, (-1, 0.0))[0] >= wanted,
            timeout,
            f"{format_count(pages, 'page')} of ticket {ticket}",
        )
        return self._arrivals[ticket][1]

    def wait_for(self, done: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until something is so; a sender's scheduler works on the caller's thread meanwhile. TimeoutError when it
        is not in time."""
        ends = time.monotonic() + timeout
        while not done():
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.role}: {what} did not come within {timeout} s")
            if self._thread is None:
                self._next(min(left, _LOOK_S))
            else:
                with self._changed:
                    self._changed.wait_for(done, left)

    def close(self) -> None:
        """End agent and connections."""
        self._steps.put(None)
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(5.0)
        self.agent.close(5.0)
        self._inbox.close()

    def _schedule(self) -> None:
        self._inbox.work_for(self.agent)
        while self._next(self._used[0][0] - time.perf_counter() if self._used else None):
            pass

    def _next(self, timeout: float | None) -> bool:
        """Take an event; say what pages are read no more. Whether there is more to come."""
        try:
            event = self._inbox.get(timeout)
            if isinstance(event, _StepEnd):
                self._computed = event.ticket
                return True
        except Empty:
            while self._used and self._used[0][0] <= time.perf_counter():
                ticket = self._used.popleft()[1]
                self.unused_at[ticket] = time.perf_counter()
                self.agent.tell(Unused(ticket))
            return True
        if event is not None:
            self._take(event, time.perf_counter())  # type: ignore[arg-type]
        return event is not None

    def _take(self, event: ToScheduler, now: float) -> None:
        """Take what a scheduler would say, without one."""
        match event:
            case SendAdmitted(_, ticket, held):
                late = self._late[ticket]
                past = self._pages[ticket] - len(late)
                if held < past or not late:
                    self.agent.tell(Computed(ticket, held, list(range(held, past)), not late))
                self.announced_last = True
                if late:
                    self._arrive(ticket, past * self.block_size, now)
            case Offered(_, ticket, tokens, _, _, reserve, in_place):
                self._pages[ticket] = pages = tokens // self.block_size
                blocks = [-1] * pages if in_place else list(range(pages))
                if reserve:
                    self.agent.tell(Reserved(ticket, blocks, len(blocks) - 1 if ticket.startswith(MOSTLY_HELD) else 0))
                    self._arrive(ticket, 0, now)
                elif not self.holds:
                    self.agent.tell(Fetch(ticket, blocks, 0))
            case Arrived(_, ticket, tokens):
                if tokens == self._pages[ticket] * self.block_size:
                    self.agent.tell(Claimed(ticket, tokens))
                    self._pages.pop(ticket)
                    if self.in_place:
                        self._used.append((now + _USED_S, ticket))
                    self.copied_at[ticket] = self.agent.statistics().copy_seconds
                self._arrive(ticket, tokens, now)
            case Failed(_, ticket, reason) if not self.holds:
                self.failures.append(f"{ticket}: {reason}")
                self._pages.pop(ticket, None)
                self.agent.tell(Claimed(ticket, 0))  # its blocks, and what was read in place, are used no more
                if self.in_place:
                    self._used.append((now, ticket))
            case Returned(_, ticket) | SendRefused(_, ticket) | Failed(_, ticket) | Forgotten(_, ticket):
                with self._changed:
                    self._ends[ticket] = TicketEnd(now, event)
                    self._changed.notify_all()

    def _arrive(self, ticket: str, tokens: int, now: float) -> None:
        with self._changed:
            self._arrivals[ticket] = (tokens, now)
            self._changed.notify_all()
