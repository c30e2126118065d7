"""A journal of the prefix cache: which blocks can be found from now on, and which cannot any more. Pure.

The pool notes every change; whoever knows what a block is of describes it, at once or when its sequence comes. Without
anybody who reads it there is no journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class BlockContent(NamedTuple):
    """The tokens of a full block and what else it is known by. `parent`: the block before it; None: it is the first of
    its sequence, and `salt` counts. `rows`: what tells the rows among its positions from others (`digests_between`).
    """

    digest: bytes
    parent: bytes | None
    tokens: tuple[int, ...]
    salt: str = ""
    rows: bytes = b""


class BlockGone(NamedTuple):
    """A block cannot be found any more."""

    digest: bytes


class AllGone(NamedTuple):
    """No block can."""


BlockChange = BlockContent | BlockGone | AllGone


class BlockJournal:
    """The changes since they were last taken, in order. For the thread of the engine's loop."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._changes: list[BlockChange] = []
        self._unnamed: set[bytes] = set()  # that can be found, and nobody has said what they are of

    def note_published(self, digest: bytes) -> None:
        """Note that a block can be found. What it is of is said by `describe`."""
        self._unnamed.add(digest)

    def note_gone(self, digest: bytes) -> None:
        """Note that a block cannot be found any more."""
        if digest in self._unnamed:
            self._unnamed.remove(digest)
        else:
            self._changes.append(BlockGone(digest))

    def note_all_gone(self) -> None:
        """Note that no block can be found any more: what was noted before is of no interest."""
        self._changes, self._unnamed = [AllGone()], set()

    @property
    def lacks_content(self) -> bool:
        """Return whether there are blocks of which nobody has said what they are of."""
        return bool(self._unnamed)

    def describe(
        self,
        digests: Sequence[bytes],
        tokens: Sequence[int],
        salt: str,
        row_digests: Callable[[int, int], bytes],
        first: int = 0,
    ) -> None:
        """Say what the blocks of a sequence are of from block `first` on, those of them that can be found and were not
        described yet. `digests`: of its first blocks, all of them full; `row_digests`: what tells the rows from
        one position to before another from others.
        """
        for index in range(first, len(digests)):
            if (digest := digests[index]) in self._unnamed:
                self._unnamed.remove(digest)
                start, end = index * self._size, (index + 1) * self._size
                parent, own = (digests[index - 1], "") if index else (None, salt)
                self._changes.append(
                    BlockContent(digest, parent, tuple(tokens[start:end]), own, row_digests(start, end))
                )

    def take(self) -> list[BlockChange]:
        """Return what has changed since the last call."""
        if not self._changes:
            return []
        changes, self._changes = self._changes, []
        return changes


def without_passing(changes: list[BlockChange]) -> list[BlockChange]:
    """Leave out blocks that came and went again, or went and came again."""
    left: dict[bytes, BlockChange] = {}
    begin: list[BlockChange] = []
    for change in changes:
        match change:
            case AllGone():
                begin, left = [change], {}
            case BlockContent(digest) | BlockGone(digest):
                if left.pop(digest, None) is None:
                    left[digest] = change
    return [*begin, *left.values()]
