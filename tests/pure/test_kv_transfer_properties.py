"""Random lives of a scheduler whose KV goes to other engines and comes from them. The invariants are in
kv_transfer_bench and schedule_bench.

They are: no request computes from KV that has not arrived (everything else is rubbish, and the worker reads back what
it uses); no block is written to by anybody while it is lent, or used while an agent may write to it; no block is lost;
every request ends, with the right tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.exports import KvExports
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.sequence import KvImport
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step
from homenode.errors import InternalError
from tests.examples import examples, seeds
from tests.pure.kv_transfer_bench import HandoverBench
from tests.pure.schedule_bench import limits_of

_STEMS = [[random.Random(7 * n).randrange(40) for _ in range(90)] for n in range(4)]  # beginnings that prompts share


def _prompt(bench: HandoverBench, rng: random.Random) -> list[int]:
    stem = rng.choice(_STEMS)[: rng.choice([1, 5, 9, 16, rng.randrange(1, bench.limits.max_model_len)])]
    return (stem + [rng.randrange(40) for _ in range(rng.randrange(3))])[: bench.limits.max_model_len]


def _sampling(rng: random.Random) -> dict[str, object]:
    return {
        "max_tokens": rng.choice([1, 3, 8, 30, 1000]),
        "ignore_eos": rng.random() < 0.5,
        "priority": rng.choice([0, 0, 0, 1, -1]),
        "prompt_logprobs": 0 if rng.random() < 0.05 else None,
    }


def _comes(bench: HandoverBench, rng: random.Random) -> None:
    """An offer, and perhaps its request, or two of them."""
    prompt = [*_prompt(bench, rng), 7][: bench.limits.max_model_len]
    if len(prompt) < 2:
        return
    ticket = bench.offer(
        prompt,
        reserve=rng.random() < 0.6,
        page_tokens=rng.choice([0, 0, 2, 6, 8, 16]),
        salt=rng.choice(["", "", "other"]),
        lie=rng.random() < 0.1,
    )
    bench.prompts[ticket] = prompt
    if rng.random() < 0.5:
        _asks(bench, rng, ticket)


def _asks(bench: HandoverBench, rng: random.Random, ticket: str) -> None:
    bench.ask(
        bench.prompts[ticket],
        ticket,
        deadline=bench.now + rng.randrange(1, 30) if rng.random() < 0.1 else None,
        **_sampling(rng),
    )


def _agent(bench: HandoverBench, rng: random.Random) -> None:
    """Something an agent may do, to any ticket for which it may do it."""
    bench.scribble()
    coming = [t for t, c in bench.coming.items() if c.open]
    going = [t for t, g in bench.going.items() if not g.over]
    draw = rng.random()
    if draw < 0.5 and coming:
        ticket = rng.choice(coming)
        c = bench.coming[ticket]
        pages = c.offer.page_tokens
        upto = min(c.offer.tokens, c.arrived // pages * pages + pages * rng.randrange(1, 4))
        bench.arrive(ticket, c.offer.tokens if rng.random() < 0.3 else upto)
    elif draw < 0.58 and coming:
        bench.fail(rng.choice(coming))
    elif draw < 0.6 and coming:
        bench.quarantine(rng.choice(coming))
    elif draw < 0.7:
        stopped = [t for t, c in bench.coming.items() if (c.stopped and c.writes and not c.quarantined)]
        if stopped:
            bench.fail(rng.choice(stopped))
    elif draw < 0.75:
        unwanted = [
            t
            for t, c in bench.coming.items()
            if c.claimed is None and not c.fetched and not c.stopped and not c.refused
        ]
        if unwanted:
            bench.forget_for_good(rng.choice(unwanted))
    elif going:
        _sends(bench, rng, rng.choice(going))


def _sends(bench: HandoverBench, rng: random.Random, ticket: str) -> None:
    going = bench.going[ticket]
    if not going.admitted and not going.abandoned:
        pages = len(going.wanted.identities) - bench.limits.state_pages
        bench.admit(ticket, held=rng.choice([0, 0, rng.randrange(pages + 1)])) if rng.random() < 0.85 else bench.refuse(
            ticket
        )
    elif rng.random() < 0.1 or going.last or going.abandoned:
        bench.give_back(ticket)


def move(bench: HandoverBench, rng: random.Random) -> None:
    draw = rng.random()
    if draw < 0.05:
        bench.submit(_prompt(bench, rng), **_sampling(rng))  # type: ignore[arg-type]
    elif draw < 0.10:
        bench.send(_prompt(bench, rng), priority=rng.choice([0, 0, 1, -1]))
    elif draw < 0.18:
        _comes(bench, rng)
    elif draw < 0.22 and bench.coming:
        _asks(bench, rng, rng.choice(list(bench.coming)))
    elif draw < 0.25 and bench.requests:
        bench.abort(rng.randrange(len(bench.requests)), rng.choice(["abort", "stop"]))
    elif draw < 0.26:
        bench.tick(rng.choice([1.0, 20.0]))
    elif draw < 0.55:
        _agent(bench, rng)
    elif draw < 0.8:
        bench.step()
    else:
        bench.finish_step()
    bench.read()


def make_bench(
    rng: random.Random,
    lookahead: int,
    faults: bool = False,
    stages: int = 1,
    states: bool = False,
    groups: bool = True,
    drafter: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> HandoverBench:
    """`groups`: the blocks of some benches lie in groups on several NUMA nodes. `drafter`: of up to six tokens."""
    blocks, length = rng.choice([(16, 64), (12, 40), (24, 90), (60, 50), (8, 64), (5, 64)])
    seqs = rng.choice([1, 2, 5, 12])
    chunked = rng.random() < 0.75
    config = SchedulerConfig(
        max_num_batched_tokens=max(seqs, rng.choice([3, 8, 17, 40]) if chunked else length),
        max_num_seqs=seqs,
        enable_chunked_prefill=chunked,
        max_num_queued_requests=rng.choice([0, 0, 6]),
        max_preemptions=rng.choice([0, 1, 8]),
    )
    rows = max(seqs, rng.choice([1, 6, 30]))
    group = {16: 4, 60: 8}.get(blocks, 1) if groups else 1
    limits = limits_of(num_blocks=blocks, max_model_len=length, max_sampled_rows=rows, group_blocks=group)
    if states:
        slots, pages, interval = rng.choice([1, 2, 4, 20]), rng.choice([1, 1, 2]), rng.choice([4, 8, 400])
        limits = msgspec.structs.replace(limits, state_slots=slots, state_interval=interval, state_pages=pages)
    limits = msgspec.structs.replace(limits, max_drafted=6 if drafter else 0)
    lost = rng.sample(range(150), 6) if faults else []

    def fault(step: Step) -> Exception | None:
        return RuntimeError("worker lost") if step.number in lost else None

    caching = rng.random() < 0.8
    return HandoverBench(
        config,
        limits=limits,
        lookahead=lookahead,
        caching=caching,
        fault=fault,
        rng=rng,
        stages=stages,
        drafter=drafter,
    )


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", seeds(25))
def test_any_life_keeps_every_promise(seed: int, faults: bool, lookahead: int) -> None:
    rng = random.Random(seed)
    bench = make_bench(rng, lookahead, faults)
    for _ in range(400):
        move(bench, rng)
    if seed % 3 == 0:
        bench.drain()
    bench.settle()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", seeds(20))
def test_any_life_with_states_keeps_every_promise(seed: int, faults: bool, lookahead: int) -> None:
    """Whoever goes on without the state that was handed over is found out by the scripted worker."""
    rng = random.Random(1000 + seed)
    bench = make_bench(rng, lookahead, faults, states=True)
    for _ in range(400):
        move(bench, rng)
    bench.settle()


@settings(derandomize=True, max_examples=examples(80), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 1), st.booleans(), st.integers(0, 80))
def test_short_lives_shrink_to_the_shortest_that_fails(
    rng: random.Random, lookahead: int, faults: bool, moves: int
) -> None:
    bench = make_bench(rng, lookahead, faults)
    for _ in range(moves):
        move(bench, rng)
    bench.settle()


def _lives(seeds: int = 30) -> None:
    for seed in range(seeds):
        rng = random.Random(seed)
        bench = make_bench(rng, seed % 2)
        for _ in range(300):
            move(bench, rng)
        bench.settle()


def test_kv_used_before_it_has_arrived_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks are worth something only if they fail when they should."""
    honest = KvImports.arrived
    monkeypatch.setattr(KvImports, "arrived", lambda self, kv_import, tokens: honest(self, kv_import, tokens + 1))
    with pytest.raises((InternalError, AssertionError)):
        _lives()


def test_a_block_freed_while_somebody_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(self: KvImports, kv_import: KvImport) -> None:
        if not kv_import.done:
            kv_import.source.stop(kv_import.offer.key)
        self.drop(kv_import)

    monkeypatch.setattr(KvImports, "give_up", give_up)
    with pytest.raises((InternalError, AssertionError)):
        _lives()


def test_a_loan_that_ends_with_its_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = KvExports.end

    def end(self: KvExports, *arguments: object) -> object:
        kv_export = arguments[0].kv_export  # type: ignore[attr-defined]
        told = honest(self, *arguments)  # type: ignore[arg-type]
        if kv_export is not None:
            self._pool.release(kv_export.blocks)
            kv_export.blocks = []
        return told

    monkeypatch.setattr(KvExports, "end", end)
    with pytest.raises((InternalError, AssertionError)):
        _lives()


def test_a_lost_reservation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = BlockPool.release
    monkeypatch.setattr(BlockPool, "release", lambda self, blocks: honest(self, blocks[1:]))
    with pytest.raises(InternalError, match="references counted"):
        _lives()
