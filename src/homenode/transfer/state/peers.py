"""Deadlines that follow size and measured rate, so that large and slow is not mistaken for dead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from homenode.compute.kv_memory import KvLayout
from homenode.transfer.state.machine import Limits
from homenode.transfer.wire.message import Hello


class Rate:
    """Bytes a second to or from one process, smoothed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rate = limits.worst_rate
        self._measured = False
        self._last = 0.0

    @property
    def bytes_per_second(self) -> float:
        return self._rate

    def took(self, nbytes: int, begun: float, now: float) -> None:
        """A piece was asked for at `begun` and complete at `now`. Pieces queue behind each other: time before the last
        one's end is not counted."""
        seconds = now - max(begun, self._last)
        self._last = now
        if seconds <= 0 or nbytes <= 0:
            return
        seen = max(nbytes / seconds, self._limits.worst_rate)
        self._rate = seen if not self._measured else 0.75 * self._rate + 0.25 * seen
        self._measured = True

    def allowed(self, nbytes: int) -> float:
        """Seconds after which `nbytes` count as lost."""
        return max(self._limits.slowest, self._limits.patience * nbytes / self._rate)


Verdict = Literal["go", "wait", "refuse"]


class PeerBreaker:
    """Closed (all may go), open (all are refused), half open (one goes as the probe, the others wait for how it
    fares)."""

    def __init__(self, ttl: float) -> None:
        """`ttl`: seconds it stays open after a failure; with 0 it never opens."""
        self._ttl = ttl
        self._open_until: float | None = None  # None: closed
        self._probing: str | None = None

    def ask(self, ticket: str, now: float) -> Verdict:
        """May this one go? Changes nothing."""
        if self._open_until is None:
            return "go"
        if now < self._open_until:
            return "refuse"
        return "go" if self._probing in (None, ticket) else "wait"

    def go(self, ticket: str) -> None:
        """Let it go; if the breaker is half open, as the probe."""
        if self._open_until is not None:
            self._probing = ticket

    @property
    def open(self) -> bool:
        """Open or half open."""
        return self._open_until is not None

    def left(self, now: float) -> float:
        """Seconds until something may go again."""
        return 0.0 if self._open_until is None else max(self._open_until - now, 0.0)

    def failed(self, now: float, at_least: float = 0.0) -> None:
        """There was no room. `at_least`: what the receiver asked for; not believed beyond 8 times our own time."""
        self._probing = None
        if self._ttl > 0:
            self._open_until = now + max(self._ttl, min(at_least, 8 * self._ttl))

    def succeeded(self) -> None:
        self._open_until = None
        self._probing = None

    def spared(self, ticket: str) -> None:
        """This one ended without an answer; if it was the probe, the next is."""
        if self._probing == ticket:
            self._probing = None


_NONE: Mapping[bytes, int] = {}


@dataclass
class PeerProcess:
    """One incarnation of an engine. `made` and `came`: the newest live connections opened by us and by it."""

    incarnation: bytes
    name: str  # for messages
    rate: Rate
    buffers: dict[bytes, KvLayout] = field(default_factory=dict)
    bases: dict[bytes, int] = field(default_factory=dict)  # see `machine.Connected`
    made: int | None = None
    came: int | None = None
    address: str = ""  # what `made` was opened to
    live: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # ended, but not yet closed by us
    dead: bool = False  # known to be gone: it neither reads nor writes
    beating: bool = False
    banned: str = ""  # why nothing it says is taken any more
    highest: int = -1  # the last number it gave to a hand-over
    failures: int = 0  # to connect to it, in a row
    queued: int = 0  # bytes to it or from it that were asked for and have not come to an end
    heard: float = 0.0
    asked: float | None = None  # the oldest renewal without any answer since
    silent: bool = False

    @property
    def by_made(self) -> int | None:
        """A live connection, best the one opened by us."""
        return self.made if self.made is not None else self.came

    @property
    def by_came(self) -> int | None:
        """A live connection, best the one opened by it."""
        return self.came if self.came is not None else self.made


