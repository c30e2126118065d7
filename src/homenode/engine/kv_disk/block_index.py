"""What lies in a folder of KV blocks: of each model its blocks, the least recently used first, and which are to go when
there is no room. Pure.

A block is of use only with all those before it, so whoever uses a block uses them, too: with the last one touched
first, a block is always given up before what it stands on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from homenode.engine.kv_disk.name_journal import NameJournal

_PAGE = 4096
_LEAST_AGE_S = 1.0


def stored_size(nbytes: int) -> int:
    """Bytes that a file takes, with the rest of its last page."""
    return -(-nbytes // _PAGE) * _PAGE


@dataclass(slots=True)
class StoredBlock:
    """A block of a model: bytes in its file, and when it was used last (seconds since the epoch)."""

    nbytes: int
    used: float

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return stored_size(self.nbytes)


@dataclass(eq=False)
class ModelBlocks:
    """The blocks of one model, by name. `rate`: seconds that computing a byte of them takes; 0: nobody knows.
    `journal`: of the names, where somebody wants to know what comes and goes.
    """

    blocks: OrderedDict[str, StoredBlock] = field(default_factory=OrderedDict)
    rate: float = 0.0
    journal: NameJournal | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.blocks

    @property
    def size(self) -> int:
        """Bytes that all of them take."""
        return sum(block.size for block in self.blocks.values())

    def add(self, name: str, nbytes: int, used: float) -> None:
        """Add a block that has just been found or written."""
        if name not in self.blocks:
            self._note(name, True)
        self.blocks[name] = StoredBlock(nbytes, used)
        self.blocks.move_to_end(name)

    def drop(self, name: str) -> int:
        """Forget a block that is not there any more. Bytes that it took."""
        block = self.blocks.pop(name, None)
        if block is None:
            return 0
        self._note(name, False)
        return block.size

    def begin_journal(self) -> NameJournal:
        """Note from now on what comes and goes; first that all names came that are there."""
        self.journal = NameJournal()
        for name in self.blocks:
            self.journal.note(name, True)
        return self.journal

    def _note(self, name: str, there: bool) -> None:
        if self.journal is not None:
            self.journal.note(name, there)

    def touch(self, names: Sequence[str], now: float) -> list[str]:
        """Note that the blocks of a beginning are used, which are given from the first on. Those that were there, the
        last first.
        """
        found = [name for name in reversed(names) if name in self.blocks]
        for name in found:
            self.blocks[name].used = now
            self.blocks.move_to_end(name)
        return found

    def take_over(self, there: dict[str, StoredBlock]) -> None:
        """Take in what was found in the folder: others may have written, used and removed blocks since."""
        for name in [name for name in self.blocks if name not in there]:
            self.drop(name)
        for name, block in there.items():
            mine = self.blocks.get(name)
            if mine is None:
                self._note(name, True)
            if mine is None or mine.used < block.used:
                self.blocks[name] = block
        self.blocks = OrderedDict(sorted(self.blocks.items(), key=lambda item: item[1].used))


def choose_evicted(models: Iterable[tuple[str, ModelBlocks]], now: float) -> tuple[str, str] | None:
    """The model and the name of the block that is to go next: of the oldest ones of all models that whose computing
    would take least for its bytes and its age; None: there is none. Those whose time of use is yet to come stay as long
    as others are there.
    """
    found = [(model, blocks, _oldest(blocks, now)) for model, blocks in models if blocks.blocks]
    free = [(model, blocks, name) for model, blocks, name in found if blocks.blocks[name].used <= now]
    free = free or found
    if not free:
        return None
    known = [blocks.rate for _, blocks, _ in free if blocks.rate > 0]
    usual = min(known, default=1.0)

    def worth(each: tuple[str, ModelBlocks, str]) -> float:
        _, blocks, name = each
        return (blocks.rate or usual) / max(_LEAST_AGE_S, now - blocks.blocks[name].used)

    model, _, name = min(free, key=worth)
    return model, name


def _oldest(blocks: ModelBlocks, now: float) -> str:
    """The first that need not stay; where all have to, the first."""
    return next((name for name, block in blocks.blocks.items() if block.used <= now), next(iter(blocks.blocks)))
