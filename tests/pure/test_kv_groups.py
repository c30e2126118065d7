"""KV blocks in groups that lie on one NUMA node: chunks of positions stay in them, and nothing else is lost by it."""

from __future__ import annotations

import argparse
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.off_node_keys import measure
from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.chunks import ChunkTable, LowestFirst
from tests.examples import examples

GROUP = 4


def make_pool(num_blocks: int, chunk_blocks: int = 0, group: int = GROUP) -> BlockPool:
    """`chunk_blocks`: of memory that is taken when it is used; 0: it is there."""
    return BlockPool(num_blocks, ChunkTable(num_blocks, chunk_blocks) if chunk_blocks else None, group)


def extend(pool: BlockPool, table: list[int], count: int) -> None:
    table += pool.allocate(count, table[-1] if table else -1, len(table))
    assert pool.secure(table)


def split(table: list[int], group: int = GROUP) -> int:
    """How many blocks of a sequence are in another group than the first of their chunk."""
    return sum(block // group != table[index // group * group] // group for index, block in enumerate(table))


def keep(pool: BlockPool, table: list[int]) -> None:
    """Let all blocks of a sequence be found, under their numbers, and end it."""
    for block in table:
        assert pool.publish(block, b"%d" % block)
    pool.release(table)


@pytest.mark.parametrize("chunk_blocks", [0, 1, 3, 16])
@pytest.mark.parametrize("group", [2, 4, 16])
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=12))
@settings(derandomize=True, max_examples=examples(25), deadline=None)
def test_chunks_of_a_lone_sequence_are_groups(group: int, chunk_blocks: int, counts: list[int]) -> None:
    pool, table = make_pool(496, chunk_blocks, group), list[int]()
    for count in counts:
        extend(pool, table, count)
        assert split(table, group) == 0
        assert all(block % group == index % group for index, block in enumerate(table))


@pytest.mark.parametrize("chunk_blocks", [0, 1, 3, 16])
def test_chunks_of_sequences_that_grow_together_are_groups_while_there_are_whole_ones(chunk_blocks: int) -> None:
    pool, tables = make_pool(64 * GROUP, chunk_blocks), [list[int]() for _ in range(16)]
    for _ in range(4 * GROUP):
        for table in tables:
            extend(pool, table, 1)
    assert pool.num_free == 0
    assert [split(table) for table in tables] == [0] * 16


def test_what_is_left_of_groups_is_handed_out_when_none_is_whole() -> None:
    pool = make_pool(3 * GROUP + 1)
    short = [pool.allocate(1) for _ in range(3)]
    assert short == [[0], [4], [8]]
    assert pool.allocate(1, short[0][0], 1) == [1]
    more = [pool.allocate(1)[0] for _ in range(9)]
    assert sorted(more) == [2, 3, 5, 6, 7, 9, 10, 11, 12]
    assert pool.num_free == 0


def test_a_tail_goes_to_what_is_left_where_nobody_is() -> None:
    """A chunk whose beginning was found in the cache, and from which somebody else has gone on there."""
    pool = make_pool(5 * GROUP)
    old, first = pool.allocate(3), pool.allocate(4)
    assert (old, first) == ([0, 1, 2], [4, 5, 6, 7])
    pool.publish(first[0], b"first")
    keep(pool, old)
    hits = pool.find([b"first"])
    pool.acquire(hits)
    second = hits + pool.allocate(5, hits[-1], len(hits))
    assert second == [4, 3, 8, 9, 12, 13]  # 3, which `old` has left; then a whole group, and one for the next chunk
    pool.audit([first, second])


def test_cached_groups_are_given_up_whole_the_longest_unused_first() -> None:
    pool = make_pool(6 * GROUP)
    tables = [pool.allocate(GROUP) for _ in range(6)]
    for table in (tables[2], tables[0], tables[5]):
        keep(pool, table)
    one = pool.allocate(1)
    assert one == [tables[2][0]]
    assert pool.num_cached == 2 * GROUP
    assert pool.allocate(2, one[0], 1) == tables[2][1:3]
    pool.acquire([tables[0][3]])
    assert pool.allocate(1) == [tables[5][0]]  # somebody is in group 0 again
    assert pool.find([b"%d" % tables[0][0]]) == [tables[0][0]]


