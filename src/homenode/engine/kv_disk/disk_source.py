"""Blocks on disk as a `BlockSource`. For the thread of the engine's loop; the work is `store_thread.StoreThread`'s."""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.engine.kv.block_source import BlockOffer
from homenode.engine.kv_disk.store_thread import BlocksIn, BlocksOut, StoreThread

_MOST_SESSIONS = 10_000  # whose blocks are known, the last ones used
_MOST_NAMES = 1_000_000  # of blocks of all of them


@dataclass
class _Coming:
    names: list[str]
    asked: BlocksIn | None = None


class DiskSource:
    """`block_tokens`: of a block here and there."""

    def __init__(self, thread: StoreThread, block_tokens: int, session_s: float = 3600.0) -> None:
        """`session_s`: seconds after its last request for which the blocks of a session stay."""
        self._thread, self._size, self._session_s = thread, block_tokens, session_s
        self._sessions: OrderedDict[str, list[str]] = OrderedDict()
        self._num_names = 0
        self._coming: dict[str, _Coming] = {}
        self._offered: tuple[str, list[str]] = ("", [])  # `store` follows at once, or never
        self._going: OrderedDict[str, BlocksOut] = OrderedDict()
        self._numbers = itertools.count()

    # In

    def find(self, identities: Sequence[bytes], states: bool = False) -> BlockOffer | None:
        """Offer the beginning that is known to be there."""
        names = list(itertools.takewhile(self._thread.knows, (each.hex() for each in identities)))
        while states and names and not self._thread.knows(_state_name(names[-1])):
            names.pop()
        if not names:
            return None
        key = f"disk/{next(self._numbers)}"
        self._coming[key] = _Coming(names)
        seconds = self._thread.seconds_for(len(names))
        tokens = len(names) * self._size
        return BlockOffer(key, tokens, self._size, list(identities[: len(names)]), seconds=seconds)

    def reserve(self, key: str, blocks: list[int], held: int) -> None:
        """Never asked for: nothing is offered before a request comes."""

    def refuse(self, key: str, free_blocks: int, reason: str) -> None:
        """Never told, for the same reason."""

    def fetch(self, key: str, blocks: list[int], held: int, slot: int = -1) -> None:
        """Have the thread read them."""
        if (coming := self._coming.get(key)) is not None and coming.asked is None:
            state = None if slot < 0 else (_state_name(coming.names[-1]), slot)
            coming.asked = BlocksIn(key, coming.names, blocks, held, state)
            self._thread.fetch(coming.asked)

    def stop(self, key: str) -> None:
        """Have it read no more. Where it has not begun nobody waits for an answer."""
        coming = self._coming.pop(key, None)
        if coming is not None and coming.asked is not None:
            coming.asked.stopped = True

    def release(self, key: str, tokens: int) -> None:
        """Count what was of use."""
        coming = self._coming.pop(key, None)
        if coming is not None and coming.asked is not None:
            of_use = max(0, tokens - coming.asked.held * self._size)
            self._thread.count_hit(of_use, min(of_use, coming.asked.parked * self._size))

    def unuse(self, key: str) -> None:
        """Never told: nothing is read where it is."""

    # Out

    def offer(self, key: str, to: bytes, tokens: int, identities: list[bytes], compute_s: float) -> int:
        """Want all from the first one on that is not there."""
        names = [each.hex() for each in identities]
        self._thread.learn_rate(compute_s, tokens)
        self._thread.use(names)
        held = next((number for number, name in enumerate(names) if not self._thread.knows(name)), len(names))
        self._offered = (key, names)
        return held

    def lacks_states(self, identities: Sequence[bytes], counts: Sequence[int]) -> list[int]:
        """Return those that are not there."""
        return [count for count in counts if not self._thread.knows(_state_name(identities[count - 1].hex()))]

    def store(
        self, key: str, first: int, blocks: list[int], last: bool, slots: Mapping[int, int] | None = None
    ) -> None:
        """Have the thread keep them."""
        offered, names = self._offered
        if offered != key:
            return
        pages = deque(zip(names[first : first + len(blocks)], blocks, strict=True))
        states = deque((_state_name(names[count - 1]), slot) for count, slot in (slots or {}).items())
        self._forget_done()
        asked = self._going[key] = BlocksOut(key, pages, states)
        self._thread.keep(asked)

    def pin(self, session: str, identities: Sequence[bytes]) -> None:
        """Have blocks of a session given up last, until it is released or was not asked for some time."""
        names = [each.hex() for each in identities]
        self._num_names += len(names) - len(self._sessions.get(session, ()))
        self._sessions[session] = names
        self._sessions.move_to_end(session)
        while len(self._sessions) > 1 and (len(self._sessions) > _MOST_SESSIONS or self._num_names > _MOST_NAMES):
            self._num_names -= len(self._sessions.popitem(last=False)[1])
        self._thread.use(names, self._session_s)

    def release_session(self, session: str) -> None:
        """Let the blocks of a session be given up like all others."""
        if (names := self._sessions.pop(session, None)) is not None:
            self._num_names -= len(names)
            self._thread.use(names, 0.0)

    def abandon(self, key: str, reason: str) -> None:
        """Have it copy no more of them."""
        if (going := self._going.pop(key, None)) is not None:
            going.lost = True
            self._thread.wake()

    def _forget_done(self) -> None:
        """Forget what the thread does not read any more, which it takes in the order in which it was given."""
        while self._going and next(iter(self._going.values())).done:
            self._going.popitem(last=False)


def _state_name(block: str) -> str:
    """The name of the state at the end of a block."""
    return hashlib.blake2b(bytes.fromhex(block), person=b"kv-disk-state", digest_size=16).hexdigest()
