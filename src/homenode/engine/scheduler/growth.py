"""KV memory that grows and goes back: what the machine can give, how long a lack of it is borne, and what the
operator is told. Pure.

The machine is looked at from outside (`memory.headroom`) before anything grows; `KvHeadroom` brings what it has. When
that is too little, blocks without memory are withheld: who runs does so in the memory there is, newcomers wait, and
whoever needs more is preempted as when all blocks are in use. It ends when the machine has memory again.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.chunks import ChunkTable, PageChange
from homenode.engine.kv.release import ChunkRelease, floor_bytes
from homenode.engine.scheduler.events import KvHeadroom
from homenode.units import format_bytes

LOOK_EVERY_S = 0.25  # at the machine's memory, while there is something to compute and it is scarce...
LOOK_SELDOM_S = 1.0  # ...and while there is plenty
_PLENTY = 1 << 30  # bytes that the machine can give: no growth of a second comes near
LONGEST_WAIT_S = 10.0  # of a request that nobody's end can give memory to
_MOST_AT_ONCE = 64 << 20  # bytes given back at once
_RESUMING = 2  # times the memory that was lacking has to be there before blocks are handed out again


@dataclass(frozen=True, slots=True)
class GrowthStats:
    """Bytes: `present` now, `released` since the start; `refused`: how often the machine had no memory for growth."""

    present: int = 0
    released: int = 0
    refused: int = 0


class Growth:
    """Growth of the memory of `pool` in `chunks` of `chunk_bytes` each, which goes back when it is idle for `release_s`
    seconds.
    """

    def __init__(self, pool: BlockPool, chunks: ChunkTable, chunk_bytes: int, release_s: float) -> None:
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        total = chunks.num_chunks * chunk_bytes
        self._release = ChunkRelease(pool, chunks, release_s, floor_bytes(total) // chunk_bytes)
        self._looked_at = -LOOK_EVERY_S
        self._present_then = 0  # chunks, when the machine was last looked at
        self._withheld_since: float | None = None
        self._lacking = 0  # chunks
        self._reason = "its memory is not known"
        self._released = self._refused = 0
        self.warnings: list[str] = []  # for the operator; the scheduler passes them on

    def advance(self, now: float) -> None:
        """Time has passed: what is due goes back, so much at once that a step waits for it less than a millisecond."""
        self._chunks.now = now
        self._released += self._release.release_idle(max(1, _MOST_AT_ONCE // self._chunk_bytes))
        self._watch()

    def take(self, event: KvHeadroom) -> None:
        """Take what the machine can give now."""
        chunks = self._chunks
        chunks.credit = max(0, event.nbytes) // self._chunk_bytes
        self._looked_at, self._present_then, self._reason = event.now, chunks.num_present, event.reason
        if chunks.withheld and chunks.credit >= _RESUMING * self._lacking:
            chunks.withheld, self._withheld_since = False, None
            self.warnings.append(f"KV memory can grow again: {format_bytes(event.nbytes)} are there")

    def start_anew(self) -> None:
        """Workers were lost, and nothing that was computed is of use: all memory goes back, as those in their places
        have none."""
        for chunk in self._chunks.idle_since(self._chunks.now):
            self._chunks.give_back(chunk)

    def wants_headroom(self) -> bool:
        """Return whether the machine should be looked at before the next step is planned."""
        if self._chunks.num_present == self._chunks.num_chunks:
            return False
        chunks, waited = self._chunks, self._chunks.now - self._looked_at
        if chunks.credit is not None and chunks.credit * self._chunk_bytes >= _PLENTY:
            # A look costs as much as a chunk, and where threads compute on every CPU it delays the step.
            return waited >= LOOK_SELDOM_S
        return chunks.num_present > self._present_then or waited >= LOOK_EVERY_S

    @property
    def withholds(self) -> bool:
        """Return whether blocks without memory are not handed out now."""
        return self._chunks.withheld

    def changes(self) -> list[PageChange]:
        """Return what is to be done about the pages before the next step is computed. Told once."""
        self._watch()
        changes, self._chunks.changes = self._chunks.changes, []
        return changes

    def due(self, waiting: bool) -> float | None:
        """Return when time matters next. `waiting`: there are requests."""
        due = self._release.due()
        if waiting and self._withheld_since is not None:
            again = self._chunks.now + LOOK_EVERY_S
            return again if due is None else min(due, again)
        return due

    def refuses(self) -> str | None:
        """Return, for a request that nobody's end can help: why it cannot be computed; empty as long as it is to wait;
        None: for another reason.
        """
        self._watch()
        if self._withheld_since is None:
            return None
        if self._chunks.now - self._withheld_since < LONGEST_WAIT_S:
            return ""
        return f"KV memory cannot grow for this request: {self._reason}"

    def stats(self) -> GrowthStats:
        """Return figures for the metrics."""
        return GrowthStats(
            self._chunks.num_present * self._chunk_bytes, self._released * self._chunk_bytes, self._refused
        )

    def _watch(self) -> None:
        """Tell of memory that was wanted and not to be had."""
        if not self._chunks.withheld or self._withheld_since is not None:
            return
        self._withheld_since, self._lacking = self._chunks.now, self._chunks.lacking
        self._refused += 1
        present = format_bytes(self._chunks.num_present * self._chunk_bytes)
        total = format_bytes(self._chunks.num_chunks * self._chunk_bytes)
        self.warnings.append(
            f"KV memory cannot grow beyond {present} of at most {total} now: {self._reason}. Requests run in what "
            "is there, wait or are preempted"
        )
