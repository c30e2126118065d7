"""Sources of KV blocks besides the engine itself: a store in memory gets what requests leave, and prompts that begin
alike get it back. Whatever happens on the way, every request gets the tokens that it gets alone in the world.

The strict scripted worker reads back all that it uses, so that KV which is not what it should be is found out.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from homenode.engine.kv.block_source import BlockSource
from homenode.engine.request import AdapterChoice
from homenode.engine.scheduler.peer_source import PeerSource
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.speculation.config import Speculation
from homenode.engine.step import Step
from tests.examples import seeds
from tests.pure.kv_transfer_bench import KeepingExecutor
from tests.pure.memory_store import MemoryStore
from tests.pure.schedule_bench import Bench, limits_of

SIZE = 4
SOURCES: tuple[type[BlockSource], ...] = (PeerSource, MemoryStore)  # which mypy holds to the interface


class StoreBench(Bench):
    """The bench with a store beside the KV memory."""

    def __init__(
        self,
        seed: int = 1,
        *,
        num_blocks: int = 64,
        most: int = 10_000,
        lookahead: int = 1,
        lost: set[int] | None = None,
        state_slots: int = 0,
        sequences: int = 4,
        speculation: Speculation | None = None,
    ) -> None:
        def fault(step: Step) -> Exception | None:
            return RuntimeError("lost") if lost and step.number in lost else None

        self.rng = random.Random(seed)
        self.store = MemoryStore(
            SIZE,
            self._read,
            self._write,
            rubbish=[(-1, -1)] * SIZE,
            most=most,
            rng=self.rng,
            slots=lambda: self.executor._slots,
        )
        super().__init__(
            SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=sequences),
            limits=limits_of(num_blocks, SIZE, state_slots=state_slots, state_interval=4 * SIZE),
            lookahead=lookahead,
            stores=[self.store],
            speculation=speculation,
        )
        self.executor = KeepingExecutor(self.limits, max_tokens=32, max_sequences=sequences, fault=fault)

    def _read(self, block: int) -> list[Any]:
        return list(self.executor.memory[block])

    def _write(self, block: int, content: list[Any]) -> None:
        self.executor.memory[block] = list(content)

    def work(self) -> None:
        """One piece of what the store has to do."""
        for event in self.store.work(self.now):
            self.apply(event)

    def settle(self) -> None:
        """Until everything is answered, and the store has nothing left to do."""
        if not self.executor.serving:
            self.restore()
        for _ in range(20_000):
            sent, busy = self.fill(), self.store.busy
            self.work()
            if not (self.finish_step() or sent or busy) and self.scheduler.idle():
                break
        assert self.scheduler.idle() and not self.store.busy
        self.check_rest()

    def empty_cache(self) -> None:
        """The engine forgets all that it has computed, and what was there is there no more."""
        self.scheduler.allocator.pool.forget_all()
        self.executor.memory = [[None] * SIZE for _ in range(self.limits.num_blocks)]
        self.executor._slots = [(-1, -1)] * self.limits.state_slots

    def _check_order(self, step: Step, inside: set[int]) -> None:
        """The first may wait for blocks that are read by the store."""

    def cached(self, number: int) -> int:
        return self.outputs[number][0].cached_tokens


PROMPT = [*range(1, 23)]  # five blocks and two tokens


def test_blocks_go_out_the_cache_is_emptied_and_they_come_back_in() -> None:
    bench = StoreBench()
    first = bench.submit(PROMPT, max_tokens=8)
    bench.settle()
    assert bench.store.pages_out == (len(PROMPT) + 7) // SIZE and bench.scheduler.allocator.pool.num_owned == 0
    bench.empty_cache()
    again = bench.submit(PROMPT, max_tokens=8)
    longer = bench.submit([*PROMPT, *bench.tokens(first), 30, 31], max_tokens=8)
    bench.settle()
    assert bench.tokens(again) == bench.tokens(first)
    assert (bench.cached(first), bench.cached(again)) == (0, 20)
    assert bench.cached(longer) == 28  # with all that the first left
    assert bench.store.pages_in > 0


def test_what_the_cache_holds_is_neither_fetched_nor_stored_again() -> None:
    bench = StoreBench()
    bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    out = bench.store.pages_out
    again = bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    assert (bench.store.pages_in, bench.store.pages_out) == (0, out) and bench.cached(again) == 20


def test_what_the_store_lost_meanwhile_is_computed() -> None:
    bench = StoreBench()
    first = bench.submit(PROMPT, max_tokens=4)
    bench.settle()
    bench.empty_cache()
    again = bench.submit(PROMPT, max_tokens=4)
    bench.fill()
    bench.work()  # a page comes
    bench.store.kept.clear()
    bench.settle()
    assert bench.tokens(again) == bench.tokens(first) and 0 < bench.cached(again) < 20


def test_a_request_that_leaves_while_its_blocks_come_keeps_them_until_nobody_writes() -> None:
    bench = StoreBench(num_blocks=16)
    bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    bench.empty_cache()
    leaving = bench.submit(PROMPT, max_tokens=1)
    bench.fill()
    owned = bench.scheduler.allocator.pool.num_owned
    assert owned
    bench.abort(leaving)
    assert bench.scheduler.allocator.pool.num_owned == owned
    bench.settle()


def test_a_store_is_told_which_of_its_offers_nobody_takes() -> None:
    bench = StoreBench()
    bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    bench.submit(PROMPT, max_tokens=1)  # found in the cache
    assert not bench.store.coming
    bench.settle()


def test_salts_keep_apart_what_is_stored() -> None:
    bench = StoreBench()
    bench.submit(PROMPT, max_tokens=1, salt="ada")
    bench.settle()
    bench.empty_cache()
    other = bench.submit(PROMPT, max_tokens=1, salt="bob")
    bench.settle()
    assert bench.store.pages_in == 0 and bench.cached(other) == 0


def test_adapters_keep_apart_what_is_stored_and_what_is_cached() -> None:
    """Known by what they are made of, whatever their number is after another start."""
    bench = StoreBench()
    first = bench.submit(PROMPT, max_tokens=1, adapter=AdapterChoice(0, "aa"))
    bench.settle()
    for adapter in (None, AdapterChoice(0, "bb")):
        other = bench.submit(PROMPT, max_tokens=1, adapter=adapter)
        bench.settle()
        assert bench.store.pages_in == 0 and bench.cached(other) == 0
    bench.empty_cache()
    again = bench.submit(PROMPT, max_tokens=1, adapter=AdapterChoice(1, "aa"))
    bench.settle()
    assert bench.store.pages_in > 0 and bench.cached(again) > bench.cached(first) == 0


def test_blocks_are_not_stored_from_memory_that_was_lost() -> None:
    bench = StoreBench()
    number = bench.submit(PROMPT, max_tokens=1)
    while not bench.outputs.get(number):
        bench.fill()
        bench.finish_step()
    assert bench.store.going and not bench.store.kept
    bench.lose()
    bench.executor.memory = [[(-2, -2)] * SIZE for _ in range(bench.limits.num_blocks)]
    bench.settle()
    assert not bench.store.kept


def test_states_go_out_with_their_blocks_and_come_back() -> None:
    """Of five blocks there are states behind the first, the second, the fourth and the last."""
    bench = StoreBench(state_slots=12)
    first = bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    bench.empty_cache()
    again = bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    assert bench.tokens(again) == bench.tokens(first) and bench.cached(again) == 20
    bench.empty_cache()
    other = bench.submit([*PROMPT[:15], 39, 38, 37, 36], max_tokens=1)
    bench.settle()
    assert bench.cached(other) == 8  # three blocks are the same, and there is no state behind the third
    third = bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    assert bench.cached(third) == 20  # its blocks are in the cache in part, and its state comes from the store


@pytest.mark.parametrize("running", [5, 6, 7])
def test_a_state_comes_into_a_slot_that_was_left_to_drafts(running: int) -> None:
    """Of eight slots two are, all but one to three are in use, and there are no snapshots to give up."""
    bench = StoreBench(state_slots=8, sequences=8, speculation=Speculation("ngram", None, 8, 2))
    first = bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    bench.empty_cache()
    states = bench.scheduler.allocator.states
    assert states is not None and states.reserved == 2
    for number in range(running):
        bench.submit([30 + number], max_tokens=20, ignore_eos=True)
    bench.step()
    assert (len(states.free), states.num_snapshots) == (8 - running, 0)
    again = bench.submit(PROMPT, max_tokens=1)
    bench.finish_step()
    bench.step()
    while bench.store.busy:  # before anybody is at the end of a block, and leaves a snapshot of an answer
        bench.work()
    bench.finish_step()
    bench.settle()
    assert bench.tokens(again) == bench.tokens(first) and bench.cached(again) == 20


def test_a_state_comes_into_no_slot_that_is_still_to_be_copied() -> None:
    """One of two slots has the snapshot that a sequence begins with in the step in which a state is to come."""
    bench = StoreBench(state_slots=2)
    first = bench.submit(PROMPT[:6], max_tokens=1)
    bench.settle()
    bench.empty_cache()
    prompt = [*range(30, 36)]
    bench.submit(prompt, max_tokens=1)
    bench.settle()
    states = bench.scheduler.allocator.states
    assert states is not None and states.num_snapshots == 1
    longer = bench.submit([*prompt, 7], max_tokens=9, ignore_eos=True)
    again = bench.submit(PROMPT[:6], max_tokens=1)
    bench.settle()
    assert bench.cached(longer) == 4 and bench.tokens(again) == bench.tokens(first)


@pytest.mark.parametrize("slots", [0, 5, 16])
@pytest.mark.parametrize("seed", seeds(12))
def test_whatever_happens_every_request_has_its_own_tokens(seed: int, slots: int) -> None:
    rng = random.Random(seed)
    lost = {rng.randrange(60) for _ in range(seed % 3)}
    most = rng.choice((12, 10_000))
    speculation = Speculation("ngram", None, 4, 2) if seed % 2 else None
    blocks = rng.choice((24, 40))
    bench = StoreBench(seed, num_blocks=blocks, most=most, lost=lost, state_slots=slots, speculation=speculation)
    beginnings = [[rng.randrange(1, 40) for _ in range(24)] for _ in range(3)]
    for _ in range(300):
        move = rng.random()
        if move < 0.15:
            prompt = [
                *rng.choice(beginnings)[: rng.randrange(1, 25)],
                *(rng.randrange(1, 40) for _ in range(rng.randrange(6))),
            ]
            bench.submit(prompt, max_tokens=rng.randrange(1, 9), ignore_eos=True)
        elif move < 0.18 and bench.requests:
            bench.abort(rng.randrange(len(bench.requests)))
        elif move < 0.21:
            bench.scheduler.allocator.pool.forget_all()
        elif move < 0.22:
            bench.lose()
            bench.restore()
        elif move < 0.6:
            bench.work()
        elif move < 0.8:
            bench.fill()
        else:
            bench.finish_step()
    bench.settle()
    bench.empty_cache()
    before = bench.store.pages_in
    for _ in range(2):  # the second of two equal requests finds what the first has left
        bench.submit(beginnings[0], max_tokens=1)
        bench.settle()
        bench.empty_cache()
    assert bench.store.pages_out and bench.store.pages_in > before
