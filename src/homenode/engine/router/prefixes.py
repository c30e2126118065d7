"""The blocks that the prefix caches of several engines probably hold, as far as the front can tell: the blocks of the
sequences it gave them. Pure.

The hashes are those of `kv.prefix`, under a key of the front's own. An engine that is short of memory may have given up
a block that is known here, and then only time is lost; memory is bounded by the number of blocks an engine has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from homenode.engine.kv.prefix import HashChain


class Prefixes:
    """The blocks of one engine, those used longest ago forgotten first."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._known)

    @property
    def digests(self) -> list[bytes]:
        """All of them, those used longest ago first."""
        return list(self._known)

    def match(self, digests: Sequence[bytes]) -> int:
        """Return how many blocks of the beginning are there."""
        for index, digest in enumerate(digests):
            if digest not in self._known:
                return index
        return len(digests)

    def add(self, digests: Sequence[bytes]) -> None:
        """A sequence with these blocks is computed there. Its beginning, which more prompts share, is kept longest, as
        the engine does.
        """
        for digest in reversed(digests):
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) > self._num_blocks:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """The engine lost its memory."""
        self._known.clear()


def cacheable(chain: HashChain, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the blocks of `tokens` that a cache can give: full ones, and never the last token, which has to be
    computed.
    """
    return chain.of(tokens, max(0, len(tokens) - 1) // block_size)


def prompt_digests(key: bytes, tokens: Sequence[int], block_size: int, salt: str) -> list[bytes]:
    """`cacheable` of a prompt that is not looked at again."""
    return cacheable(HashChain(key, block_size, salt), tokens, block_size)