def test_of_groups_that_are_mostly_free_the_rest_is_handed_out() -> None:
    """Nothing is forgotten for a whole group as long as there is a free block for two cached ones."""
    pool = make_pool(32 * GROUP)
    tables = [pool.allocate(1) for _ in range(32)]
    for table in tables:
        keep(pool, table)
    assert pool.num_free - pool.num_cached == 3 * 32
    held = []
    while pool.num_cached == 32:
        held += pool.allocate(1)
    assert len(held) == (32 * 3 - 32 // 2) // 3 + 2
    assert sum(block % GROUP == 0 for block in held) == 1


@pytest.mark.parametrize("chunk_blocks", [0, 1, 3, 8])
@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.sampled_from("anggprfmw"), st.integers(0, 1 << 16)), max_size=80),
)
@settings(derandomize=True, max_examples=examples(150), deadline=None)
def test_any_life_hands_out_what_there_is_once(chunk_blocks: int, size: int, moves: list[tuple[str, int]]) -> None:
    """After every move each block is in one place, counts are exact, and all that is free can be had at once."""
    pool, tables = make_pool(size, chunk_blocks), list[list[int]]()
    for number, (move, draw) in enumerate(moves):
        free, owned = pool.num_free, pool.num_owned
        if move == "a" and free:  # arrives
            hits = pool.find([b"%d" % (draw % 5)])
            left = free - pool.num_unused(hits)
            pool.acquire(hits)
            count = draw % (left + 1)
            tables.append(hits + pool.allocate(count, hits[-1] if hits else -1, len(hits)))
            assert pool.num_free == left - count
        elif move == "n" and free:  # takes all there is
            tables.append(pool.allocate(free))
            assert (pool.num_free, pool.num_owned) == (0, owned + free)
        elif move == "g" and tables and free:  # grows, behind any block, or another engine's
            table = tables[draw % len(tables)]
            table += pool.allocate(1, table[-1] if table and draw % 7 else size + draw, len(table))
            assert (pool.num_free, pool.num_owned) == (free - 1, owned + 1)
        elif move == "p" and tables and (table := tables[draw % len(tables)]):
            block = table[draw % len(table)]
            if pool.secure([block]):  # what is cached was computed, so its pages are there
                pool.publish(block, b"%d" % (draw % 5 if draw % 2 else number + 5))
        elif move == "r" and tables:
            pool.release(tables.pop(draw % len(tables)))
        elif move == "f" and draw % 4 == 0:
            pool.forget_all()
        elif (chunks := pool.chunks) is not None and move == "m":  # pages come, or there are none
            chunks.credit = draw % 5 if draw % 2 else None
            pool.secure(tables[draw % len(tables)] if tables else [])
        elif chunks is not None and move == "w":
            chunks.withheld = False
            for chunk in chunks.idle_since(chunks.now):
                pool.empty_chunk(chunk)
                chunks.give_back(chunk)
        if pool.chunks is None:
            pool.audit(tables)
        else:  # all but that pages are there: one block of a chunk may be cached while others were not computed
            pool.audit_references(tables)


@pytest.mark.parametrize(("fill", "caching", "part"), [(0.7, True, 0.2), (0.7, False, 0.0), (1.0, False, 0.7)])
@pytest.mark.parametrize("chunk_blocks", [0, 1])
def test_conversations_that_come_and_go_read_less_elsewhere(
    chunk_blocks: int, fill: float, caching: bool, part: float
) -> None:
    """Of the keys that were read over the links without groups no more than a part is left."""
    given = argparse.Namespace(memory=1 << 15, seeds=1, steps=800, chunk_blocks=chunk_blocks)
    before, after = (measure(64, fill, given, grouped=grouped, caching=caching) for grouped in (False, True))
    for nodes in (2, 4):
        assert before.off_node[nodes] > 0.2 * before.keys
        assert after.off_node[nodes] / after.keys <= part * before.off_node[nodes] / before.keys
    assert after.found >= 0.8 * before.found


@pytest.mark.parametrize("num_blocks", [256, 8192])
def test_a_block_costs_as_much_in_a_large_memory(num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    has, lowest = ChunkTable.has, LowestFirst.lowest

    def counting_has(table: ChunkTable, block: int) -> bool:
        nonlocal looks
        looks += 1
        return has(table, block)

    def counting_lowest(numbers: LowestFirst) -> int | None:
        nonlocal looks
        before = len(numbers._heap)
        found = lowest(numbers)
        looks += 1 + before - len(numbers._heap)
        return found

    monkeypatch.setattr(ChunkTable, "has", counting_has)
    monkeypatch.setattr(LowestFirst, "lowest", counting_lowest)
    rng, pool, tables, handed = random.Random(3), make_pool(num_blocks), list[list[int]](), 0
    for number in range(6000):
        if tables and (rng.random() < 0.1 or not pool.num_free):
            keep_some = tables.pop(rng.randrange(len(tables)))
            for block in keep_some[: rng.randrange(len(keep_some) + 1)]:
                pool.publish(block, b"%d %d" % (number, block))
            pool.release(keep_some)
        else:
            if not tables or rng.random() < 0.1:
                tables.append([])
            count = min(pool.num_free, rng.choice([1, 1, 1, 9]))
            extend(pool, tables[-1] if rng.random() < 0.3 else rng.choice(tables), count)
            handed += count
    assert looks <= 3 * GROUP * handed
    pool.audit(tables)