class Processes:
    """Processes by incarnation, and by the number of each connection."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_incarnation: dict[bytes, PeerProcess] = {}
        self._by_peer: dict[int, PeerProcess] = {}

    def __len__(self) -> int:
        return len(self._by_incarnation)

    def __iter__(self) -> Iterator[PeerProcess]:
        return iter(list(self._by_incarnation.values()))

    def connected(
        self, peer: int, hello: Hello, address: str, now: float, bases: Mapping[bytes, int] = _NONE
    ) -> PeerProcess:
        """A new connection, opened by us if `address` says where to."""
        process = self._by_incarnation.get(hello.incarnation)
        if process is None:
            process = PeerProcess(hello.incarnation, f"{hello.role} {hello.incarnation.hex()[:8]}", Rate(self._limits))
            self._by_incarnation[hello.incarnation] = process
        process.buffers.update({buffer.id: buffer.layout for buffer in hello.buffers})
        process.bases.update(bases)
        process.live.add(peer)
        if address:
            process.made, process.address, process.failures = peer, address, 0
        else:
            process.came = peer
        process.heard, process.asked, process.silent = now, None, False
        self._by_peer[peer] = process
        return process

    def get(self, incarnation: bytes) -> PeerProcess | None:
        return self._by_incarnation.get(incarnation)

    def of(self, peer: int) -> PeerProcess | None:
        """The process at the other end; None for a number that was closed."""
        return self._by_peer.get(peer)

    def lost(self, peer: int, dead: bool) -> PeerProcess | None:
        """The connection ended; its number stays known until `forget`."""
        process = self._by_peer.get(peer)
        if process is None:
            return None
        process.live.discard(peer)
        process.lost.add(peer)
        process.dead = process.dead or dead
        if process.made == peer:
            process.made = None
        if process.came == peer:
            process.came = max(process.live - {process.made}, default=None)
        return process

    def closed(self, peer: int) -> None:
        """This connection was closed by us."""
        process = self._by_peer.pop(peer, None)
        if process is None:
            return
        process.lost.discard(peer)
        if not process.live and not process.lost:
            self._by_incarnation.pop(process.incarnation, None)

    def forget(self, process: PeerProcess) -> list[int]:
        """The numbers of its ended connections, which are known no more; with them all, the process is forgotten
        too."""
        numbers = sorted(process.lost)
        for peer in numbers:
            self.closed(peer)
        return numbers


_MOST_PASSES = 16


@dataclass
class _Waiter:
    owner: str
    need: int
    passed: int = 0


class PageQuota:
    """Counts `total` pages; up to (1 - reserve_pct / 100) of them are given to several owners, all of them to one
    alone."""

    def __init__(self, total: int, reserve_pct: float = 0.0) -> None:
        self.total = total
        self.mark = math.floor((1 - reserve_pct / 100) * total)
        self.used = 0
        self.waits = 0
        self._held: dict[str, tuple[str, int]] = {}  # owner -> peer, pages
        self._used: dict[str, int] = {}  # peer -> pages
        self._queues: dict[str, dict[str, _Waiter]] = {}  # peer -> owner -> waiter, in order

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values())) if self._queues else 0

    @property
    def free(self) -> int:
        return max(self.mark - self.used, 0)

    def fits_ever(self, need: int) -> bool:
        return need <= self.total

    def holds(self, owner: str) -> int:
        return self._held[owner][1] if owner in self._held else 0

    def wait(self, owner: str, peer: str, need: int) -> None:
        """Queue; `admit` tells when it is its turn. One place for each owner."""
        self._queues.setdefault(peer, {})[owner] = _Waiter(owner, need)

    def waits_for(self, peer: str) -> list[str]:
        return list(self._queues.get(peer, ()))

    def leave(self, owner: str, peer: str) -> bool:
        """Stop waiting; whether it did wait."""
        queue = self._queues.get(peer, {})
        found = queue.pop(owner, None) is not None
        if not queue:
            self._queues.pop(peer, None)
        return found

    def admit(self, may_go: Callable[[str, str], bool], peers: int) -> str | None:
        """The next owner, whose pages are reserved now; None when nobody can go. Call again until it says so.

        `may_go(peer, owner)`: whether the peer is to be served at all now. `peers`: how many there are, waiting or not.
        """
        if not self._queues:
            return None
        passed: list[_Waiter] = []
        for peer in (
            sorted(self._queues, key=lambda p: self._used.get(p, 0)) if len(self._queues) > 1 else list(self._queues)
        ):
            waiter = next(iter(self._queues[peer].values()))
            if not may_go(peer, waiter.owner) or not self._within_share(peer, waiter.need, peers):
                continue
            if self.has_room(waiter.need):
                for other in passed:
                    other.passed += 1
                self._take(peer, waiter)
                return waiter.owner
            if waiter.passed >= _MOST_PASSES:
                return None
            passed.append(waiter)
        return None

    def keep(self, owner: str, pages: int) -> None:
        """Give back all but `pages` of what an owner holds."""
        if owner not in self._held or self._held[owner][1] <= pages:
            return
        peer, held = self._held.pop(owner)
        self.used -= held - pages
        self._used[peer] -= held - pages
        if pages:
            self._held[owner] = (peer, pages)
        if not self._used[peer]:
            del self._used[peer]

    def release(self, owner: str) -> None:
        self.keep(owner, 0)

    def has_room(self, need: int) -> bool:
        return self.used + need <= self.mark or (self.used == 0 and need <= self.total)

    def _within_share(self, peer: str, need: int, peers: int) -> bool:
        mine = self._used.get(peer, 0)
        return peers <= 1 or mine == 0 or mine + need <= 2 * (self.mark - self.used - need)

    def _take(self, peer: str, waiter: _Waiter) -> None:
        self.leave(waiter.owner, peer)
        self._held[waiter.owner] = (peer, waiter.need)
        self._used[peer] = self._used.get(peer, 0) + waiter.need
        self.used += waiter.need
