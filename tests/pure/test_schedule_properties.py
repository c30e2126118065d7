"""Random lives of a scheduler. The invariants are in schedule_bench; here is what happens to it."""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.inputs import PlacedRows, PromptRows
from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step
from homenode.errors import InternalError
from tests.examples import MANY, examples, seeds
from tests.pure.schedule_bench import BLOCK_BYTES, Bench, limits_of

_STEMS = [[random.Random(7 * n).randrange(40) for _ in range(60)] for n in range(4)]  # beginnings that prompts share
# How a request may end; the last: its deadline.
_BORNE = ("CapacityError", "ContextLengthError", "OverloadedError", "WorkerLostError", "UserError")
# Stages, lookahead, faults: only one stage has a step made ahead.
_ONE_STAGE = [(1, 0, False), (1, 0, True), (1, 1, False), (1, 1, True)]


def submit(bench: Bench, rng: random.Random, keys: tuple[str, ...] = ("",)) -> None:
    stem = rng.choice(_STEMS)[: rng.choice([3, 10, rng.randrange(1, bench.limits.max_model_len)])]
    tail = [rng.randrange(40) for _ in range(rng.randrange(5))]
    bench.submit(
        (stem + tail)[: bench.limits.max_model_len + rng.randrange(2)],
        priority=rng.choice([0, 0, 0, 1, -1]),
        salt=rng.choice(["", "", "", "other"]),
        key=rng.choice(keys) if len(keys) > 1 else keys[0],
        deadline=bench.now + rng.randrange(1, 30) if rng.random() < 0.1 else None,
        max_tokens=rng.choice([0, 1, 8, 30, 1000, 1000]),
        min_tokens=rng.choice([0, 0, 0, 5]),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=tuple(rng.sample(range(40), 1)) if rng.random() < 0.2 else (),
        logprobs=rng.choice([None, None, 0]),
        prompt_logprobs=0 if rng.random() < 0.1 else None,
    )


def move(bench: Bench, rng: random.Random, arrivals: float, keys: tuple[str, ...] = ("",)) -> None:
    draw = rng.random()
    if draw < arrivals:
        submit(bench, rng, keys)
    elif draw < arrivals + 0.03 and bench.requests:
        bench.abort(rng.randrange(len(bench.requests)), rng.choice(["abort", "stop"]))
    elif draw < arrivals + 0.04:
        bench.tick(rng.choice([1.0, 20.0]))
    elif draw < arrivals + 0.043:
        bench.reset()
    elif draw < 0.6:
        bench.step()
    else:
        bench.finish_step()


def move_with_losses(bench: Bench, rng: random.Random) -> None:
    """As above, while workers come and go."""
    draw = rng.random()
    if draw < 0.02:
        bench.lose()
    elif draw < 0.12 and not bench.executor.serving:
        bench.restore()
    else:
        move(bench, rng, arrivals=0.12)


def make_bench(
    rng: random.Random,
    lookahead: int,
    faults: bool = False,
    stages: int = 1,
    micro_batches: int = 0,
    states: bool = False,
    token_s: float | None = None,
    groups: bool = True,
) -> Bench:
    """`groups`: the blocks of some benches lie in groups on several NUMA nodes."""
    blocks, length = rng.choice([(16, 64), (12, 40), (24, 90), (60, 50), (8, 64)])
    seqs = rng.choice([1, 2, 5, 12])
    chunked = rng.random() < 0.75
    config = SchedulerConfig(
        max_num_batched_tokens=max(seqs, rng.choice([3, 8, 17, 40]) if chunked else length),
        max_num_seqs=seqs,
        enable_chunked_prefill=chunked,
        max_num_queued_requests=rng.choice([0, 0, 4]),
        max_num_queued_tokens=rng.choice([0, 0, 100]),
        max_preemptions=rng.choice([0, 1, 8]),
    )
    limits = limits_of(
        num_blocks=blocks,
        max_model_len=length,
        max_sampled_rows=max(seqs, rng.choice([1, 6, 30])),
        group_blocks={16: 4, 60: 8}.get(blocks, 1) if groups else 1,
    )
    if states:
        slots, interval = rng.choice([1, 2, 3, seqs, seqs + 3, 40]), rng.choice([4, 8, 20, 400])
        limits = msgspec.structs.replace(limits, state_slots=slots, state_interval=interval)
    lost = rng.sample(range(200), 4) if faults else []

    def fault(step: Step) -> Exception | None:
        return RuntimeError("worker lost") if step.number in lost else None

    caching = rng.random() < 0.8
    return Bench(
        config,
        limits=limits,
        lookahead=lookahead,
        caching=caching,
        fault=fault,
        stages=stages,
        micro_batches=micro_batches,
        token_s=token_s,
    )


