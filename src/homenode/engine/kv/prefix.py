"""The prefix cache: equal prompt beginnings share their KV blocks.

A full block is known by H(what lies before it, its tokens), and the first block of a chain by H(salt, its tokens).
Where rows stand in place of embeddings, their digests count beside the tokens. H is
BLAKE2b keyed with a seed drawn for each process, so nobody outside can make two prompts collide or tell from a hash
what it stands for. A block can be found only once its keys and values have been computed.

A partly filled block is known by a hash of another kind, and only to engines that hand it over: it is never found here.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Sequence

from homenode.engine.inputs import PlacedRows, digests_between
from homenode.engine.kv.blocks import BlockPool

_DIGEST_BYTES = 16


class HashChain:
    """The hashes of the full blocks of one growing token sequence; each is computed once."""

    def __init__(self, seed: bytes, block_size: int, salt: str, rows: Sequence[PlacedRows] = ()) -> None:
        """`rows`: those of its prompt that take the place of embeddings."""
        self._seed, self._rows, self.salt = seed, rows, salt
        self._block_size = block_size
        self._root = hashlib.blake2b(
            salt.encode("utf-8", "surrogatepass"), key=seed, person=b"salt", digest_size=_DIGEST_BYTES
        ).digest()
        self._block = hashlib.blake2b(key=seed, person=b"block", digest_size=_DIGEST_BYTES)
        self._digests: list[bytes] = []

    def of(self, tokens: Sequence[int], count: int) -> list[bytes]:
        """Hashes of the first `count` blocks of `tokens`, which must begin with the tokens seen by earlier calls."""
        return self.between(tokens, 0, count)

    def between(self, tokens: Sequence[int], first: int, count: int) -> list[bytes]:
        """The same without the first `first`."""
        size = self._block_size
        while len(self._digests) < count:
            at = len(self._digests) * size
            parent = self._digests[-1] if self._digests else self._root
            block_hash = self._block.copy()
            block_hash.update(parent + self._bytes_of(tokens, at, at + size))
            self._digests.append(block_hash.digest())
        return self._digests[first:count]

    def identities(self, tokens: Sequence[int], positions: int, state_pages: int = 0) -> list[bytes]:
        """Return what each block of the first `positions` positions is known by where it is handed over: its hash, and
        for a partly filled last one that of what is in it. `state_pages`: of so many blocks behind them, which hold the
        state after these positions.
        """
        full = positions // self._block_size
        identities = self.of(tokens, full)
        rest = self._bytes_of(tokens, full * self._block_size, positions)
        if rest:
            parent = identities[-1] if identities else self._root
            identities.append(
                hashlib.blake2b(parent + rest, key=self._seed, person=b"tail", digest_size=_DIGEST_BYTES).digest()
            )
        end = identities[-1] if identities else self._root
        return identities + [
            hashlib.blake2b(
                end + _bytes_of([page]), key=self._seed, person=b"state", digest_size=_DIGEST_BYTES
            ).digest()
            for page in range(state_pages)
        ]

    def _bytes_of(self, tokens: Sequence[int], start: int, end: int) -> bytes:
        """Return what is at positions start .. end - 1: the tokens, and the digests of rows among them."""
        return _bytes_of(tokens[start:end]) + self.row_digests(start, end)

    def row_digests(self, start: int, end: int) -> bytes:
        """Return what tells the rows at positions start .. end - 1 from others, as `digests_between` has it: their
        places among these positions, and their digests.
        """
        return digests_between(self._rows, start, end) if self._rows else b""


def _bytes_of(tokens: Sequence[int]) -> bytes:
    """Eight bytes each."""
    return struct.pack(f"{len(tokens)}q", *tokens)


class PrefixCache:
    """Finds and publishes full blocks of a pool. With `enabled` false it finds nothing and publishes nothing."""

    def __init__(self, pool: BlockPool, block_size: int, *, enabled: bool = True, seed: bytes | None = None) -> None:
        """`seed`: up to 64 bytes; drawn at random unless given, by a test or so that engines that hand KV over know it
        by the same hashes.
        """
        self._pool = pool
        self._block_size = block_size
        self.enabled = enabled
        self._seed = secrets.token_bytes(32) if seed is None else seed

    def chain(self, salt: str, block_size: int | None = None, rows: Sequence[PlacedRows] = ()) -> HashChain:
        """A new chain for a sequence with this `cache_salt` and these rows in its prompt; with another `block_size`,
        such as another engine's, it finds nothing here.
        """
        return HashChain(self._seed, self._block_size if block_size is None else block_size, salt, rows)

    def lookup(self, chain: HashChain, tokens: Sequence[int]) -> list[int]:
        """Blocks that hold the longest known beginning of `tokens`, never all of them: the last token must be computed
        to get its logits.
        """
        if not self.enabled:
            return []
        return self._pool.find(chain.of(tokens, (len(tokens) - 1) // self._block_size))

    def publish(self, chain: HashChain, tokens: Sequence[int], blocks: Sequence[int], first: int, computed: int) -> int:
        """Make blocks `first`, `first + 1`, ... of a sequence findable as far as they are full, given `computed`
        finished positions.

        Returns the number of blocks seen to so far: the next call's `first`.
        """
        full = min(computed, len(tokens)) // self._block_size
        if not self.enabled or full <= first:
            return first
        for index, digest in enumerate(chain.between(tokens, first, full), first):
            self._pool.publish(blocks[index], digest)
        self.describe(chain, tokens, full, first)
        return full

    def describe(self, chain: HashChain, tokens: Sequence[int], past: int, first: int = 0) -> None:
        """Tell whoever keeps a journal what blocks `first` .. past - 1 of a sequence are of."""
        journal = self._pool.journal
        if journal is not None and journal.lacks_content:
            journal.describe(chain.of(tokens, past), tokens, chain.salt, chain.row_digests, first)
