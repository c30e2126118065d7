"""The cost of handing KV over, against the bare system calls it is made of: all measured in turns, in one run.

Two processes of this host. "hand-off": what is left when the last page has been computed, until the receiver's
scheduler may read it where it is; "hand-back": from there until the sender has its pages back
(`timed_transfers.LastPageTransfer`). "whole hand-over": from the sender's wish to the return of its pages, protocol,
agents and machines included; "control": the same without any page moved (`timed_transfers.WholeTransfer.control`).
"pages asked for": until a receiver of another host has in its blocks what was announced before
(`timed_transfers.WholeTransfer.asked_for`). "private copy": what a receiver makes from shared memory, digests and
epochs checked, against memcpy of the same pages. "bare": the round trips and socket calls themselves.
"""

from __future__ import annotations

import ctypes
import random
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from homenode.bench.kv_transfer.other_process import PATIENCE_S, PAUSE_S, OtherProcess, SocketEcho
from homenode.bench.kv_transfer.timed_transfers import LastPageTransfer, WholeTransfer
from homenode.bench.kv_transfer.transfer_side import Side, page_geometry
from homenode.compute.native.backend import NativeBackend
from homenode.compute.native.kv_memory import NativeEpochWords, copy_kv
from homenode.net.make_keys import make_keys

ENCRYPTED = "tls"  # the name of tcp with keys among channels
_MOST_IOV = 1024


@dataclass(frozen=True)
class Row:
    """One thing measured, over the rounds. `seconds` of each round; `nbytes` moved or handed over by it, 0 where none
    are."""

    what: str
    page_bytes: int
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """Microseconds."""
        return statistics.median(self.seconds) * 1e6

    @property
    def best_us(self) -> float:
        """Return the microseconds of the quickest round."""
        return min(self.seconds) * 1e6

    @property
    def gb_s(self) -> float:
        """Return the speed of the median round."""
        return self.nbytes / statistics.median(self.seconds) / 1e9


@dataclass
class TransferBenchPlan:
    """The measurements to make: pages of these sizes, `batch_bytes` of them at once."""

    page_sizes: tuple[int, ...] = (64 << 10, 1 << 20, 64 << 20)
    batch_bytes: int = 192 << 20
    rounds: int = 9
    channels: tuple[str, ...] = ("shm", "tcp")
    seed: int = 1
    report_progress: Callable[[str], None] = field(default=lambda _: None)


def measure(plan: TransferBenchPlan) -> list[Row]:
    """All rows, each round in another order."""
    if ENCRYPTED not in plan.channels:
        return _measure(plan, None)
    with tempfile.TemporaryDirectory() as folder:
        make_keys(Path(folder) / "keys", [], 1)
        return _measure(plan, f"{folder}/keys")


