"""States that are not keys and values in the scheduler: slots, snapshots, and who goes on from which. The scripted
worker finds out whoever goes on from another state than that of its own tokens.
"""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from homenode.engine.kv.states import SlotAllocation, StatePool
from homenode.engine.messages import StateStats
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.speculation.config import Speculation
from homenode.errors import InternalError
from tests.pure.schedule_bench import Bench, limits_of

_BLOCK = 4
_PROMPT = [(7 * n) % 39 + 1 for n in range(64)]


def _bench(slots: int = 16, interval: int = 400, tokens: int = 32, **limits: int) -> Bench:
    config = SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=8)
    return Bench(config, limits=limits_of(state_slots=slots, state_interval=interval, **limits), lookahead=1)


def _ask(bench: Bench, prompt: list[int], tokens: int = 2) -> int:
    """Run a request to its end; the prompt tokens it found in the cache."""
    number = bench.submit(prompt, max_tokens=tokens, ignore_eos=True)
    bench.run()
    return bench.outputs[number][0].cached_tokens


def _figures(bench: Bench) -> StateStats:
    figures = bench.scheduler.statistics().states
    assert figures is not None
    return figures


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17])
def test_an_equal_prompt_goes_on_at_the_last_block_end_before_its_last_token(length: int) -> None:
    bench = _bench()
    assert _ask(bench, _PROMPT[:length]) == 0
    assert _ask(bench, _PROMPT[:length]) == (length - 1) // _BLOCK * _BLOCK


@pytest.mark.parametrize("shared", range(1, 25))
def test_a_hit_needs_keys_and_a_state_at_one_place(shared: int) -> None:
    """The first prompt leaves a state at 20 and spare ones at 4, 8 and 16. The next one that begins alike goes on from
    the last of these, and leaves one where it parted.
    """
    bench = _bench()
    _ask(bench, _PROMPT[:24], tokens=1)
    other = [*_PROMPT[:shared], *[40 - t for t in _PROMPT[shared:30]]]
    keys = shared // _BLOCK * _BLOCK
    found = max(place for place in (0, 4, 8, 16, 20) if place <= keys)
    assert _ask(bench, other, tokens=1) == found
    assert _figures(bench).recomputed_tokens == keys - found
    if keys:
        third = [*_PROMPT[:shared], *[(t + 5) % 40 for t in _PROMPT[shared:30]]]
        assert _ask(bench, third, tokens=1) >= keys


@pytest.mark.parametrize("tokens", [8, 13, 32])
def test_an_interval_of_a_block_keeps_a_state_at_every_block_end(tokens: int) -> None:
    bench = _bench(interval=_BLOCK, tokens=tokens)
    _ask(bench, _PROMPT[:30], tokens=1)
    for shared in range(1, 29):
        before = _figures(bench).recomputed_tokens
        assert _ask(bench, [*_PROMPT[:shared], 0], tokens=1) == shared // _BLOCK * _BLOCK
        assert _figures(bench).recomputed_tokens == before


@pytest.mark.parametrize("answer", range(1, 14))
def test_the_next_turn_goes_on_after_the_answer(answer: int) -> None:
    bench = _bench()
    number = bench.submit(_PROMPT[:10], max_tokens=answer, ignore_eos=True)
    bench.run()
    conversation = [*_PROMPT[:10], *bench.tokens(number)]
    assert _ask(bench, [*conversation, 1, 2, 3]) == (len(conversation) - 1) // _BLOCK * _BLOCK


def test_equal_prompts_are_computed_once_and_then_copied() -> None:
    bench = _bench(tokens=16)
    numbers = [bench.submit(_PROMPT[:42], max_tokens=6, ignore_eos=True) for _ in range(3)]
    bench.run()
    assert len({tuple(bench.tokens(number)) for number in numbers}) == 1
    assert [bench.outputs[number][0].cached_tokens for number in numbers] == [0, 40, 40]
    computed = bench.scheduler.statistics().step_tokens - bench.scheduler.statistics().generation_tokens
    assert computed <= 42 + 2 * 2


def test_who_runs_has_a_slot_and_the_rest_wait() -> None:
    bench = _bench(slots=2)
    for n in range(6):
        bench.submit([n + 1] * 9, max_tokens=9, ignore_eos=True)
    most = 0
    while bench.fill() or bench.finish_step():
        most = max(most, bench.scheduler.statistics().num_running)
        bench.finish_step()
    assert most == 2
    bench.run()


