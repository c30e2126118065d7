"""KV memory in chunks: which blocks are handed out first, what is taken and given back, and that it always adds up."""

from __future__ import annotations

import random

import pytest

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.chunks import ChunkTable, PageChange, Presence
from homenode.engine.kv.release import ChunkRelease
from homenode.errors import InternalError
from tests.examples import seeds


def _pool(num_blocks: int, chunk_blocks: int) -> tuple[BlockPool, ChunkTable]:
    chunks = ChunkTable(num_blocks, chunk_blocks)
    return BlockPool(num_blocks, chunks), chunks


def _taken(first: int, past: int) -> PageChange:
    return PageChange(first, past, Presence.present)


def _returned(first: int, past: int) -> PageChange:
    return PageChange(first, past, Presence.absent)


def _digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_blocks_that_are_there_come_first_and_the_lowest_of_them() -> None:
    pool, chunks = _pool(16, 4)
    first = pool.allocate(6)
    assert first == [0, 1, 2, 3, 4, 5]
    assert chunks.changes == []  # owned, and not used yet
    assert pool.secure(first)
    assert chunks.changes == [_taken(0, 8)]
    pool.release(first)
    held = pool.allocate(1, after=5)
    assert held == [6]  # what follows, as it is there
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2, after=7) == [3, 4]  # 8 follows, but is not there
    assert pool.allocate(4) == [5, 7, 8, 9]


def test_memory_that_is_lacking_is_withheld_and_what_there_is_is_taken() -> None:
    pool, chunks = _pool(16, 2)
    chunks.credit = 2
    blocks = pool.allocate(8)
    assert not pool.secure(blocks)
    assert (chunks.withheld, chunks.lacking, chunks.credit) == (True, 4, 0)
    assert chunks.changes == [_taken(0, 4)]
    assert pool.num_free == 0
    pool.release(blocks)
    assert pool.num_free == 4
    assert pool.allocate(4) == [0, 1, 2, 3]
    with pytest.raises(InternalError, match="1 KV block wanted, 0 available"):
        pool.allocate(1)
    chunks.withheld = False
    assert pool.num_free == 12


def test_cached_blocks_are_given_up_when_nothing_more_can_be_taken() -> None:
    pool, chunks = _pool(8, 2)
    blocks = pool.allocate(2)
    assert pool.secure(blocks)
    for block in blocks:
        pool.publish(block, _digest(block))
    pool.release(blocks)
    assert pool.allocate(2) == [2, 3]  # memory grows rather than that something is forgotten
    assert pool.num_cached == 2
    chunks.withheld = True
    assert pool.allocate(1) == [1]  # the end of the sequence is given up before its beginning
    assert pool.find([_digest(0)]) == [0]


def test_some_memory_is_taken_ahead_a_little_at_once() -> None:
    pool, chunks = _pool(40, 4)
    chunks.take_ahead(ready=6, limit=1)
    assert (chunks.num_ready, chunks.changes) == (4, [_taken(0, 4)])
    chunks.take_ahead(ready=6, limit=5)
    chunks.take_ahead(ready=6, limit=5)
    assert (chunks.num_ready, chunks.changes) == (8, [_taken(0, 8)])
    chunks.credit = 0
    chunks.take_ahead(ready=30, limit=5)
    assert chunks.num_ready == 8
    assert pool.affords(8)
    assert not pool.affords(9)


def test_what_is_empty_goes_back_first_and_what_is_cached_by_age_down_to_the_floor() -> None:
    pool, chunks = _pool(12, 2)
    release = ChunkRelease(pool, chunks, after_s=10.0, floor=1)
    kept, older, newer, empty = (pool.allocate(2) for _ in range(4))
    for blocks in (kept, older, newer, empty):
        assert pool.secure(blocks)
    for now, blocks in ((1.0, older), (2.0, newer)):
        chunks.now = now
        for block in blocks:
            pool.publish(block, _digest(block))
        pool.release(blocks)
    chunks.now = 3.0
    pool.release(empty)
    chunks.changes.clear()

    def at(now: float, most: int = 9) -> list[PageChange]:
        chunks.now = now
        release.release_idle(most)
        changes, chunks.changes = chunks.changes, []
        return changes

    assert release.due() == 11.0
    assert at(10.9) == []
    assert at(13.0) == [_returned(6, 8)]
    assert at(20.0) == []  # what is cached stays twice as long
    assert at(21.5, most=1) == [_returned(2, 4)]
    assert at(22.5) == [_returned(4, 6)]
    pool.release(kept)
    assert at(40.0) == [_returned(0, 2)]  # the floor is one of cached blocks
    for block in (again := pool.allocate(2)):
        pool.secure([block])
        pool.publish(block, _digest(block))
    pool.release(again)
    chunks.changes.clear()
    assert at(90.0) == []
    assert release.due() is None


def test_nothing_goes_back_where_it_is_to_stay() -> None:
    pool, chunks = _pool(4, 2)
    pool.secure(pool.allocate(1))
    pool.release([0])
    release = ChunkRelease(pool, chunks, after_s=0.0, floor=0)
    chunks.now = 1e9
    assert (release.due(), release.release_idle(9)) == (None, 0)


def test_a_chunk_in_use_cannot_be_given_back() -> None:
    pool, chunks = _pool(4, 2)
    pool.secure(pool.allocate(1))
    for chunk in (0, 1):
        with pytest.raises(InternalError, match=f"chunk {chunk} .* cannot be given back"):
            chunks.give_back(chunk)


@pytest.mark.parametrize("seed", seeds(12))
def test_any_life_adds_up_and_nothing_owned_or_cached_goes_back(seed: int) -> None:
    """Random calls against a plain model: `there` are the blocks whose pages the changes say are present."""
    rng = random.Random(seed)
    num_blocks, chunk_blocks = rng.choice([(30, 4), (17, 1), (64, 8), (5, 9)])
    pool, chunks = _pool(num_blocks, chunk_blocks)
    release = ChunkRelease(pool, chunks, after_s=2.0, floor=rng.choice([0, 2]))
    tables: list[list[int]] = []
    there: set[int] = set()
    number = 0
    for _ in range(600):
        chunks.now += rng.random()
        move = rng.randrange(7)
        if move <= 1 and pool.num_free:
            ready, count = chunks.num_ready, rng.randrange(1, pool.num_free + 1)
            cached = pool.num_cached
            blocks = pool.allocate(count, after=rng.choice([-1, rng.randrange(num_blocks)]))
            assert pool.num_cached == cached or count > ready  # nothing is forgotten for what could be had
            if pool.secure(blocks):
                tables.append(blocks)
            else:
                pool.release(blocks)
        elif move == 2 and tables:
            block = rng.choice(rng.choice(tables))
            pool.publish(block, _digest(number))
            number += 1
        elif move == 3 and tables:
            pool.release(tables.pop(rng.randrange(len(tables))))
        elif move == 4:
            release.release_idle(rng.randrange(1, 9))
        elif move == 5:
            chunks.credit = rng.choice([None, 0, 1, 4])
            chunks.withheld = chunks.withheld and chunks.credit == 0
        else:
            chunks.take_ahead(rng.randrange(9), rng.randrange(3))
        for change in chunks.changes:
            blocks_of = set(range(change.first, change.past))
            there = there | blocks_of if change.presence else there - blocks_of
        chunks.changes.clear()
        pool.audit(tables)
        assert there.issuperset(block for table in tables for block in table)
        assert there.issuperset(pool.find([_digest(n)])[0] for n in range(number) if pool.find([_digest(n)]))
        assert chunks.num_ready == len(there.intersection(chunks))
