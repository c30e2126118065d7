"""Steps with drafted tokens: whatever is drafted and accepted, answers and books are those of one token a step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.states import StatePool
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.drafts.drafter import BESIDE_PROMPTS, drafts_room
from homenode.engine.scheduler.events import StepDone
from homenode.engine.scheduler.steps.budget import StepPlan
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.scheduler.steps.time_bound import TimeBound
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.speculation.config import Speculation
from homenode.engine.step import NO_TOKEN, Advance, StepResult, WorkerLimits, num_accepted
from homenode.errors import InternalError
from homenode.testing.scripted_executor import scripted_token
from tests.examples import seeds
from tests.pure import test_kv_transfer_properties as handover
from tests.pure import test_schedule_properties as plain
from tests.pure.schedule_bench import BLOCK_BYTES, Bench, limits_of

_MOST = 6
_VOCAB = 40
_FEW = 4


class Drafts:
    """Guesses of which a random beginning is right."""

    def __init__(self, rng: random.Random, most: int = _MOST) -> None:
        self._rng, self._most = rng, most

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        count = self._rng.randrange(self._most + 1)
        right = self._rng.randrange(count + 1)
        known = list(tokens)
        for _ in range(right):
            known.append(scripted_token(known, _VOCAB))
        return known[len(tokens) :] + [self._rng.randrange(_VOCAB) for _ in range(count - right)]


def _bench(
    rng: random.Random,
    *,
    drafts: bool = True,
    stages: int = 1,
    lookahead: int = 0,
    states: bool = False,
    **more: object,
) -> Bench:
    bench = plain.make_bench(rng, lookahead, stages=stages, states=states, **more)  # type: ignore[arg-type]
    if not drafts:
        return bench
    return Bench(
        bench.config,
        limits=msgspec.structs.replace(bench.limits, max_drafted=_MOST),
        lookahead=lookahead,
        caching=bench.scheduler.allocator.cache.enabled,
        fault=bench.fault,
        stages=stages,
        micro_batches=bench.micro_batches if stages > 1 else 0,
        drafter=Drafts(random.Random(rng.random())),
    )


@pytest.mark.parametrize(
    ("drafted", "drawn", "accepted"),
    [
        ((), [7], 1),
        ((7, 8), [7, 8, 9], 3),
        ((7, 8), [7, 9, 9], 2),
        ((7, 8), [6, 8, 9], 1),
        ((7, 8), [NO_TOKEN, 8, 9], 0),
        ((7, 8), [7, NO_TOKEN, 9], 1),
        ((7, 8), [7, 8, NO_TOKEN], 2),
    ],
)
def test_tokens_count_up_to_the_first_that_nobody_guessed(
    drafted: tuple[int, ...], drawn: list[int], accepted: int
) -> None:
    assert num_accepted(drafted, drawn) == accepted


@pytest.mark.parametrize(("stages", "lookahead"), [(1, 0), (1, 1), (2, 0), (3, 0)])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_any_life_with_drafts_keeps_every_promise(seed: int, states: bool, stages: int, lookahead: int) -> None:
    """Preemption, aborts, lost steps and lost workers, prompts beside, snapshots of states, ends amid accepted tokens.
    Every answer is what its request yields alone in the world (`schedule_bench`).
    """
    rng = random.Random(1000 * stages + 10 * seed + states)
    bench = _bench(rng, stages=stages, lookahead=lookahead, states=states, faults=seed % 3 == 0)
    for _ in range(200):
        (plain.move_with_losses if seed % 2 else plain.move)(bench, rng, *(() if seed % 2 else (0.12,)))
        _check_blocks(bench)
    bench.run()


@pytest.mark.parametrize(("stages", "lookahead"), [(1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("seed", range(4))
def test_any_life_with_lookup_keeps_every_promise(seed: int, stages: int, lookahead: int) -> None:
    """The same with what engines draft from: of so few kinds of tokens some guesses are right."""
    rng = random.Random(100 * stages + seed)
    bench = plain.make_bench(rng, lookahead, stages=stages, states=seed % 2 == 0, faults=seed == 3)
    bench = Bench(
        bench.config,
        limits=msgspec.structs.replace(bench.limits, vocab_size=_FEW),
        lookahead=lookahead,
        caching=bench.scheduler.allocator.cache.enabled,
        fault=bench.fault,
        stages=stages,
        micro_batches=bench.micro_batches if stages > 1 else 0,
        speculation=Speculation(("ngram", "auto")[seed // 2], None, 1 + seed, 2),
    )
    submit = bench.submit

    def submit_few(prompt: list[int], *, stop_token_ids: tuple[int, ...] = (), **more: Any) -> int:
        stops = tuple(token % _FEW for token in stop_token_ids)
        return submit([token % _FEW for token in prompt], stop_token_ids=stops, **more)

    bench.submit = submit_few  # type: ignore[method-assign]
    for _ in range(150):
        (plain.move_with_losses if seed % 2 else plain.move)(bench, rng, *(() if seed % 2 else (0.12,)))
        _check_blocks(bench)
    bench.run()
    statistics = bench.scheduler.statistics()
    assert sum(statistics.accepted_by_position) == statistics.accepted_tokens
    assert statistics.accepted_by_position == sorted(statistics.accepted_by_position, reverse=True)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("seed", seeds(6))
def test_any_life_between_engines_with_drafts_keeps_every_promise(seed: int, lookahead: int) -> None:
    """Pages that are sent, and answers that go on after pages that came."""
    rng = random.Random(seed)
    states, drafter = seed % 2 == 0, Drafts(random.Random(seed))
    bench = handover.make_bench(rng, lookahead, seed % 3 == 0, 1 + seed % 2, states, drafter=drafter)
    for _ in range(200):
        handover.move(bench, rng)
    bench.settle()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("seed", seeds(6))
def test_drafts_take_no_memory_from_the_machine(seed: int, lookahead: int) -> None:
    """Of memory that grows they use what is there."""
    rng = random.Random(seed)
    blocks, length, group = rng.choice([(16, 64, 1), (24, 90, 4), (60, 50, 8)])
    limits = limits_of(blocks, max_model_len=length, chunk_blocks=rng.choice([1, 2, 5]), group_blocks=group)
    bench = Bench(
        SchedulerConfig(max_num_batched_tokens=rng.choice([8, 17, 40]), max_num_seqs=rng.choice([1, 5, 8])),
        limits=msgspec.structs.replace(limits, max_drafted=_MOST),
        lookahead=lookahead,
        headroom=lambda: rng.choice([0, 0, 3, 8, 1000]) * BLOCK_BYTES,
        release_s=rng.choice([0.0, 0.5, 3.0]),
        drafter=Drafts(random.Random(seed)),
    )
    for _ in range(200):
        if rng.random() < 0.1:
            bench.tick(rng.choice([0.1, 0.3, 1.0, 7.0]))
        else:
            plain.move_with_losses(bench, rng)
    bench.run()


def test_lives_accept_tokens_and_reject_tokens() -> None:
    """The lives above are worth something only if drafts come out both ways."""
    rng = random.Random(5)
    bench = _bench(rng)
    for _ in range(200):
        plain.move(bench, rng, 0.12)
    bench.run()
    statistics = bench.scheduler.statistics()
    assert 20 < statistics.accepted_tokens < statistics.drafted_tokens - 10
    assert statistics.generation_tokens >= sum(len(bench.tokens(number)) for number in bench.requests)


@pytest.mark.parametrize("step_time", [150.0, 60.0])
@pytest.mark.parametrize("readers", [1, 8])
def test_drafts_beside_a_prompt_leave_the_step_its_time_and_the_prompt_most_of_it(
    readers: int, step_time: float
) -> None:
    """A millisecond a token, and guesses of as many as anybody takes, all of which are right."""
    taken = {}
    for drafter in (None, _right_tokens):
        limits = limits_of(num_blocks=400, block_size=16, max_model_len=3000)
        bench = Bench(
            SchedulerConfig(step_time=step_time, max_num_batched_tokens=512, max_num_seqs=16),
            limits=msgspec.structs.replace(limits, max_drafted=64, max_sampled_rows=600),
            token_s=0.001,
            drafter=drafter,
        )
        for number in range(readers):
            bench.submit([1 + number] * 16, max_tokens=2900, ignore_eos=True)
        for _ in range(8):
            bench.fill()
            bench.finish_step()
        prompt, drafted, begun = bench.submit([30] * 1000, max_tokens=1), 0, bench.now
        while not bench.outputs.get(prompt):
            step = bench.step()
            assert step is not None
            drafted += sum(len(item.drafted) for item in step.items)
            assert step.num_tokens <= 1.35 * step_time, step.num_tokens  # a first piece before costs are known better
            bench.finish_step()
        taken[drafter is not None] = bench.now - begun
        assert (drafted > 0) == (drafter is not None)
    assert taken[True] <= 1.25 * taken[False], taken


def test_those_who_cannot_begin_take_no_drafts_from_those_who_run() -> None:
    """Prompts that wait for a slot are in no step."""
    drafted = {}
    for queued in (0, 3):
        limits = limits_of(num_blocks=400, block_size=16, max_model_len=3000)
        bench = Bench(
            SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=2),
            limits=msgspec.structs.replace(limits, max_drafted=_MOST, max_sampled_rows=600),
            token_s=0.02,
            drafter=lambda tokens: _right_tokens(tokens, _MOST),
        )
        for number in range(2 + queued):
            bench.submit([1 + number] * 16, max_tokens=2900, ignore_eos=True)
        for _ in range(12):
            step = bench.step()
            assert step is not None
            bench.finish_step()
        drafted[queued] = sum(len(item.drafted) for item in step.items)
    assert drafted[3] == drafted[0] == 2 * _MOST


@pytest.mark.parametrize("tokens", [1, 8])
def test_drafts_beside_prompts_pay_for_the_experts_that_these_do_not_read(tokens: int) -> None:
    """A piece of a prompt reads nearly all experts of a mixture, so that guesses beside it cost what rows cost."""
    costs = StepCosts(expert_share=8 / 128)
    draw = random.Random(1)

    def took(decodes: StepLoad, prompts: StepLoad) -> float:
        return (
            0.002
            + 0.001 * (decodes.tokens + prompts.tokens)
            + 0.06 * costs.expert_share(decodes.tokens + prompts.tokens)
        )

    for _ in range(300):
        decoding, piece = draw.randrange(9), draw.choice([0, 0, 16, 64])
        loads = StepLoad(decoding, decoding, 0, 0, decoding), StepLoad(piece, 1, piece, 0, 1) if piece else NO_LOAD
        if decoding or piece:
            costs.learn(*loads, took(*loads))
    plan = StepPlan(1, 512, 600)
    plan.decoding, plan.answers = [None] * tokens, StepLoad(tokens, tokens, 0, 0, tokens)  # type: ignore[list-item]
    left = 0.15 - costs.seconds(plan.answers)
    plan.bound = TimeBound(costs, 0.15, whole=False)
    share = BESIDE_PROMPTS * left / 0.001  # rows of a millisecond
    room = drafts_room(plan, costs, 64, beside_prompts=True)
    assert 0.4 * share <= room <= 1.2 * share
    assert drafts_room(plan, costs, 1, beside_prompts=True) == min(room, tokens)  # no more than there are
    plan.bound = None
    assert drafts_room(plan, costs, 64, beside_prompts=True) == BESIDE_PROMPTS * 512
    assert drafts_room(plan, costs, 64, beside_prompts=False) == 512  # tokens of a step


def _right_tokens(tokens: Sequence[int], count: int = 64) -> list[int]:
    known = list(tokens)
    for _ in range(count):
        known.append(scripted_token(known, _VOCAB))
    return known[len(tokens) :]


def _check_blocks(bench: Bench) -> None:
    """Between steps a sequence that decodes owns the blocks of what was computed and counts, and those it was started
    with.
    """
    if bench.scheduler.pending_steps:
        return
    blocks_for = bench.scheduler.allocator.blocks_for
    for sequence in bench.running():
        allocation = sequence.allocation
        if allocation and allocation.decoding and allocation.started and not sequence.exhausted:
            assert allocation.scheduled == len(sequence.tokens) - 1
            assert len(allocation.blocks) == blocks_for(allocation.scheduled)


@settings(derandomize=True, max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    states=st.booleans(),
    shapes=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 30), st.booleans(), st.sampled_from([None, 0])), max_size=6
    ),
)
def test_outputs_and_caches_are_those_of_one_token_a_step(
    seed: int, states: bool, shapes: list[tuple[int, int, bool, int | None]]
) -> None:
    """Texts, why they end, log-probabilities, how many tokens were counted, and what the prefix cache has."""
    found = []
    for drafts in (False, True):
        rng = random.Random(seed)
        limits = limits_of(
            num_blocks=400, state_slots=60 * states, state_interval=8, max_sampled_rows=100, max_model_len=64
        )
        bench = Bench(
            SchedulerConfig(max_num_batched_tokens=400, max_num_seqs=8),
            limits=msgspec.structs.replace(limits, max_drafted=_MOST) if drafts else limits,
            drafter=Drafts(rng) if drafts else None,
        )
        for number, (length, most, ignores, logprobs) in enumerate(shapes):
            prompt = [(7 * number + i) % _VOCAB for i in range(length)]
            bench.submit(prompt, max_tokens=most, ignore_eos=ignores, logprobs=logprobs)
        bench.run()
        statistics, pool = bench.scheduler.statistics(), bench.scheduler.allocator.pool
        snapshots = bench.scheduler.allocator.states.snapshots if bench.scheduler.allocator.states else ()
        answers = [
            (
                bench.tokens(number),
                [logprob for output in bench.outputs[number] for logprob in output.logprobs],
                bench.final(number).finish_reason,
                bench.final(number).stop_token,
            )
            for number in bench.requests
        ]
        counted = (statistics.generation_tokens, statistics.prompt_tokens, statistics.prefix_hits)
        found.append((answers, counted, set(pool.digests), pool.num_free, set(snapshots)))
    assert found[0] == found[1]


def test_right_guesses_take_fewer_steps() -> None:
    steps = {}
    for most in (0, 3):
        bench = Bench(
            limits=limits_of(max_model_len=64) if not most else _drafting(3),
            lookahead=1,
            drafter=(lambda tokens: _following(tokens, 3)) if most else None,
        )
        bench.submit([1, 2], max_tokens=41, ignore_eos=True)
        bench.run()
        steps[most] = len(bench.steps)
    assert steps[3] == 1 + 10  # a prompt, then four tokens a step


def _drafting(most: int, **more: int) -> WorkerLimits:
    return msgspec.structs.replace(limits_of(**more), max_drafted=most)


def _following(tokens: Sequence[int], count: int) -> list[int]:
    known = list(tokens)
    for _ in range(count):
        known.append(scripted_token(known, _VOCAB))
    return known[len(tokens) :]


def test_only_some_of_a_batch_have_drafts() -> None:
    bench = Bench(
        limits=_drafting(3, max_sampled_rows=16),
        drafter=lambda tokens: _following(tokens, 3) if tokens[0] % 2 else [],
    )
    for first in range(4):
        bench.submit([first, 2], max_tokens=20, ignore_eos=True)
    bench.run()
    rows = [sorted(item.draws for item in step.items) for step in bench.steps]
    assert [1, 1, 4, 4] in rows
    assert bench.scheduler.statistics().accepted_tokens > 0


def test_drafts_take_no_block_from_anybody() -> None:
    """Where all blocks are in use or cached, drafts end where the sequence's own block does."""
    bench = Bench(limits=_drafting(6, num_blocks=16), drafter=lambda tokens: _following(tokens, 6))
    bench.submit([9] * 27, max_tokens=4, ignore_eos=True)
    bench.run()
    cached = bench.scheduler.allocator.pool.num_cached
    assert cached == 7
    for first in range(2):
        bench.submit([first] * 15, max_tokens=17, ignore_eos=True)
    for _ in range(3):
        bench.step()
        bench.finish_step()
    assert bench.scheduler.statistics().preemptions == 0
    bench.run()