@pytest.mark.parametrize(("stages", "lookahead", "faults"), [*_ONE_STAGE, (2, 0, False)])
@pytest.mark.parametrize("seed", seeds(25))
def test_any_life_of_several_keys_keeps_every_promise(seed: int, faults: bool, lookahead: int, stages: int) -> None:
    """Who goes first changes no token of anybody, and everybody is answered."""
    rng = random.Random(seed)
    bench = make_bench(rng, lookahead, faults, stages, token_s=rng.choice([0.0, 0.05]))
    for _ in range(300):
        move(bench, rng, arrivals=0.12, keys=("", "ada", "bob"))
    bench.run()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", seeds(25))
def test_any_life_keeps_every_promise(seed: int, faults: bool, lookahead: int) -> None:
    rng = random.Random(seed)
    bench = make_bench(rng, lookahead, faults)
    for _ in range(300):
        move(bench, rng, arrivals=0.12)
    if seed % 3 == 0:
        bench.drain()
        submit(bench, rng)
        assert bench.outputs[len(bench.requests) - 1][-1].finish_reason == "error"
    bench.run()


def pictured(rng: random.Random, most: int) -> list[PlacedRows]:
    """A picture or two whose rows see each other, of up to `most` rows each."""
    found, at = [], rng.randrange(4)
    for _ in range(rng.choice([1, 1, 2])):
        count = rng.randrange(1, most + 1)
        digests = b"".join(bytes([at, rng.randrange(3)]) * 16 for _ in range(count))
        found.append(PlacedRows(at, PromptRows(bytes(4 * count), 1, digests, 7, together=True)))
        at = found[-1].past + rng.randrange(3)
    return found


@pytest.mark.parametrize(("stages", "lookahead"), [(1, 0), (2, 0)])
@pytest.mark.parametrize("seed", seeds(40))
def test_any_life_with_pictures_keeps_every_promise(seed: int, lookahead: int, stages: int) -> None:
    """No step cuts a picture whose rows see each other, and none has more tokens for its sake than a step may have,
    whatever share of it others were to have: the scripted worker counts them.
    """
    rng = random.Random(seed)
    bench = make_bench(rng, lookahead, False, stages, token_s=rng.choice([0.0, 0.05]))
    bench = Bench(
        bench.config,
        limits=msgspec.structs.replace(bench.limits, row_columns=1),
        lookahead=lookahead,
        stages=stages,
        token_s=rng.choice([0.0, 0.05]),
    )
    most = min(bench.config.max_num_batched_tokens, bench.limits.max_model_len // 3)
    for _ in range(200):
        if rng.random() < 0.1:
            rows = pictured(rng, most)
            prompt = [rng.randrange(40) for _ in range(rows[-1].past + rng.randrange(5))]
            for each in rows:
                prompt[each.first : each.past] = [7] * len(each.rows)
            bench.submit(prompt, key=rng.choice(["", "ada", "bob"]), rows=rows, max_tokens=rng.choice([1, 8, 30]))
        else:
            move(bench, rng, arrivals=0.05, keys=("", "ada", "bob"))
    bench.run()


@pytest.mark.parametrize(("stages", "lookahead", "faults"), [*_ONE_STAGE, (2, 0, False), (2, 0, True)])
@pytest.mark.parametrize("seed", seeds(25))
def test_any_life_with_states_keeps_every_promise(seed: int, faults: bool, lookahead: int, stages: int) -> None:
    """Whoever goes on from another state than that of its own tokens is found out by the scripted worker."""
    rng = random.Random(seed)
    bench = make_bench(rng, lookahead, faults, stages, states=True)
    for _ in range(300):
        (move_with_losses if faults else partial(move, arrivals=0.12))(bench, rng)
    bench.run()


@settings(derandomize=True, max_examples=examples(60), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 1), st.lists(st.sampled_from("asdtfx"), max_size=60))
def test_short_lives_shrink_to_the_shortest_that_fails(rng: random.Random, lookahead: int, moves: list[str]) -> None:
    bench = make_bench(rng, lookahead)
    for move in moves:
        if move == "a":
            submit(bench, rng)
        elif move == "s":
            bench.step()
        elif move == "d":
            bench.finish_step()
        elif move == "t":
            bench.tick(rng.randrange(20))
        elif move == "x" and bench.requests:
            bench.abort(rng.randrange(len(bench.requests)))
        elif move == "f":
            submit(bench, rng)
            bench.step()
    bench.run()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", seeds(30))
