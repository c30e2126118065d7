"""Which sequences a model that drafts follows: those whose tokens and blocks it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from homenode.engine.worker.draft_blocks import DraftBlocks
from homenode.engine.worker.model_drafter import ModelDrafter

COLUMNS, BLOCKS = 10, 2


def drafter(*blocks: int) -> ModelDrafter:
    """Of a vocabulary of `COLUMNS` tokens, and a table of one sequence with these blocks."""
    table: Any = SimpleNamespace(slot=lambda seq: 0, blocks=np.array([blocks]), num_blocks=np.array([len(blocks)]))
    program: Any = SimpleNamespace(columns=COLUMNS)
    return ModelDrafter(program, None, table, DraftBlocks(BLOCKS, 1, 4), None, 2 * COLUMNS)  # type: ignore[arg-type]


def start(tokens: list[int]) -> Any:
    return SimpleNamespace(seq=1, token_ids=tokens)


@pytest.mark.parametrize(
    ("prompt", "token", "blocks", "follows"),
    [
        ([1, COLUMNS - 1], COLUMNS - 1, (0, BLOCKS - 1), True),
        ([1, COLUMNS], 0, (0, 1), False),
        ([1, -1], 0, (0, 1), False),  # a row in place of a token
        ([1, 2], COLUMNS, (0, 1), False),
        ([1, 2], 0, (0, BLOCKS), False),  # read in place in the memory of another engine
    ],
    ids=["known", "prompt", "row", "answer", "block"],
)
def test_what_is_followed(prompt: list[int], token: int, blocks: tuple[int, ...], follows: bool) -> None:
    made = drafter(*blocks)
    made.start(start(prompt))
    assert (made.follows(1) and made.can_follow(1, [token])) is follows
    if not follows:
        items: Any = [SimpleNamespace(seq=1, count=1)]
        assert made.draft(items, [SimpleNamespace(seq=1, tokens=[token])], None) == {}  # type: ignore[list-item]
        assert not made.follows(1)
