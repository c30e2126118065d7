"""A receiver of KV that has a store takes from it what the other engine would have to send."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.examples import seeds
from tests.pure.kv_transfer_bench import HandoverBench
from tests.pure.memory_store import MemoryStore
from tests.pure.schedule_bench import limits_of

SIZE = 4
PROMPT = [*range(1, 23)]  # five blocks and two tokens


class ReceiverBench(HandoverBench):
    """A receiver with a store, in which the KV of a prompt lies."""

    def __init__(self, seed: int = 1, num_blocks: int = 64) -> None:
        rng = random.Random(seed)
        self.store = MemoryStore(SIZE, self._read, self._write, rubbish=[(-1, -1)] * SIZE, rng=rng)
        super().__init__(limits=limits_of(num_blocks, SIZE), rng=rng, stores=[self.store])

    def _read(self, block: int) -> list[Any]:
        return list(self.executor.memory[block])

    def _write(self, block: int, content: list[Any]) -> None:
        self.executor.memory[block] = list(content)

    def work(self, most: int = 1000) -> None:
        """Have the store do what it has to do, or the first `most` pieces of it."""
        for _ in range(most):
            if not self.store.busy:
                break
            for event in self.store.work(self.now):
                self.apply(event)

    def settle(self, most: int = 20_000) -> None:
        for _ in range(most):
            self.work(1)
            self.scribble()
            sent = self.fill()
            if not (self.finish_step() or sent or self._agent_moves() or self.store.busy):
                break
        self.check_rest()

    def leave(self, prompt: list[int]) -> None:
        """The KV of a prompt lies in the store, and in no block."""
        self.submit(prompt, max_tokens=1)
        self.settle()
        self.scheduler.allocator.pool.forget_all()
        self.executor.memory = [[None] * SIZE for _ in range(self.limits.num_blocks)]


def test_what_the_store_has_is_not_sent() -> None:
    bench = ReceiverBench()
    bench.leave(PROMPT)
    ticket = bench.offer(PROMPT)
    coming = bench.coming[ticket]
    assert not coming.blocks and not coming.refused  # it waits for the store
    bench.work()
    assert coming.arrived == 20 and len(coming.blocks) == 6  # one position is left to be sent
    number = bench.ask(PROMPT, ticket, max_tokens=3)
    bench.arrive(ticket)
    bench.settle()
    assert bench.outputs[number][0].cached_tokens == 21


def test_what_the_cache_has_is_not_read() -> None:
    bench = ReceiverBench()
    bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    before = bench.store.pages_in
    ticket = bench.offer(PROMPT)
    assert bench.coming[ticket].arrived == 20 and bench.store.pages_in == before
    bench.settle()


def test_what_the_store_has_lost_is_sent() -> None:
    bench = ReceiverBench()
    bench.leave(PROMPT)
    ticket = bench.offer(PROMPT)
    bench.work(2)
    bench.store.kept.clear()
    bench.work()
    assert 0 < bench.coming[ticket].arrived < 20 and bench.coming[ticket].blocks
    bench.settle()


def test_an_engine_that_ends_meanwhile_refuses() -> None:
    bench = ReceiverBench()
    bench.leave(PROMPT)
    ticket = bench.offer(PROMPT)
    bench.drain()
    bench.work()
    assert "shutting down" in bench.coming[ticket].refused
    bench.settle()


@pytest.mark.parametrize("seed", seeds(15))
def test_whatever_happens_every_request_gets_its_tokens(seed: int) -> None:
    rng = random.Random(seed)
    bench = ReceiverBench(seed, num_blocks=rng.choice((14, 30, 64)))
    prompts = [[rng.randrange(40) for _ in range(rng.randint(5, 25))] for _ in range(3)]
    for prompt in prompts:
        bench.leave(prompt)
    for _ in range(30):
        prompt = rng.choice(prompts)[: rng.randint(5, 25)]
        match rng.randrange(5):
            case 0:
                bench.submit(prompt, max_tokens=rng.randint(1, 6))
            case 1:
                bench.offer(prompt, reserve=rng.random() < 0.7)
            case 2:
                bench.ask(prompt, bench.offer(prompt), max_tokens=2)
            case 3:
                bench.work(rng.randint(1, 5))
            case _:
                bench.fill()
                bench.finish_step()
    bench.settle()
