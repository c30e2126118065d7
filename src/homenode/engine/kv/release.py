"""The times when KV memory that nobody uses goes back to the machine: what is empty first, what only the prefix cache
holds last and by age. Pure.
"""

from __future__ import annotations

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.chunks import ChunkTable

_LOOKS = 8  # in the time after which memory goes back
_SHORTEST_S = 0.05  # between two looks

FLOOR_BYTES = 16 << 20  # of what the prefix cache holds that do not go back...
_FLOOR_SHARE = 8  # ...of a small KV memory one part of so many


def floor_bytes(kv_bytes: int) -> int:
    """Return what the prefix cache keeps of so much KV memory when nothing has been asked for long."""
    return min(FLOOR_BYTES, kv_bytes // _FLOOR_SHARE)


class ChunkRelease:
    """Gives back the chunks of `pool` that were idle for `after_s` seconds (0: never), and those with cached blocks
    after twice that time, the longest idle first, until no more than `floor` chunks are present."""

    def __init__(self, pool: BlockPool, chunks: ChunkTable, after_s: float, floor: int) -> None:
        self._pool = pool
        self._chunks = chunks
        self._after_s = after_s
        self._floor = floor
        self._next = 0.0
        self._resting = -1  # number of the change of the table that left nothing to be given back

    def due(self) -> float | None:
        """Return when to look next; None: not before the table changes."""
        since = self._chunks.idle_from
        if not self._after_s or since is None or self._resting == self._chunks.num_changes:
            return None
        return max(self._next, since + self._after_s)

    def release_idle(self, limit: int) -> int:
        """Give back what is due at the time of the table, `limit` chunks at once. How many were."""
        due, now = self.due(), self._chunks.now
        if due is None or now < due:
            return 0
        given = 0
        for chunk in self._chunks.idle_since(now - self._after_s):
            if given < limit and self._chunks.is_empty(chunk):
                self._chunks.give_back(chunk)
                given += 1
        for chunk in self._chunks.idle_since(now - 2 * self._after_s):
            if given < limit and self._chunks.num_present > self._floor:
                self._pool.empty_chunk(chunk)
                self._chunks.give_back(chunk)
                given += 1
        self._next = now + (_SHORTEST_S if given == limit else max(_SHORTEST_S, self._after_s / _LOOKS))
        if self._chunks.num_present <= self._floor and not self._chunks.has_idle_empty():
            self._resting = self._chunks.num_changes
        return given
