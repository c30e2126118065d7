"""Heads of one engine's KV go to as many ranks as another has, processes of their own that map the same memory, and
back.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import pytest

from homenode.compute.kv_memory import KvLayout
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeKvMemory, copy_kv
from homenode.compute.ops import KvGeometry
from homenode.transfer.state.pages import Heads, head_spans
from tests.native.kv_bytes import head_of
from tests.native.kv_memories import pool, shared_cache
from tests.waiting import PATIENCE_S

_FORK = multiprocessing.get_context("fork")
GEOMETRY = KvGeometry.uniform(2, 8, 16, 64, "bf16")
TABLE, TOKENS = [3, 1], 100
PAGES = 2
WHOLE: list[Heads] = [(0, 8)]
RANKS = [[(0, 4), (4, 8)], [(0, 3), (3, 6), (6, 8)], [(n, n + 1) for n in range(8)], [(0, 4), (0, 4), (4, 8), (4, 8)]]


def part(heads: Heads) -> KvGeometry:
    return KvGeometry.uniform(2, heads[1] - heads[0], 16, 64, "bf16")


def _rank(number: int, sources: list[tuple[int, KvLayout, Heads]], targets: list[Heads], said: Connection) -> None:
    """Takes what it needs from wherever it is; says the digests of each head."""
    backend = NativeBackend([-1], spin_us=20)
    own = pool(backend, part(targets[number]), 4)
    spans = head_spans([heads for _, _, heads in sources], targets)
    assert not isinstance(spans, str), spans
    for span in spans:
        if span.target == number:
            fd, layout, (first, _) = sources[span.source]
            wanted = (span.first_head - first, span.past_head - first)
            copy_kv(
                own,
                TABLE,
                backend.map_kv(fd, layout),
                TABLE,
                0,
                PAGES,
                TOKENS,
                wanted,
                span.first_head - targets[number][0],
            )
    said.send(own.digests(TABLE, 0, PAGES, TOKENS))


def by_head(memories: list[NativeKvMemory], ranks: list[Heads], head: int) -> list[bytes]:
    """Digests of a head's pages in the first rank that has it."""
    memory, (first, _) = next(
        (memory, heads) for memory, heads in zip(memories, ranks, strict=True) if heads[0] <= head < heads[1]
    )
    at = 8 * (head - first)
    return [digest[at : at + 8] for digest in memory.digests(TABLE, 0, PAGES, TOKENS)]


def same_heads(memories: list[NativeKvMemory], ranks: list[Heads]) -> None:
    """Ranks that have the same head have the same bytes of it."""
    for memory, (first, past) in zip(memories, ranks, strict=True):
        for head in range(first, past):
            of, (its_first, _) = next((m, r) for m, r in zip(memories, ranks, strict=True) if r[0] <= head < r[1])
            for layer in range(len(GEOMETRY.layers)):
                for block in TABLE:
                    np.copyto(head_of(memory, layer, block, head - first), head_of(of, layer, block, head - its_first))


@pytest.mark.parametrize("ranks", RANKS, ids=["2", "3 uneven", "8", "4 with copies"])
@pytest.mark.parametrize("down", [True, False], ids=["one to many", "many to one"])
def test_each_rank_gets_its_heads_whatever_the_other_side_is_cut_into(
    backend: NativeBackend, ranks: list[Heads], down: bool
) -> None:
    here, there = (WHOLE, ranks) if down else (ranks, WHOLE)
    memories = [shared_cache(backend, part(heads), 4, seed) for seed, heads in enumerate(here)]
    same_heads(memories, here)
    sources = [(memory.fd, memory.layout, heads) for memory, heads in zip(memories, here, strict=True)]
    pipes = [_FORK.Pipe(duplex=False) for _ in there]
    processes = [_FORK.Process(target=_rank, args=(n, sources, there, pipe[1])) for n, pipe in enumerate(pipes)]
    for process in processes:
        process.start()
    for (said, _), (first, past) in zip(pipes, there, strict=True):
        assert said.poll(PATIENCE_S), "a rank says nothing"
        digests = said.recv()
        for head in range(first, past):
            at = 8 * (head - first)
            assert [digest[at : at + 8] for digest in digests] == by_head(memories, here, head), f"head {head}"
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
