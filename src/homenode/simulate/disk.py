"""A simulated disk of KV blocks: a `BlockSource` that knows which blocks lie there, and when what is read has come.
Virtual time only; pure.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.engine.kv.block_source import BlockOffer
from homenode.engine.scheduler.events import BlocksArrived, BlocksFailed, BlocksStored
from homenode.errors import UserError
from homenode.units import parse_bytes

_FIGURES = ("size", "read_gb_s")


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """`size`: bytes of blocks that may lie there. `read_gb_s`: 1e9 bytes a second."""

    size: int
    read_gb_s: float


def read_disk(text: str) -> DiskSpeed:
    """Return what `size=..,read_gb_s=..` says. UserError for a figure that is missing, unknown or not above 0."""
    words = dict(word.partition("=")[::2] for word in text.split(",") if word)
    try:
        if set(words) != set(_FIGURES) or len(words) != text.count("="):
            raise ValueError
        found = DiskSpeed(parse_bytes(words["size"]), float(words["read_gb_s"]))
    except (ValueError, UserError) as error:
        raise _refusal(text) from error
    if found.size < 1 or not 0 < found.read_gb_s < math.inf:
        raise _refusal(text)
    return found


def _refusal(text: str) -> UserError:
    return UserError(f"--disk {text!r}: write size=SIZE,read_gb_s=NUMBER, both above 0", param="disk")


class SimulatedDisk:
    """Blocks of `block_bytes` bytes and `block_tokens` tokens. One engine's; reading is one after another."""

    def __init__(self, speed: DiskSpeed, block_bytes: int, block_tokens: int) -> None:
        self.now = 0.0
        self._tokens, self._most = block_tokens, speed.size // max(1, block_bytes)
        self._block_s = block_bytes / (speed.read_gb_s * 1e9)
        self._kept: OrderedDict[bytes, None] = OrderedDict()  # the least recently used first
        self._offers: dict[str, BlockOffer] = {}
        self._coming: list[tuple[float, BlocksArrived | BlocksFailed | BlocksStored]] = []
        self._free_at = 0.0
        self._numbers = itertools.count()

    @property
    def next_time(self) -> float:
        """Return when `take` has something; infinite: never, unless it is asked for something."""
        return min((at for at, _ in self._coming), default=math.inf)

    def take(self) -> BlocksArrived | BlocksFailed | BlocksStored:
        """Return what happens next, at `next_time`."""
        found = min(self._coming, key=lambda each: each[0])
        self._coming.remove(found)
        return found[1]

    # For the scheduler

    def find(self, identities: Sequence[bytes], states: bool = False) -> BlockOffer | None:
        """Offer what lies there, of models without states."""
        known = [] if states else list(itertools.takewhile(self._kept.__contains__, identities))
        if not known:
            return None
        key = f"disk/{next(self._numbers)}"
        seconds = len(known) * self._block_s
        offer = BlockOffer(key, len(known) * self._tokens, self._tokens, known, seconds=seconds)
        self._offers[key] = offer
        return offer

    def reserve(self, key: str, blocks: list[int], held: int) -> None:
        """Never asked for."""

    def refuse(self, key: str, free_blocks: int, reason: str) -> None:
        """Never told."""

    def fetch(self, key: str, blocks: list[int], held: int, slot: int = -1) -> None:
        """Have them come when all before were read."""
        offer = self._offers[key]
        self._touch(offer.identities)
        begin = max(self.now, self._free_at)
        self._free_at = begin + max(0, len(offer.identities) - held) * self._block_s
        self._coming.append((self._free_at, BlocksArrived(self._free_at, key, offer.tokens)))

    def stop(self, key: str) -> None:
        """Let what was asked for fail at once."""
        self._offers.pop(key, None)
        kept = [each for each in self._coming if each[1].key != key]
        if len(kept) < len(self._coming):
            self._coming = [*kept, (self.now, BlocksFailed(self.now, key))]

    def release(self, key: str, tokens: int) -> None:
        """Forget an offer."""
        self._offers.pop(key, None)

    def unuse(self, key: str) -> None:
        """Never told."""

    def offer(self, key: str, to: bytes, tokens: int, identities: list[bytes], compute_s: float) -> int:
        """Want all from the first one on that is not there; they lie there at once."""
        held = len(list(itertools.takewhile(self._kept.__contains__, identities)))
        self._touch(identities)
        return held

    def lacks_states(self, identities: Sequence[bytes], counts: Sequence[int]) -> list[int]:
        """Want no states."""
        return []

    def store(
        self, key: str, first: int, blocks: list[int], last: bool, slots: Mapping[int, int] | None = None
    ) -> None:
        """Copying takes no time."""
        self._coming.append((self.now, BlocksStored(self.now, key)))

    def pin(self, session: str, identities: Sequence[bytes]) -> None:
        """Sessions are not simulated."""

    def abandon(self, key: str, reason: str) -> None:
        """What was copied stays."""

    def _touch(self, identities: Sequence[bytes]) -> None:
        for identity in reversed(identities):
            self._kept[identity] = None
            self._kept.move_to_end(identity)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
