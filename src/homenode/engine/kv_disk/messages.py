"""What the thread that moves blocks leaves in the inbox of the engine's loop."""

from __future__ import annotations

from typing import Literal

import msgspec

BlockAnswer = Literal["arrived", "failed", "stored"]


class BlocksMoved(msgspec.Struct, frozen=True):
    """An answer of a store under a key: see the events of the same names in `scheduler.events`. `tokens`: of what has
    arrived.
    """

    answer: BlockAnswer
    key: str
    tokens: int = 0
