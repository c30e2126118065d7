"""The KV blocks of what drafts tokens in a worker: of which text it has computed them, and blocks for positions that
the scheduler has given none for yet.
"""

from __future__ import annotations

from collections.abc import Sequence


class DraftBlocks:
    """`size`: positions of a block. Blocks from `count` on are `spare` ones that the scheduler knows nothing of.

    A block may come to hold another text without a word: it is given to another sequence, or comes from elsewhere, in
    memory of the model alone. So each is remembered with the text that was computed in it, and in all before it.
    """

    def __init__(self, count: int, spare: int, size: int) -> None:
        self.size, self.count = size, count
        self._texts: list[int | None] = [None] * count
        self._spare = list(range(count, count + spare))
        self._free = self._spare.copy()

    def note(self, blocks: Sequence[int], texts: Sequence[int], first: int, past: int) -> None:
        """Take in that positions `first` .. `past` - 1 of a sequence with these blocks and texts are computed, as far
        as they are in blocks.
        """
        for index in range(first // self.size, min(-(-past // self.size), len(blocks))):
            self._texts[blocks[index]] = texts[index] if (index + 1) * self.size <= past else None

    def num_computed(self, blocks: Sequence[int], texts: Sequence[int]) -> int:
        """Positions of a sequence with these blocks that are computed, from the first on, in whole blocks."""
        known = list(zip(blocks, texts, strict=False))
        return self.size * next((n for n, (block, text) in enumerate(known) if self._texts[block] != text), len(known))

    def first_after_gaps(self, blocks: Sequence[int], texts: Sequence[int]) -> int:
        """The first position from which on all positions of these blocks are computed; their end where the last is
        not.
        """
        count = len(blocks)
        while 0 < count <= len(texts) and self._texts[blocks[count - 1]] == texts[count - 1]:
            count -= 1
        return self.size * count

    def take_spare(self) -> int | None:
        """A block for positions that nobody else will read; None where there is none left."""
        return self._free.pop() if self._free else None

    def give_back_spare(self) -> None:
        """What was taken is of no use any more."""
        if len(self._free) < len(self._spare):
            self._free = self._spare.copy()


def extend_texts(texts: list[int], tokens: Sequence[int], size: int) -> None:
    """Add a number for each further block of these tokens that is whole, which stands for it and all before it."""
    for index in range(len(texts), len(tokens) // size):
        before = texts[-1] if texts else None
        texts.append(hash((before, tuple(tokens[index * size : (index + 1) * size]))))
