"""The block pool against a plain model of it, and the orders it promises."""

from __future__ import annotations

import random

import pytest

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.runs import FreeRuns
from homenode.errors import InternalError


def _digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_a_sequence_lies_in_one_piece_and_grows_into_what_follows_it() -> None:
    pool = BlockPool(100)
    first = pool.allocate(10)
    assert first == list(range(10))
    assert pool.allocate(1, after=9) == [10]
    second = pool.allocate(5)
    assert second == list(range(11, 16))  # the longest run
    assert pool.allocate(2, after=3) == [16, 17]  # 4 is owned: no block follows
    pool.release(first)
    assert pool.allocate(3) == [18, 19, 20]  # 82 free blocks in a row rather than the 10 given back
    assert pool.allocate(1, after=-1) == [21]


def test_what_follows_is_taken_before_a_longer_run() -> None:
    pool = BlockPool(20)
    blocks = pool.allocate(10)
    pool.release(blocks[2:6])
    assert pool.allocate(5, after=1) == [2, 3, 4, 5, 10]


def test_runs_fall_back_to_pieces_when_no_run_is_long_enough() -> None:
    pool = BlockPool(9)
    blocks = pool.allocate(9)
    pool.release([blocks[0], blocks[1], blocks[3], blocks[4], blocks[5], blocks[8]])
    assert pool.allocate(5) == [3, 4, 5, 0, 1]
    assert pool.allocate(1) == [8]
    with pytest.raises(InternalError, match="1 KV block wanted, 0 available"):
        pool.allocate(1)


@pytest.mark.parametrize("seed", range(5))
def test_runs_behave_like_a_set_and_stay_merged(seed: int) -> None:
    rng = random.Random(seed)
    runs, free, taken = FreeRuns(200), set(range(200)), list[int]()
    for _ in range(2000):
        if rng.random() < 0.5 and free:
            count = rng.randrange(1, min(len(free), 9) + 1)
            after = rng.randrange(-1, 200)
            got = runs.take(count, after)
            assert len(got) == len(set(got)) == count and set(got) <= free
            assert after < 0 or after + 1 not in free or got[0] == after + 1 or after in free
            free -= set(got)
            taken += got
        elif taken:
            block = taken.pop(rng.randrange(len(taken)))
            runs.add(block)
            free.add(block)
        assert set(runs) == free and len(runs) == len(free)
        runs.audit()


def test_cached_blocks_are_given_up_oldest_first_and_tail_first() -> None:
    pool = BlockPool(8)
    old, new = pool.allocate(3), pool.allocate(3)
    for block in old + new:
        assert pool.publish(block, _digest(block))
    pool.release(old)
    pool.release(new)
    assert pool.num_free == 8 and pool.num_cached == 6
    pool.allocate(2)  # the two that hold nothing
    assert pool.num_cached == 6
    given_up: list[int] = []
    for _ in range(6):
        before = {n for n in range(8) if pool.find([_digest(n)])}
        pool.allocate(1)
        given_up += before - {n for n in range(8) if pool.find([_digest(n)])}
    assert given_up == [*reversed(old), *reversed(new)]


def test_a_hit_takes_a_block_out_of_the_line_of_those_given_up() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, _digest(1))
    pool.publish(second, _digest(2))
    pool.release([second])
    pool.release([first])
    pool.acquire(pool.find([_digest(2)]))
    assert pool.allocate(1) == [first]
    assert pool.num_free == 0 and pool.find([_digest(2)]) == [second]


def test_one_content_is_found_in_one_block_only() -> None:
    pool = BlockPool(2)
    first, twin = pool.allocate(2)
    assert pool.publish(first, _digest(1))
    assert not pool.publish(twin, _digest(1))
    pool.release([twin])
    assert pool.num_cached == 1 and pool.find([_digest(1)]) == [first]


def test_forgetting_all_keeps_owners_and_drops_contents() -> None:
    pool = BlockPool(3)
    kept, dropped = pool.allocate(2)
    pool.publish(kept, _digest(1))
    pool.publish(dropped, _digest(2))
    pool.release([dropped])
    pool.forget_all()
    assert pool.num_cached == 0 and pool.num_free == 2
    pool.audit([[kept]])


def test_mistakes_of_the_caller_are_named() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.release(blocks)
    with pytest.raises(InternalError, match="block 1 given back, but nobody owns it: it was freed twice"):
        pool.release(blocks)
    with pytest.raises(InternalError, match="block 4 given back, but blocks are numbered 0 to 3"):
        pool.release([4])
    with pytest.raises(InternalError, match="given back, but blocks are numbered"):
        pool.release([-1])
    with pytest.raises(InternalError, match="block 0 is free, it cannot be shared"):
        pool.acquire([0])
    with pytest.raises(InternalError, match="block 0 has no owner"):
        pool.publish(0, _digest(0))


def test_the_audit_sees_wrong_counts_and_wrong_places() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.audit([blocks])
    with pytest.raises(InternalError, match="block 0: 1 references counted, 2 owners"):
        pool.audit([blocks, blocks])
    with pytest.raises(InternalError, match="block 0: 1 references counted, 0 owners"):
        pool.audit([])
    pool._free.add(blocks[0])
    with pytest.raises(InternalError, match="block 0 is in 2 places"):
        pool.audit([blocks])


@pytest.mark.parametrize("seed", range(4))
def test_any_use_leaves_every_block_in_one_place(seed: int) -> None:
    rng = random.Random(seed)
    pool, owners = BlockPool(40), list[list[int]]()
    for _ in range(1500):
        if rng.random() < 0.5 and pool.num_free:
            found = pool.find([_digest(rng.randrange(60))])
            pool.acquire(found)
            owners.append(found + pool.allocate(rng.randrange(min(5, pool.num_free) + 1)))
            for block in owners[-1]:
                if rng.random() < 0.5:
                    pool.publish(block, _digest(rng.randrange(60)))
        elif owners:
            pool.release(owners.pop(rng.randrange(len(owners))))
        pool.audit(owners)
    for table in owners:
        pool.release(table)
    assert pool.num_free == 40
