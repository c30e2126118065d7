"""What handing KV over costs, against the bare system calls it is made of: all measured in turns, in one run.

Two processes of this host. `hand_off`: from the sender's wish to the return of its pages, whole protocol, agents and machines included. `copy`: the
private copy that a receiver makes from shared memory, digests and epochs checked, against memcpy of the same pages. `bare`: the round trips and
the socket calls themselves. `control`: what is left of a hand-over in which no page moves, see `_HandOver.control`.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from homenode.bench.transfer_side import MOSTLY_HELD, Mode, Side, page_geometry
from homenode.compute.native.backend import NativeBackend
from homenode.compute.native.kv_memory import NativeEpochWords, copy_kv
from homenode.errors import PeerError
from homenode.transfer.seam import Returned

_ECHO_BYTES = 64
_ECHOES = 200
_CONTROLS = 20  # hand-overs of which one row's time is the mean
_PATIENCE_S = 60.0
_MOST_IOV = 1024


@dataclass(frozen=True)
class Row:
    """One thing measured, over the rounds. `seconds` of each round; `nbytes` moved or handed over by it, 0 where none are."""

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
        """Of the quickest round."""
        return min(self.seconds) * 1e6

    @property
    def gb_s(self) -> float:
        """Of the median round."""
        return self.nbytes / statistics.median(self.seconds) / 1e9


@dataclass
class Plan:
    """What to measure: pages of these sizes, `batch_bytes` of them at once."""

    page_sizes: tuple[int, ...] = (64 << 10, 1 << 20, 64 << 20)
    batch_bytes: int = 192 << 20
    rounds: int = 9
    channels: tuple[str, ...] = ("shm", "tcp")
    seed: int = 1
    told: Callable[[str], None] = field(default=lambda _: None)


def measure(plan: Plan) -> list[Row]:
    """All rows, each round in another order."""
    order = random.Random(plan.seed)
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for page_bytes in plan.page_sizes:
        pages = max(1, plan.batch_bytes // page_bytes)
        with _probes(page_bytes, pages, plan.channels) as probes:
            for probe in probes:
                probe.once()  # connections, first touches
            for number in range(plan.rounds):
                plan.told(f"pages of {page_bytes >> 10} KiB, round {number + 1} of {plan.rounds}")
                for probe in order.sample(probes, len(probes)):
                    seconds.setdefault((probe.what, page_bytes, probe.nbytes), []).append(probe.once())
    rows = [Row(what, page_bytes, nbytes, tuple(taken)) for (what, page_bytes, nbytes), taken in seconds.items()]
    return [*rows, Row("pages back after the reader was killed", 0, 0, tuple(_release_s() for _ in range(3)))]


@dataclass(frozen=True)
class _Probe:
    what: str
    nbytes: int
    once: Callable[[], float]


@contextmanager
def _probes(page_bytes: int, pages: int, channels: tuple[str, ...]) -> Iterator[list[_Probe]]:
    peers = [_OtherProcess() for _ in range(2 + len(channels))]
    sides: list[Side] = []
    try:
        local = _LocalCopies(page_bytes, pages)
        nbytes = pages * page_bytes
        probes = [
            _Probe("memcpy", nbytes, local.memcpy),
            _Probe("private copy", nbytes, local.private_copy),
            _Probe("two bare round trips", 0, _Echo(peers[0]).two_round_trips),
            _Probe("tcp, bare", nbytes, _BareTcp(peers[1], page_bytes, pages).once),
        ]
        for channel, peer in zip(channels, peers[2:], strict=True):
            hand_over = _HandOver(peer, channel, "pull-eager", page_bytes, pages)
            sides.append(hand_over.side)
            probes.append(_Probe(f"{channel}, whole hand-over", nbytes, hand_over.all_pages))
            probes.append(_Probe(f"{channel}, one page", page_bytes, hand_over.one_page))
            if channel == "shm":
                for some in sorted({1, min(64, pages), pages}):
                    probes.append(_Probe(f"{channel}, control, pages: {some}", 0, partial(hand_over.control, some)))
        yield probes
    finally:
        for side in sides:
            side.close()
        for peer in peers:
            peer.end()


class _OtherProcess:
    """Runs `transfer_peer`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "homenode.bench.transfer_peer", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        theirs.close()
        ours.settimeout(_PATIENCE_S)
        self._control, self._lines = ours, ours.makefile("rb")

    def ask(self, **order: Any) -> dict[str, Any]:
        """Have something done."""
        self._control.sendall(json.dumps(order).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise PeerError(f"the other process of the benchmark ended with {self.process.wait(5)}")
        return dict(json.loads(line))

    def end(self) -> None:
        """It ends with its socket."""
        self._lines.close()
        self._control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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
            self._target, self._table, self._source, self._table, 0, self._pages, self._tokens, epochs=(self._words, [0] * self._pages)
        )
        taken = time.perf_counter() - begin
        assert done is not None and len(done) == self._pages
        return taken