def test_memory_that_comes_and_goes_changes_no_token(seed: int, faults: bool, lookahead: int) -> None:
    """The machine has memory now and then, what is unused goes back, and workers are lost. Everybody gets an answer,
    the right one or 503.
    """
    rng = random.Random(seed)
    blocks, length = rng.choice([(16, 64), (24, 90), (60, 50)])
    limits = limits_of(
        num_blocks=blocks,
        max_model_len=length,
        chunk_blocks=rng.choice([1, 2, 5]),
        group_blocks={24: 4, 60: 8}.get(blocks, 1),
    )
    bench = Bench(
        SchedulerConfig(max_num_batched_tokens=rng.choice([8, 17, 40]), max_num_seqs=rng.choice([1, 5, 8])),
        limits=limits,
        lookahead=lookahead,
        caching=rng.random() < 0.8,
        headroom=lambda: rng.choice([0, 0, 3, 8, 1000]) * BLOCK_BYTES,
        release_s=rng.choice([0.0, 0.5, 3.0]),
    )
    for _ in range(300):
        if rng.random() < 0.1:
            bench.tick(rng.choice([0.1, 0.3, 1.0, 7.0]))
        elif faults:
            move_with_losses(bench, rng)
        else:
            move(bench, rng, arrivals=0.12)
    bench.run()
    for number in bench.requests:
        assert bench.final(number).error_kind in (None, *_BORNE)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("max_preemptions", [0, 2, 8])
@pytest.mark.parametrize("seed", range(2 if MANY else 1))
def test_preemption_storm_ends_with_every_token_right(seed: int, max_preemptions: int, lookahead: int) -> None:
    """Sixty sequences that each fill most of the memory, admitted far too generously."""
    rng = random.Random(seed)
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=16, max_preemptions=max_preemptions)
    bench = Bench(config, limits=limits_of(num_blocks=20, max_model_len=72), lookahead=lookahead)
    for _ in range(60):
        prompt = [rng.randrange(40) for _ in range(rng.randrange(1, 9))]
        bench.submit(prompt, max_tokens=64, ignore_eos=True, priority=rng.choice([0, 0, 1]))
    bench.run()
    assert bench.scheduler.statistics().preemptions > 0
    assert bench.scheduler.statistics().generation_tokens == sum(len(bench.tokens(n)) for n in bench.requests)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_every_request_aborted_at_every_stage_gives_all_back(lookahead: int) -> None:
    for stage in range(40):
        bench = Bench(limits=limits_of(num_blocks=12), lookahead=lookahead)
        for n in range(10):
            bench.submit([n + 1] * (1 + 3 * n), max_tokens=20, ignore_eos=True)
        for turn in range(stage):
            bench.finish_step() if turn % 3 == 2 else bench.step()
        for n in range(10):
            bench.abort(n)
        while bench.finish_step():
            pass
        bench.check_rest()
        assert bench.scheduler.next_step() is None


def _storm() -> None:
    test_preemption_storm_ends_with_every_token_right(0, 8, 0)


def test_a_planted_double_free_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above are worth something only if they fail when they should."""
    honest = KvAllocator.end

    def frees_twice(self: KvAllocator, sequence: Sequence) -> None:
        blocks = sequence.allocation.blocks if sequence.allocation else []
        honest(self, sequence)
        self.pool.release(blocks[:1])

    monkeypatch.setattr(KvAllocator, "end", frees_twice)
    with pytest.raises(InternalError, match=r"freed twice|references counted"):
        _storm()


def test_a_planted_leak_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = BlockPool.release
    monkeypatch.setattr(BlockPool, "release", lambda self, blocks: honest(self, blocks[1:]))
    with pytest.raises(InternalError, match="references counted"):
        _storm()


def test_a_planted_early_publication_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that can be found before their content is computed: the worker reads back something else."""
    honest = KvAllocator.admit

    def admit(self: KvAllocator, sequence: Sequence, proposal: object, spare: int) -> bool:
        if not honest(self, sequence, proposal, spare):  # type: ignore[arg-type]
            return False
        assert sequence.allocation is not None
        self.cache.publish(sequence.chain, sequence.tokens, sequence.allocation.blocks, 0, len(sequence.tokens))
        return True

    monkeypatch.setattr(KvAllocator, "admit", admit)
    # Scoring cuts the first prompt to eight rows a step, so the second one meets its unfinished blocks in the same
    # step.
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4), limits=limits_of(max_sampled_rows=8))
    bench.submit(_STEMS[0][:40], max_tokens=3, prompt_logprobs=0)
    bench.submit(_STEMS[0][:40], max_tokens=3)
    with pytest.raises(InternalError, match=r"another one's content|which another one uses"):
        bench.run()