def test_prompts_get_on_beside_drafts() -> None:
    bench = Bench(
        SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=2),
        limits=_drafting(6),
        drafter=lambda tokens: _following(tokens, 6),
    )
    bench.submit([1, 2], max_tokens=40, ignore_eos=True)
    for _ in range(2):
        bench.step()
        bench.finish_step()
    bench.submit([3] * 20, max_tokens=2)
    for _ in range(12):
        bench.step()
        bench.finish_step()
    assert bench.tokens(1), "the prompt was not computed"
    bench.run()


def test_what_is_said_of_the_last_step_waits_for_its_result() -> None:
    """With steps planned ahead: none is while guesses are on their way, and one is where there are no guesses."""
    bench = Bench(limits=_drafting(3), lookahead=1, drafter=lambda tokens: _following(tokens, 3))
    bench.submit([1, 2], max_tokens=20, ignore_eos=True)
    assert bench.step() is not None and bench.step() is None
    bench.finish_step()
    assert bench.step() is not None and bench.step() is None
    bench.run()


@pytest.mark.parametrize("waits", [False, True])
def test_nobody_is_asked_what_follows_tokens_that_are_not_known(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []  # whether all tokens were there

    def drafts(_choice: DraftChoice, decoding: Sequence[Any], _load: object, _most: int) -> dict[int, tuple[int, ...]]:
        asked.append(all(each.allocation.scheduled == len(each.tokens) for each in decoding))
        return {}

    bench = Bench(limits=limits_of(max_model_len=64), lookahead=1, speculation=Speculation("auto", None, 4, 2))
    monkeypatch.setattr(DraftChoice, "drafts", drafts)
    monkeypatch.setattr(DraftChoice, "awaits", lambda _choice, _running: waits)
    bench.submit([1, 2], max_tokens=20, ignore_eos=True)
    bench.submit([3, 2], max_tokens=20, ignore_eos=True)
    bench.run()
    assert all(asked) and len(asked) >= 15 if waits else len(asked) <= 2, asked


@pytest.mark.parametrize(
    ("tokens", "drafted", "words"),
    [
        ([1, 2], (), "accepted tokens that were not drafted"),
        ([1], (99,), "drafted a token that is not in the vocabulary"),
        ([1], (-1,), "drafted a token that is not in the vocabulary"),
    ],
)
def test_advances_that_cannot_be_are_refused(tokens: list[int], drafted: tuple[int, ...], words: str) -> None:
    bench = Bench(limits=_drafting(3))
    bench.submit([1, 2], max_tokens=20)
    step = bench.step()
    assert step is not None
    with pytest.raises(InternalError, match=words):
        bench.scheduler.apply(StepDone(0.0, StepResult(step.number, [Advance(0, tokens, drafted=drafted)])))


def test_a_nan_amid_drafts_ends_the_request_when_its_turn_has_come() -> None:
    """What was accepted before it is told, as it would have been one by one."""
    bench = Bench(limits=_drafting(3), drafter=lambda tokens: _following(tokens, 3))
    bench.submit([1, 2], max_tokens=20, ignore_eos=True)
    bench.step()
    bench.finish_step()
    step = bench.step()
    assert step is not None and step.items[0].draws == 4
    first = step.items[0].drafted[0]
    bench.executor.result()
    bench.apply(StepDone(0.0, StepResult(step.number, [Advance(0, [first])])))
    assert bench.tokens(0)[-1] == first
    step = bench.scheduler.next_step()
    assert step is not None and (step.items[0].start, step.items[0].count) == (3, 1)
    bench.apply(StepDone(0.0, StepResult(step.number, [Advance(0, [])])))
    assert bench.final(0).error_kind == "NotANumberError"
    assert bench.scheduler.allocator.pool.num_owned == 0


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ((KvAllocator, "truncate"), "blocks and needs|is at .*, not"),
        ((StatePool, "roll_back"), "from another state in slot|slot .* of the state memory is in"),
    ],
)
def test_a_cut_that_is_left_out_is_found(cut: tuple[type, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above are worth something only if they fail when they should."""
    monkeypatch.setattr(*cut, lambda *arguments: None)
    rng = random.Random(3)
    bench = Bench(limits=_drafting(6, state_slots=60), drafter=Drafts(rng))
    for first in range(4):
        bench.submit([first, 2], max_tokens=40, ignore_eos=True)
    with pytest.raises(InternalError, match=words):
        bench.run()