class _Echo:
    """A small message there and back over a Unix socket."""

    def __init__(self, peer: _OtherProcess) -> None:
        path = peer.ask(do="echo", size=_ECHO_BYTES)["path"]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect("\0" + path)

    def two_round_trips(self) -> float:
        """The median pair of a row of them."""
        message, taken = b"x" * _ECHO_BYTES, []
        for _ in range(_ECHOES):
            begin = time.perf_counter()
            for _ in range(2):
                self._socket.sendall(message)
                self._socket.recv(_ECHO_BYTES)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)


class _BareTcp:
    """sendmsg here, recv_into there."""

    def __init__(self, peer: _OtherProcess, page_bytes: int, pages: int) -> None:
        port = peer.ask(do="take", page_bytes=page_bytes, pages=pages)["port"]
        self._socket = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        geometry = page_geometry(page_bytes)
        self._memory = NativeBackend((-1,)).kv_pool(geometry, pages)
        self._views = [view for block in range(pages) for view in self._memory.pieces(block, geometry.block_size // 16)]

    def once(self) -> float:
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


class _HandOver:
    """The whole thing: two agents."""

    def __init__(self, peer: _OtherProcess, channel: str, mode: Mode, page_bytes: int, pages: int, holds: bool = False) -> None:
        reply = peer.ask(do="side", channel=channel, mode=mode, page_bytes=page_bytes, pages=pages, holds=holds)
        self.document = base64.b64decode(reply["document"])
        self.side = Side("sender", channel, mode, page_bytes, pages)
        self._peer, self._pages, self._tickets = peer, pages, 0

    def all_pages(self) -> float:
        """From the wish to the return of the pages."""
        return self._hand_over(self._pages)

    def one_page(self) -> float:
        """The same with one."""
        return self._hand_over(1)

    def control(self, pages: int) -> float:
        """What a hand-over of so many pages costs when no page has to be moved: the mean of a row of them, in seconds.

        In it: the scheduler's wish, the offer with all identities and its answer, Computed, the digest, epoch and place of one page announced, Done
        and the return of the pages; encoding, both machines, both agents, every system call and wake-up. The receiver holds all pages but the
        last, so that Ready is said; the time both sides spent in the copy loop over that page (`copy_seconds`: the sender's digest, the receiver's
        copy and check) is taken off. Not in it: connecting. The next hand-over begins right after the last one, so both agents are awake.
        """
        before = self._copy_seconds()
        total = sum(self._hand_over(pages, MOSTLY_HELD) for _ in range(_CONTROLS))
        return (total - (self._copy_seconds() - before)) / _CONTROLS

    def _copy_seconds(self) -> float:
        return self.side.agent.statistics().copy_seconds + float(self._peer.ask(do="copy seconds")["seconds"])

    def _hand_over(self, pages: int, kind: str = "bench-") -> float:
        self._tickets += 1
        ticket = f"{kind}{self._tickets}"
        begin = time.perf_counter()
        self.side.send(ticket, self.document, pages)
        ended = self.side.wait(ticket, _PATIENCE_S)
        if not isinstance(ended.event, Returned):
            raise PeerError(f"a hand-over of the benchmark failed: {ended.event}")
        return ended.at - begin


def _release_s() -> float:
    """From SIGKILL of a process that was given pages, and did not read them yet, to their return."""
    peer = _OtherProcess()
    hand_over = _HandOver(peer, "shm", "pull-delay", 64 << 10, 64, holds=True)
    try:
        hand_over.side.send("held", hand_over.document, 64)
        deadline = time.monotonic() + _PATIENCE_S
        while hand_over.side.agent.figures().pinned_pages < 64 or not hand_over.side.told_last:
            if time.monotonic() > deadline:
                raise TimeoutError("pages of the benchmark were not handed over")
            os.sched_yield()
        begin = time.perf_counter()
        peer.process.send_signal(signal.SIGKILL)
        return hand_over.side.wait("held", _PATIENCE_S).at - begin
    finally:
        hand_over.side.close()
        peer.end()


def _address(view: memoryview) -> int:
    """Where a writable or read-only view begins."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)