@pytest.mark.parametrize("turns", range(30))
def test_slots_come_back_from_whatever_ends_early(turns: int) -> None:
    bench = _bench(slots=5, num_blocks=14)
    numbers = [bench.submit([n + 1] * (3 + 2 * n), max_tokens=20, ignore_eos=True) for n in range(4)]
    for turn in range(turns):
        (bench.finish_step if turn % 3 == 2 else bench.step)()
    for number in numbers:
        bench.abort(number)
    bench.lose()
    bench.restore()
    bench.run()
    assert _figures(bench).used == 0 and _figures(bench).snapshots == 0
    assert _ask(bench, _PROMPT[:9]) == 0


def test_a_preempted_request_goes_on_from_its_newest_snapshot() -> None:
    bench = _bench(slots=16, num_blocks=12, max_model_len=48)
    for n in range(3):
        bench.submit([n + 1] * 6, max_tokens=30, ignore_eos=True)
    bench.run()
    assert bench.scheduler.statistics().preemptions > 0 and _figures(bench).hits > 0


def test_a_snapshot_goes_with_its_block_and_blocks_stay_without_snapshots() -> None:
    bench = _bench(slots=2)
    _ask(bench, _PROMPT[:13], tokens=1)
    pool, states = bench.scheduler.allocator.pool, bench.scheduler.allocator.states
    assert states is not None and states.num_snapshots == 1
    for n in range(2):  # takes both slots for itself and its snapshot: the keys stay
        _ask(bench, [n + 2] * 13, tokens=1)
    assert _ask(bench, _PROMPT[:13], tokens=1) == 0 and _figures(bench).recomputed_tokens == 12
    pool.forget_all()
    assert states.num_snapshots == 0


def test_spare_snapshots_take_free_slots_only_and_are_given_up_first() -> None:
    bench = _bench(slots=5)
    _ask(bench, _PROMPT[:24], tokens=1)  # one slot for itself, snapshots at 20, 4, 8 and 16
    assert _figures(bench).snapshots == 4
    _ask(bench, [1] * 13, tokens=1)  # takes the slots of two of them
    assert _ask(bench, _PROMPT[:24], tokens=1) == 20
    bench = _bench(slots=3)
    for prompt in (_PROMPT[:24], [1] * 24):
        _ask(bench, prompt, tokens=1)
    assert _ask(bench, _PROMPT[:24], tokens=1) == _ask(bench, [1] * 24, tokens=1) == 20


def test_a_spare_snapshot_that_was_of_use_stays_longer() -> None:
    bench = _bench(slots=5)
    _ask(bench, _PROMPT[:24], tokens=1)
    assert _ask(bench, [*_PROMPT[:10], 1], tokens=1) == 8
    states = bench.scheduler.allocator.states
    assert states is not None
    digests = bench.scheduler.allocator.cache.chain("").of(_PROMPT, 5)
    assert list(states.snapshots)[-1] == digests[1]


def test_without_prefix_cache_there_are_no_snapshots() -> None:
    bench = Bench(limits=limits_of(state_slots=3), caching=False)
    for _ in range(2):
        assert _ask(bench, _PROMPT[:20], tokens=12) == 0
    assert _figures(bench) == StateStats(slots=3)