def _measure(plan: TransferBenchPlan, keys: str | None) -> list[Row]:
    """The same; `keys`: the folder of those of both sides of channel `tls`."""
    order = random.Random(plan.seed)
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for page_bytes in plan.page_sizes:
        pages = max(1, plan.batch_bytes // page_bytes)
        with _probes(page_bytes, pages, plan.channels, keys) as probes:
            for probe in probes:
                probe.measure()  # connections, first touches
            for number in range(plan.rounds):
                plan.report_progress(f"pages of {page_bytes >> 10} KiB, round {number + 1} of {plan.rounds}")
                for probe in order.sample(probes, len(probes)):
                    for what, taken in zip(probe.whats, probe.measure(), strict=True):
                        seconds.setdefault((what, page_bytes, probe.nbytes), []).append(taken)
    rows = [Row(what, page_bytes, nbytes, tuple(taken)) for (what, page_bytes, nbytes), taken in seconds.items()]
    return [*rows, Row("pages back after the reader was killed", 0, 0, tuple(_release_s() for _ in range(3)))]


@dataclass(frozen=True)
class _Probe:
    """Gives the seconds of one row, or of several."""

    whats: tuple[str, ...]
    nbytes: int
    measure: Callable[[], tuple[float, ...]]


def _probe(what: str, nbytes: int, measure: Callable[[], float]) -> _Probe:
    return _Probe((what,), nbytes, lambda: (measure(),))


@contextmanager
def _probes(page_bytes: int, pages: int, channels: tuple[str, ...], keys: str | None) -> Iterator[list[_Probe]]:
    peers = [OtherProcess() for _ in range(4 + 2 * len(channels))]
    sides: list[Side] = []
    try:
        local, echo, nbytes = _LocalCopies(page_bytes, pages), SocketEcho(peers[0]), pages * page_bytes
        probes = [
            _probe("memcpy", nbytes, local.memcpy),
            _probe("private copy", nbytes, local.private_copy),
            _probe("two bare round trips", 0, echo.two_round_trips),
            _probe("two bare round trips, paused", 0, echo.after_a_pause),
            _probe("tcp, bare", nbytes, _BareTcp(peers[1], page_bytes, pages).transfer),
        ]
        for channel, peer, other in zip(channels, peers[4::2], peers[5::2], strict=True):
            carrier, folder = ("tcp", keys) if channel == ENCRYPTED else (channel, None)
            hand_over = WholeTransfer(peer, carrier, "pull-eager", page_bytes, pages, keys=folder)
            sides.append(hand_over.side)
            probes.append(_probe(f"{channel}, whole hand-over", nbytes, hand_over.all_pages))
            probes.append(_probe(f"{channel}, one page", page_bytes, hand_over.one_page))
            if channel != "shm":
                asking = WholeTransfer(other, carrier, "pull-delay", page_bytes, pages, holds=True, keys=folder)
                sides.append(asking.side)
                probes.append(_probe(f"{channel}, pages asked for", nbytes, asking.asked_for))
            if channel == "shm":
                for some in sorted({1, min(64, pages), pages}):
                    probes.append(_probe(f"{channel}, control, pages: {some}", 0, partial(hand_over.control, some)))
        for peer, pause in zip(peers[2:4] if "shm" in channels else (), (0.0, PAUSE_S), strict=False):
            hand_off = LastPageTransfer(peer, page_bytes, pages, pause)
            sides.append(hand_off.side)
            for some in sorted({pages} if pause else {1, min(64, pages), pages}):
                probes.append(_Probe(hand_off.whats(some), 0, partial(hand_off.next, some)))
        yield probes
    finally:
        for side in sides:
            side.close()
        for peer in peers:
            peer.end()


class _LocalCopies:
    """memcpy, and the copy of a receiver, between the same pages."""

    def __init__(self, page_bytes: int, pages: int) -> None:
        backend, geometry = NativeBackend((-1,)), page_geometry(page_bytes)
        self._owned = backend.kv_pool(geometry, pages)
        self._source = backend.map_kv(self._owned.fd, self._owned.layout)
        self._target = backend.kv_pool(geometry, pages)
        self._words = NativeEpochWords.create(pages)
        self._table = list(range(pages))
        random.Random(page_bytes).shuffle(self._table)
        self._pages, self._page_bytes, self._tokens = pages, page_bytes, pages * geometry.block_size
        tiles = geometry.block_size // 16
        self._from = [_address(self._owned.pieces(block, tiles)[0]) for block in self._table]
        self._to = [_address(self._target.pieces(block, tiles)[0]) for block in self._table]

    def memcpy(self) -> float:
        """Page by page, one thread."""
        begin = time.perf_counter()
        for target, source in zip(self._to, self._from, strict=True):
            ctypes.memmove(target, source, self._page_bytes)
        return time.perf_counter() - begin

    def private_copy(self) -> float:
        """One call, one thread, digests and epochs included."""
        begin = time.perf_counter()
        done = copy_kv(
            self._target,
            self._table,
            self._source,
            self._table,
            0,
            self._pages,
            self._tokens,
            epochs=(self._words, [0] * self._pages),
        )
        taken = time.perf_counter() - begin
        assert done is not None and len(done) == self._pages
        return taken


class _BareTcp:
    """sendmsg here, recv_into there."""

    def __init__(self, peer: OtherProcess, page_bytes: int, pages: int) -> None:
        port = peer.ask(do="take", page_bytes=page_bytes, pages=pages)["port"]
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        geometry = page_geometry(page_bytes)
        self._memory = NativeBackend((-1,)).kv_pool(geometry, pages)
        self._views = [view for block in range(pages) for view in self._memory.pieces(block, geometry.block_size // 16)]

    def transfer(self) -> float:
        """All pages, until the other process has them."""
        begin = time.perf_counter()
        for first in range(0, len(self._views), _MOST_IOV):
            left = self._views[first : first + _MOST_IOV]
            while left:
                sent = self._socket.sendmsg(left)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]
        self._socket.recv(1)
        return time.perf_counter() - begin


def _release_s() -> float:
    """Return the seconds from SIGKILL of a process that was given pages, and did not read them yet, to their return."""
    peer = OtherProcess()
    hand_over = WholeTransfer(peer, "shm", "pull-delay", 64 << 10, 64, holds=True)
    try:
        hand_over.side.send("held", hand_over.document, 64)
        side = hand_over.side
        side.wait_for(
            lambda: side.announced_last and side.agent.figures().pinned_pages == 64, PATIENCE_S, "hold of 64 pages"
        )
        begin = time.perf_counter()
        peer.process.send_signal(signal.SIGKILL)
        return hand_over.side.wait("held", PATIENCE_S).at - begin
    finally:
        hand_over.side.close()
        peer.end()


def _address(view: memoryview) -> int:
    """Return where a writable or read-only view begins."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)
