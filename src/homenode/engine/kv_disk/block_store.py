"""The interface of what keeps the blocks of a model: a folder of this host (`disk_store`), or what else
`store_connectors` has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from homenode.engine.kv_disk.block_format import BlockFormat
from homenode.engine.kv_disk.block_index import ModelBlocks

Parts = Sequence[memoryview]


class ModelNote(msgspec.Struct, frozen=True):
    """What is told of a model beside its blocks, for people and for who gives up blocks. `rate`: seconds that computing
    a byte of them takes. `identity`: of the store, in hexadecimal, of which the folder has its name.
    """

    model: str
    identity: str = ""
    encrypted: bool = False
    facts: dict[str, str] = {}
    block_tokens: int = 0
    rate: float = 0.0


@dataclass(frozen=True)
class StoredModel:
    """The model whose blocks a store is opened for. `identity`: of its blocks, which no other model has. `form`: writes
    and checks a block. `sizes`: that contents may have, in bytes.
    """

    identity: bytes
    form: BlockFormat
    sizes: Sequence[int]
    note: ModelNote


class BlockStore(Protocol):
    """Blocks of one model, by name: 32 hexadecimal digits. For one thread, but for `names` and the figures, which any
    thread may look into.

    Whatever fails is the store's own to tell, once, and to try again later: requests go on without. Requests wait while
    one of its functions runs, so a store that others answer for bounds how long it waits for them.
    """

    @property
    def names(self) -> ModelBlocks:
        """What is known to be there of this model; `names.rate` is what an earlier process has left, see `set_rate`."""

    @property
    def total(self) -> int:
        """Bytes of all that lay there when it was looked at last, whoever has left it."""

    @property
    def rejected(self) -> int:
        """Blocks that were not what they should be, since the start."""

    def start(self) -> None:
        """Look at what is there."""

    def refresh(self) -> None:
        """Look for what others have written and given up since. Called twice a second at most."""

    def set_rate(self, rate: float) -> None:
        """Take in how many seconds computing a byte takes: what takes longest is given up last."""

    def read_ahead(self, name: str) -> None:
        """Prepare for `get` of this block, which comes next; return at once."""

    def get(self, name: str, parts: Parts) -> bool:
        """Read a block into these parts. False: there is none that could be used; what was written to them is worth
        nothing.
        """

    def put(self, name: str, content: bytes | bytearray | memoryview) -> bool:
        """Write a block. Whether it can be found now, which it could not before."""

    def touch(self, names: Sequence[str], pinned_s: float | None = None) -> None:
        """Note that the blocks of a beginning are used, given from the first on. `pinned_s`: seconds for which they are
        to stay; 0: they need not any more; None: nothing changes about that.
        """

    def close(self) -> None:
        """Give everything back; nothing is called any more."""
