"""Existing private memory of a running process, moved to the nodes it is bound to, in bounded batches.

Only ranges of the process's own memory are touched (memory_map.py says which): moving a table that several processes
or a device share stalls all of them. Source: move_pages(2). Three habits of it matter here: a call that meets a page
it cannot move may leave later pages untried, so places are asked for again afterwards; a page that was never touched
answers ENOENT or, on older kernels, EFAULT; and a transparent huge page moves as a whole when one of its small pages
is moved, also where it reaches into the next batch, so places are asked for ahead as well.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.memory.memory_map import MemoryMap, Placement, Policy, Range
from homenode.host.bind.memory.residency import PAGE, PlannedRange, pages_by_node

BATCH = 1024  # pages a call: 4 MiB of small pages, during which their users may have to wait
_MOST_BYTES = 64 << 20  # a call, where pages are huge
_LARGEST_SMALL = 64 << 10  # bytes: pages of a kernel are 4, 16 or 64 KiB small
_ENTRY_BYTES = 8  # of a page table, which fills one page: what one such table maps is the largest transparent huge page
OUT_OF_TIME = "out of time"  # why moving pages was stopped at its deadline
Progress = Callable[[int, int], None]  # bytes looked after so far, bytes to look after

_REASONS = {
    errno.EBUSY: "busy or pinned",
    errno.EACCES: "shared with other processes",
    errno.EFAULT: "not ordinary memory",
    errno.ENOMEM: "no free memory on the node",
}
_KINDS = {"shared": "in shared mappings", "device": "of devices", "file": "of files", "kernel": "of the kernel"}
_TRIES = 4  # of one batch, each of which must have moved something
_HOPELESS = (
    4  # batches of one range in a row of which nothing moves: it is pinned as a whole, and the rest is not tried
)


@dataclass
class Moves:
    """The result of moving pages, in bytes. `stay`: those that could not be moved, `left`: those that were not to be
    touched, both by reason.

    `stopped`: why it ended early; empty when all was looked after.
    """

    wanted: int = 0
    moved: int = 0
    stay: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    stopped: str = ""


def move_private_pages(
    pid: int,
    memory: MemoryMap,
    nodes: Sequence[int],
    calls: Syscalls,
    *,
    batch: int = BATCH,
    deadline_s: float = 60.0,
    progress: Progress | None = None,
) -> Moves:
    """Move pages of process `pid` that lie on none of `nodes` to the first of them, or to the next where that is full.

    Ranges with a memory policy of their own, other than the process's, were placed on purpose and stay. At most `batch`
    pages a call (fewer huge ones), and about `deadline_s` seconds in all. What the kernel refuses as a whole (no
    permission, a node that is not allowed) is told in `stopped`.
    """
    moves = Moves()
    work = []
    for part in memory.ranges:
        away = part.away(nodes) * part.placement.page_bytes
        reason = _left_alone(part, memory, nodes)
        if away and reason:
            moves.left[reason] += away
        elif away:
            moves.wanted += away
            work.append(part)
    mover = _Mover(pid, tuple(nodes), calls, moves, batch, time.monotonic() + deadline_s, progress)
    mover.move_ranges(work)
    return moves


def bring_home(planned: Iterable[PlannedRange], calls: Syscalls, *, deadline_s: float = 300.0) -> Moves:
    """Move pages of planned ranges of this process that lie on none of their nodes to the first of them, or to the next
    where that is full.

    Where page cache fills a node the kernel gives a new page of another one rather than drop some of that cache; for a
    page that is to be moved there it makes room. At most about `deadline_s` seconds; what the kernel refuses as a whole
    is told in `stopped`.
    """
    moves, end, movers = Moves(), time.monotonic() + deadline_s, dict[tuple[int, ...], _Mover]()
    for part in planned:
        try:
            seen = pages_by_node(part, calls)
        except OSError as error:
            moves.stopped = f"{errno.errorcode.get(error.errno or 0, '?')}, {os.strerror(error.errno or 0)}"
        if moves.stopped:
            break
        start = part.address // PAGE * PAGE
        lying = Range(
            start, part.address + part.size, "private", Placement(Policy("prefer", part.nodes), dict(seen), PAGE)
        )
        if away := lying.away(part.nodes) * PAGE:
            moves.wanted += away
            mover = movers.setdefault(part.nodes, _Mover(0, part.nodes, calls, moves, BATCH, end, None))
            mover.move_ranges((lying,))
    return moves


def _left_alone(part: Range, memory: MemoryMap, nodes: Sequence[int]) -> str:
    policy = part.placement.policy
    if part.kind != "private":
        return _KINDS[part.kind]
    placed = policy != memory.policy and policy.nodes and not set(policy.nodes) <= set(nodes)
    return "placed by a policy of its own" if placed else ""


@dataclass
class _Walk:
    """The way through one range. `remaining`: pages elsewhere that are still to be looked after. `hopeless`: batches
    in a row of which nothing moved. `over`: the rest of the range is not tried."""

    part: Range
    remaining: int
    hopeless: int = 0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some pages of a range, and those of them that were elsewhere when `attempts` calls to move pages had been
    made."""

    walk: _Walk
    pages: range
    away: list[int]
    attempts: int

    @property
    def reach(self) -> int:
        """Bytes that a huge page which begins in this batch may reach beyond it. With a page of hugetlbfs no other
        comes along."""
        size = self.walk.part.placement.page_bytes
        return size * (size // _ENTRY_BYTES) if size <= _LARGEST_SMALL else 0


class _Mover:
    """The nodes still worth trying, by page size, and the accounts; lives for one call of move_private_pages."""

    def __init__(
        self,
        pid: int,
        nodes: tuple[int, ...],
        calls: Syscalls,
        moves: Moves,
        batch: int,
        end: float,
        progress: Progress | None,
    ) -> None:
        self._pid = pid
        self._nodes = nodes
        self._calls = calls
        self._moves = moves
        self._batch = max(1, batch)
        self._end = end
        self._progress = progress
        self._nodes_with_space: dict[int, list[int]] = {}  # page size -> nodes that have not yet been found full
        self._done = 0
        self._attempts = 0  # calls to move pages so far

    def move_ranges(self, parts: Sequence[Range]) -> None:
        """Move what of `parts` lies elsewhere, or say in the accounts why not."""
        walks = [_Walk(part, part.away(self._nodes)) for part in parts]
        try:
            for batch in self._batches(walks):
                if time.monotonic() > self._end:
                    self._moves.stopped = OUT_OF_TIME
                    return
                if not batch.walk.is_over:
                    self._move_batch(batch)
        except ProcessLookupError:
            self._moves.stopped = "the process has ended"
        except OSError as error:
            self._moves.stopped = f"{errno.errorcode.get(error.errno or 0, '?')}, {os.strerror(error.errno or 0)}"

    def _batches(self, walks: Iterable[_Walk]) -> Iterator[_Batch]:
        """All batches of all ranges, each with its pages that were elsewhere before anything that could take them
        along was moved.

        Those of one range end with the batch that holds the last of its pages elsewhere.
        """
        ahead: deque[_Batch] = deque()
        for walk in walks:
            part, unseen = walk.part, walk.remaining
            size = part.placement.page_bytes
            step = size * max(1, min(self._batch, _MOST_BYTES // size))
            for first in range(part.start, part.end, step):
                if walk.is_over or unseen <= 0:
                    break
                pages = range(first, min(part.end, first + step), size)
                ahead.append(_Batch(walk, pages, self._away(pages), self._attempts))
                unseen -= len(ahead[-1].away)
                while ahead and pages.stop - ahead[0].pages.stop >= ahead[0].reach:
                    yield ahead.popleft()
        yield from ahead

    def _move_batch(self, batch: _Batch) -> None:
        walk, size = batch.walk, batch.walk.part.placement.page_bytes
        away = self._away(batch.pages) if batch.away and batch.attempts < self._attempts else batch.away
        self._count_as_moved(len(set(batch.away).difference(away)) * size)  # they came along with a huge page
        walk.remaining -= len(set(batch.away).union(away))
        if not away:
            return
        moved, reason = self._move(away, size)
        walk.hopeless = 0 if moved else walk.hopeless + 1
        if not self._nodes_with_space[size]:
            reason = _REASONS[errno.ENOMEM]
        if walk.hopeless == _HOPELESS or not self._nodes_with_space[size]:
            walk.is_over = True
            self._stay(reason, walk.remaining * size)

    def _away(self, addresses: Sequence[int]) -> list[int]:
        """Return those that hold a page, elsewhere. Untouched ones answer an errno."""
        places = self._calls.move_pages(self._pid, addresses, None)
        return [
            address for address, node in zip(addresses, places, strict=True) if node >= 0 and node not in self._nodes
        ]

    def _move(self, addresses: list[int], size: int) -> tuple[int, str]:
        """Move them, trying again as long as that moves more: how many have moved, and why the others (mostly) have
        not."""
        away = addresses
        codes: dict[int, int] = {}
        for _ in range(_TRIES):
            before = len(away)
            codes, full = self._try(away, size)
            away = self._away(list(codes)) if codes else []
            if not away or (len(away) == before and not full):
                break
        reasons = Counter(_REASONS.get(-codes[address], _REASONS[errno.EBUSY]) for address in away)
        for reason, count in reasons.items():
            self._stay(reason, count * size)
        moved = len(addresses) - len(away)
        self._count_as_moved(moved * size)
        return moved, reasons.most_common(1)[0][0] if reasons else ""

    def _try(self, addresses: list[int], size: int) -> tuple[dict[int, int], bool]:
        """One call: what it said about pages that are on no planned node now, and whether the node was full."""
        candidates = self._nodes_with_space.setdefault(size, list(self._nodes))
        if not candidates:
            return dict.fromkeys(addresses, -errno.ENOMEM), False
        self._attempts += 1
        try:
            places = self._calls.move_pages(self._pid, addresses, [candidates[0]] * len(addresses))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            places = (-errno.ENOMEM,) * len(addresses)
        codes = {address: place for address, place in zip(addresses, places, strict=True) if place not in self._nodes}
        full = -errno.ENOMEM in codes.values()
        if full:
            candidates.pop(0)
        return codes, full

    def _count_as_moved(self, size: int) -> None:
        self._moves.moved += size
        self._report_progress(size)

    def _stay(self, reason: str, size: int) -> None:
        if size > 0:
            self._moves.stay[reason] += size
            self._report_progress(size)

    def _report_progress(self, size: int) -> None:
        self._done += size
        if self._progress is not None and size:
            self._progress(min(self._done, self._moves.wanted), self._moves.wanted)