@pytest.mark.parametrize("slots", [4, 8, 16, 40])
def test_snapshots_leave_slots_to_drafts(slots: int) -> None:
    """However many prompts have left states, the next one is drafted for."""
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=2)
    limits = limits_of(200, state_slots=slots, state_interval=_BLOCK, vocab_size=4)
    bench = Bench(config, limits=limits, lookahead=1, speculation=Speculation("ngram", None, 4, 2))
    states = bench.scheduler.allocator.states
    assert states is not None and states.reserved == min(4, slots // 4)
    rng = random.Random(slots)
    for _ in range(12):
        _ask(bench, [rng.randrange(4) for _ in range(24)])
        assert len(states.free) >= states.reserved
    assert states.num_snapshots + states.reserved >= min(slots - 1, 12)
    before = bench.scheduler.statistics().drafted_tokens
    _ask(bench, [rng.randrange(4) for _ in range(24)], tokens=24)
    assert bench.scheduler.statistics().drafted_tokens > before


@pytest.mark.parametrize(("slots", "at_once"), [(16, 4), (40, 10)])
def test_sequences_that_begin_leave_slots_to_drafts(slots: int, at_once: int) -> None:
    """However many begin behind those that left states, and take each other's places."""
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=at_once)
    limits = limits_of(600, state_slots=slots, state_interval=_BLOCK, vocab_size=4, max_sampled_rows=100)
    bench = Bench(config, limits=limits, lookahead=1, speculation=Speculation("ngram", None, 8, 2))
    states, rng = bench.scheduler.allocator.states, random.Random(slots)
    assert states is not None and states.reserved == min(8, slots // 4)
    for _ in range(slots // 4):
        _ask(bench, [rng.randrange(4) for _ in range(24)])
    assert len(states.free) + states.num_snapshots == slots
    for turn in range(3 * at_once):
        bench.submit([rng.randrange(4) for _ in range(12)], max_tokens=8 + turn % 5, ignore_eos=True)
    drafted, crowded = bench.scheduler.statistics().drafted_tokens, 0
    while bench.fill() or bench.finish_step():
        checkpoints = [s.allocation.state.checkpoints for s in bench.running() if s.allocation and s.allocation.state]
        assert len(states.free) + sum(map(len, checkpoints)) >= states.reserved
        crowded += len(bench.running()) == at_once and bench.scheduler.statistics().drafted_tokens > drafted
        drafted = bench.scheduler.statistics().drafted_tokens
        bench.finish_step()
    assert crowded >= 5
    bench.run()


def test_slots_are_reserved_for_as_many_as_are_drafted() -> None:
    limits = limits_of(state_slots=64)
    for speculation, reserved in (
        (None, 0),
        (Speculation("auto", None, 3, 2), 3),
        (Speculation("auto", None, 99, 2), 16),
    ):
        states = Bench(limits=limits, speculation=speculation).scheduler.allocator.states
        assert states is not None and states.reserved == reserved


@pytest.mark.parametrize("reserved", [0, 1, 3])
@pytest.mark.parametrize("read", [0, 1, 3])
@pytest.mark.parametrize("snapshots", [0, 1, 3])
@pytest.mark.parametrize("free", [0, 1, 2, 5])
def test_whatever_can_be_handed_out_is(free: int, snapshots: int, read: int, reserved: int) -> None:
    """To stores and to stays, which begin with nothing or behind the oldest snapshot: of the reserved slots only where
    no other snapshot can be given up.
    """
    digests = [bytes([n]) for n in range(snapshots)]
    for origin in (None, *digests[:1]):
        for filled in (True, False):
            states = StatePool(free + snapshots, 4, 4, reserved)
            for digest in digests:
                states.snapshots[digest] = states.free.pop()
            for digest in digests[max(0, snapshots - read) :]:
                states.begin_reading(digest)
            available, others = states.num_available, max(0, snapshots - read)
            if origin is not None and not filled:
                others -= read < snapshots
            if not available:
                assert not free and not others
                continue
            stay = SlotAllocation(origin=None if filled else origin)
            if filled:
                assert states.begin_filling() is not None
            else:
                states.begin(stay)
            assert states.num_available == available - 1
            assert len(states.free) == free - (free > reserved or (free > 0 and not others))
            if free:
                assert filled or origin is None or origin in states.snapshots


@pytest.mark.parametrize("forgotten", [False, True])
def test_stores_get_no_slot_that_is_still_to_be_copied(forgotten: bool) -> None:
    """Neither while it has a snapshot nor when that is forgotten, until the step is done or the stay is over."""
    for end in (StatePool.end_copying, StatePool.release):
        states = StatePool(3, 4, 4)
        states.snapshots[b"end"] = states.free.pop()
        first, second = (SlotAllocation(origin=b"end", snapshot_at=4) for _ in range(2))
        states.begin(first)
        assert states.can_fill  # the last free slot
        states.begin(second)
        if forgotten:
            states.forget_all()
        assert states.num_available == 1
        for stay in (first, second):
            assert not states.can_fill and states.begin_filling() is None
            end(states, stay)
            if end is StatePool.release:
                states.free.remove(stay.slot)  # somebody else has it
        assert states.can_fill and states.begin_filling() == first.source


def test_the_last_slot_is_taken_in_place() -> None:
    states = StatePool(1, 4, 4)
    first = SlotAllocation(wanted=[])
    states.begin(first)
    assert states.write_answer(first, 4) == ()  # no other slot
    states.release(first)
    states.snapshots[b"end"] = states.free.pop()
    stay = SlotAllocation(origin=b"end", snapshot_at=4)
    states.begin(stay)
    assert (stay.slot, stay.source, states.num_snapshots) == (0, -1, 0)
    with pytest.raises(InternalError, match="all are in use"):
        states.begin(SlotAllocation())


def test_a_planted_leak_of_a_slot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatePool, "release", lambda self, stay: None)
    with pytest.raises(InternalError, match="of the state memory is in 0 places"):
        _ask(_bench(), _PROMPT[:9])


def test_a_planted_early_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot one block too late in the sequence is told from the right one by the worker."""
    honest = StatePool.find
    monkeypatch.setattr(StatePool, "find", lambda self, digests: max(0, honest(self, digests) - 1))
    bench = _bench(interval=_BLOCK)
    _ask(bench, _PROMPT[:21])
    states = bench.scheduler.allocator.states
    assert states is not None
    states.snapshots = OrderedDict.fromkeys(bench.scheduler.allocator.pool.digests, 0)
    with pytest.raises(Exception, match=r"another state|in \d+ places"):
        _ask(bench, _PROMPT[:21])
