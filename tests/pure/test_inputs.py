"""Prompts of token ids and rows: their flat form, the rows of a step, and the hashes by which blocks are known."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from homenode.compute.ops import NO_TOKEN
from homenode.engine.inputs import (
    ROW_DIGEST_BYTES,
    FlatPrompt,
    PlacedRows,
    PromptPart,
    PromptRows,
    digests_between,
    flatten,
    rows_between,
    rows_problem,
)
from homenode.engine.kv.prefix import HashChain

COLUMNS, BLOCK = 4, 8


def rows_of(*numbers: int, placeholder: int = NO_TOKEN) -> PromptRows:
    """A row for each number, which is what it is known by."""
    data = np.repeat(np.array(numbers, "<f4"), COLUMNS).tobytes()
    digests = b"".join(hashlib.blake2b(b"%d" % n, digest_size=ROW_DIGEST_BYTES).digest() for n in numbers)
    return PromptRows(data, COLUMNS, digests, placeholder)


def flat_of(*parts: list[int] | PromptRows) -> FlatPrompt:
    return flatten(PromptPart.of_rows(part) if isinstance(part, PromptRows) else PromptPart(part) for part in parts)


def test_parts_become_ids_with_placeholders_and_rows_with_places() -> None:
    flat = flat_of([5, 6], rows_of(1, 2, 3), [7], rows_of(4, placeholder=9))
    assert flat.ids == [5, 6, NO_TOKEN, NO_TOKEN, NO_TOKEN, 7, 9]
    assert [(placed.first, placed.past) for placed in flat.rows] == [(2, 5), (6, 7)]
    assert flat_of([1, 2]) == ([1, 2], []) and rows_problem(*flat) is None


def test_a_step_gets_the_rows_of_its_positions() -> None:
    flat = flat_of([5], rows_of(*range(10, 20)), [6], rows_of(20, 21))
    numbers: dict[int, float] = {}
    for start in range(0, len(flat.ids), 3):
        for brought in rows_between(flat.rows, start, start + 3):
            values = brought.array()
            assert start <= brought.first and brought.first + len(values) <= start + 3 and values.shape[1] == COLUMNS
            numbers |= dict(enumerate(values[:, 0].tolist(), brought.first))
    assert numbers == dict(zip([*range(1, 11), 12, 13], range(10, 22), strict=True))
    assert rows_between(flat.rows, 0, 1) == () == rows_between(flat.rows, 11, 12)


@pytest.mark.parametrize(
    ("ids", "rows", "what"),
    [
        ([1, NO_TOKEN], [], "neither an id nor a row"),
        ([NO_TOKEN, NO_TOKEN], [PlacedRows(0, rows_of(1))], "neither"),
        ([1, 2], [PlacedRows(1, rows_of(1, 2))], "of 2 positions"),
        ([NO_TOKEN] * 3, [PlacedRows(0, rows_of(1, 2)), PlacedRows(1, rows_of(3))], "2 of them taken"),
        ([NO_TOKEN], [PlacedRows(0, PromptRows(b"", 4, b"x" * ROW_DIGEST_BYTES))], "rows of 0 bytes"),
        ([NO_TOKEN], [PlacedRows(0, PromptRows(b"x" * 16, 4, b"x"))], "digests of 1 bytes"),
        ([], [PlacedRows(0, PromptRows(b"", 4, b""))], "rows of 0 bytes"),
    ],
)
def test_rows_that_are_not_where_they_are_said_to_be(ids: list[int], rows: list[PlacedRows], what: str) -> None:
    assert what in str(rows_problem(ids, rows))


def test_blocks_are_shared_where_ids_and_rows_are_equal_and_nowhere_else() -> None:
    """Of random prompts over few ids and few rows; rows cut into parts in any way are the same rows."""
    draw = random.Random(3)

    def parts_of(items: list[tuple[str, int]]) -> list[list[int] | PromptRows]:
        parts: list[list[int] | PromptRows] = []
        while items:
            kind = items[0][0]
            most = next((i for i, item in enumerate(items) if item[0] != kind), len(items))
            count = draw.randint(1, most)
            numbers = [number for _, number in items[:count]]
            parts.append(rows_of(*numbers) if kind == "row" else numbers)
            items = items[count:]
        return parts

    prompts = []
    for _ in range(60):
        begun = draw.choice(prompts)[: draw.randrange(30)] if prompts and draw.random() < 0.7 else []
        prompts.append([*begun, *[(draw.choice(["row", "id"]), draw.randrange(2)) for _ in range(draw.randint(1, 24))]])
    known: dict[bytes, list[tuple[str, int]]] = {}
    hashes: dict[tuple[tuple[str, int], ...], bytes] = {}
    for prompt in prompts:
        flat = flat_of(*parts_of(prompt))
        chain = HashChain(b"k", BLOCK, "", flat.rows)
        for number, digest in enumerate(chain.identities(flat.ids, len(flat.ids))):
            beginning = prompt[: (number + 1) * BLOCK]
            assert known.setdefault(digest, beginning) == beginning
            assert hashes.setdefault(tuple(beginning), digest) == digest


def test_what_tells_rows_is_never_as_long_as_ids() -> None:
    flat = flat_of([1], rows_of(1, 2), [3], rows_of(4))
    for start in range(5):
        for end in range(start + 1, 6):
            found = digests_between(flat.rows, start, end)
            assert not found or len(found) % 8


def test_rows_leave_the_hashes_of_ids_alone() -> None:
    """A prompt without rows is known by what it was known by before there were any, and so is a beginning without."""
    ids = list(range(20))
    flat = flat_of(ids, rows_of(1))
    assert HashChain(b"k", BLOCK, "", flat.rows).of(flat.ids, 2) == HashChain(b"k", BLOCK, "").of(ids, 2)
