"""How many tokens are drafted: as many as pay by what steps took and by how often drafts were right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from homenode.engine.kv.sequence import Sequence as EngineSequence
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.steps.row_costs import RowCosts
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, MeasuredStep, StepLoad
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.speculation.config import Speculation
from homenode.engine.speculation.sequence_drafts import SequenceDrafts
from homenode.testing.scripted_executor import scripted_token
from tests.pure.schedule_bench import Bench, limits_of

AUTO = Speculation("auto", None, 8, 2)
NAMED = Speculation("ngram", None, 8, 2)
_VOCAB = 4


def _load(rows: int, read: int = 100) -> StepLoad:
    return StepLoad(rows, rows, read, read, 1)


def _cheap(rows: int) -> float:
    """Seconds of a step whose rows cost little, as where memory is read for all of them."""
    return 0.010 + 0.0004 * rows


def _middling(rows: int) -> float:
    return 0.010 + 0.002 * rows


def _dear(rows: int) -> float:
    """Seconds of a step whose rows cost what they are worth, as where products take the time."""
    return 0.002 + 0.008 * rows


def _learned(choice: DraftChoice, seconds: Callable[[int], float], rows: Sequence[int] = (1, 2, 4, 8, 9)) -> None:
    for _ in range(4):
        for number in rows:
            choice.measured(MeasuredStep(_load(number), NO_LOAD, seconds(number)))


@pytest.mark.parametrize("seconds", [_cheap, _dear])
def test_seconds_by_rows_are_those_that_were_measured(seconds: Callable[[int], float]) -> None:
    costs, rng = StepCosts(), random.Random(1)
    rows = RowCosts(costs)
    for _ in range(200):
        number = rng.choice([1, 2, 5, 9, 33])
        load, took = _load(number, rng.randrange(1000)), seconds(number) * rng.uniform(0.97, 1.03)
        costs.learn(load, NO_LOAD, took)
        rows.learn(load, took)
    assert [rows.seconds(n) for n in (1, 5, 33)] == pytest.approx([seconds(n) for n in (1, 5, 33)], rel=0.12)
    assert rows.seconds(2) <= rows.seconds(3) <= rows.seconds(5) <= rows.seconds(7) <= rows.seconds(9)
    assert rows.seconds(64) > rows.seconds(33)


def test_a_machine_that_slows_down_slows_all_rows_down() -> None:
    rows = RowCosts(StepCosts())
    for number in (1, 5, 9):
        for _ in range(6):
            rows.learn(_load(number), _cheap(number))
    for _ in range(60):
        rows.learn(_load(5), 2 * _cheap(5))
    assert rows.seconds(5) == pytest.approx(2 * _cheap(5), rel=0.1)
    assert rows.seconds(1) > 1.5 * _cheap(1)


def test_one_unlucky_step_is_not_believed_for_ever() -> None:
    rows = RowCosts(StepCosts())
    for _ in range(10):
        rows.learn(_load(1), 0.010)
    rows.learn(_load(2), 0.100)
    before = rows.seconds(2)
    for _ in range(500):
        rows.fade(2)
    assert rows.seconds(2) < 0.7 * before


def _sequence(prompt: list[int], **more: object) -> EngineSequence:
    """A sequence that decodes, as the scheduler has it."""
    bench = Bench(limits=limits_of(200, max_model_len=2000))
    bench.submit(prompt, max_tokens=1000, ignore_eos=True)
    bench.step()
    bench.finish_step()
    (sequence,) = bench.scheduler.lists.running
    if more:
        sequence.request = msgspec.structs.replace(sequence.request, **more)
    return sequence


def _follow(
    choice: DraftChoice,
    sequence: EngineSequence,
    right: Callable[[], bool],
    seconds: Callable[[int], float],
    steps: int = 70,
) -> list[int]:
    """How much is drafted step by step where each token that was to follow does by chance, and where it does not,
    another of the same text.
    """
    found, words = [], sorted(set(sequence.tokens))
    for _ in range(steps):
        sequence.drafted = ()
        drafted = choice.drafts([sequence], _load(1), 64).get(0, ())
        found.append(len(drafted))
        assert sequence.drafts is not None
        guess, came = sequence.drafts.drafted(1 + len(drafted)).tokens, list[int]()
        for number in range(1 + len(drafted)):
            there = guess[number] if number < len(guess) else words[0]
            came.append(there if right() else words[words.index(there) - 1])
            if number < len(drafted) and came[-1] != drafted[number]:
                break
        choice.learn(sequence, drafted, len(came) - 1)
        sequence.tokens += came
        load = _load(1 + len(drafted))
        choice.measured(MeasuredStep(load, NO_LOAD, seconds(load.rows), awaited=True))
    return found


def test_where_rows_are_cheap_and_drafts_right_all_are_drafted() -> None:
    choice = DraftChoice(AUTO, StepCosts())
    _learned(choice, _cheap)
    counts = _follow(choice, _sequence([*range(28)] * 3), lambda: True, _cheap)
    assert sum(counts[-20:]) == 20 * 8


def test_where_drafts_are_wrong_auto_leaves_them_and_a_method_that_was_named_does_not() -> None:
    rng = random.Random(2)
    counts = {}
    for speculation in (AUTO, NAMED):
        choice = DraftChoice(speculation, StepCosts())
        _learned(choice, _middling)
        prompt = [rng.randrange(4) for _ in range(80)]
        counts[speculation.method] = _follow(choice, _sequence(prompt), lambda: rng.random() < 0.05, _middling)
    assert sum(counts["auto"][50:]) <= 8
    assert min(counts["ngram"]) >= 1


def test_what_is_looked_up_is_measured_without_being_drafted() -> None:
    """An answer for which nothing is drafted tells how often what was looked up would have been right."""
    for chance in (0.1, 0.95):
        rng, choice = random.Random(3), DraftChoice(AUTO, StepCosts())
        _learned(choice, _middling)
        sequence = _sequence([rng.randrange(4) for _ in range(80)])
        looked_up, words = SequenceDrafts(sequence.tokens, choice.acceptance, 2, None), [*range(4)]
        for _ in range(120):
            there = looked_up.drafted(1).tokens[0]
            sequence.tokens.append(there if rng.random() < chance else words[there - 1])
        told = [
            share for (_, number), (share, count) in choice.acceptance.shares().items() if count > 10 and number < 8
        ]
        assert told and all(abs(share - chance) < 0.2 for share in told), (chance, told)
        assert bool(choice.drafts([sequence], _load(1), 64)) == (chance > 0.5)


def test_a_text_that_repeats_nothing_is_looked_at_seldom_and_its_copies_are_found() -> None:
    rng, choice = random.Random(8), DraftChoice(AUTO, StepCosts())
    _learned(choice, _cheap)
    sequence, looks = _sequence([*range(40)]), 0
    for _ in range(400):
        choice.awaits([sequence])
        assert sequence.drafts is not None
        looks += not sequence.drafts.rests()
        sequence.tokens.append(1000 + rng.randrange(1 << 20))
    assert looks < 150
    drafted = 0
    for token in range(40):  # now it repeats its prompt
        sequence.tokens.append(token)
        drafted += bool(choice.awaits([sequence]))
    assert drafted >= 30


def test_where_rows_cost_what_they_are_worth_nothing_is_drafted() -> None:
    choice = DraftChoice(AUTO, StepCosts())
    _learned(choice, _dear)
    sequence = _sequence([*range(28)] * 3)
    assert choice.drafts([sequence], _load(1), 64) == {}
    assert not choice.awaits([sequence])


def test_it_is_looked_at_every_eight_steps_whether_drafts_may_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often that is asked, and of how many: all that run, and those of them that decode."""
    looks, honest = [], DraftChoice._could_pay

    def look(choice: DraftChoice, sequences: int) -> bool:
        looks.append(sequences)
        return honest(choice, sequences)

    monkeypatch.setattr(DraftChoice, "_could_pay", look)
    choice, sequences = DraftChoice(AUTO, StepCosts()), [_sequence([1, 2, 3]), _sequence([1, 2, 4])]
    _learned(choice, _dear)
    for _ in range(32):
        choice.awaits(sequences)
        choice.drafts(sequences[:1], _load(1), 64)
        choice.measured(MeasuredStep(_load(1), NO_LOAD, _dear(1)))
    assert looks.count(1) == looks.count(2) == 5  # the first look is in the middle of eight steps


def test_drafts_that_come_to_pay_are_waited_for_again() -> None:
    """Where nothing is waited for steps are planned ahead, and nobody asks for drafts."""
    choice, sequence = DraftChoice(AUTO, StepCosts()), _sequence([*range(28)] * 3)
    _learned(choice, _dear)
    assert not choice.awaits([sequence])
    for _ in range(10):
        _learned(choice, _cheap)
    assert choice.awaits([sequence])


def test_waiting_for_tokens_has_to_pay_as_well() -> None:
    """A step that waits for the one before it loses what planning takes."""
    choice = DraftChoice(AUTO, StepCosts())
    _learned(choice, _cheap)
    sequence = _sequence([*range(28)] * 3)
    assert choice.awaits([sequence])
    now = 0.0
    for number in range(200):
        now += _cheap(1) + (0.2 if number % 2 else 0.0)
        choice.measured(MeasuredStep(_load(1), NO_LOAD, _cheap(1), now, awaited=bool(number % 2)))
    many = [sequence] + [_sequence([1, 2, 3 + n], speculative=False) for n in range(20)]
    assert not choice.awaits(many)


def test_a_request_that_does_not_want_drafts_has_none() -> None:
    choice = DraftChoice(NAMED, StepCosts())
    sequence = _sequence([*range(28)] * 3, speculative=False)
    assert not choice.awaits([sequence])
    assert choice.drafts([sequence], _load(1), 64) == {}
    choice.ended(sequence)
    other = _sequence([*range(10, 15)])
    assert choice.drafts([other], _load(1), 64) == {}


def test_the_room_of_a_step_goes_to_those_that_are_likely_right() -> None:
    choice = DraftChoice(NAMED, StepCosts())
    _learned(choice, _cheap, (1, 2, 4, 8, 12))
    sure, unsure = _sequence([*range(28)] * 3), _sequence([1, 2, 3, 9, 9, 8, 7, 1, 2])
    drafts = choice.drafts([unsure, sure], _load(2), 8)
    assert sum(map(len, drafts.values())) <= 8
    assert len(drafts[1]) > len(drafts.get(0, ()))


def test_a_life_with_lookup_gives_the_tokens_of_one_without() -> None:
    """Whole lives of the scheduler: prompts that repeat themselves, on an executor that is strict about all of it."""
    answers = []
    for speculation in (None, AUTO, NAMED):
        rng = random.Random(4)
        bench = Bench(
            SchedulerConfig(max_num_batched_tokens=60, max_num_seqs=6),
            limits=limits_of(60, max_model_len=300, vocab_size=_VOCAB),
            lookahead=1,
            speculation=speculation,
        )
        for _ in range(12):
            part = [rng.randrange(_VOCAB) for _ in range(6)]
            known = list(part)
            for _ in range(20):
                known.append(scripted_token(known, _VOCAB))
            bench.submit([*known, 1, 2, *known], max_tokens=rng.randrange(1, 60), ignore_eos=True)
        bench.run()
        statistics = bench.scheduler.statistics()
        assert (statistics.accepted_tokens > 3) == (speculation is NAMED) or speculation is AUTO
        answers.append([bench.tokens(number) for number in range(12)])
    assert answers[0] == answers[1] == answers[2]


def _depths(seconds: Callable[[int], float], draft_s: float, chance: float, sequences: int = 1) -> list[int]:
    """How many tokens a model is asked to draft, turn by turn, where each is right by chance."""
    rng, choice = random.Random(5), DraftChoice(AUTO, StepCosts(), by_workers=8)
    _learned(choice, seconds, (sequences, 2 * sequences, 5 * sequences, 9 * sequences))
    sequence, found = _sequence([1, 2, 3]), []
    for _ in range(150):
        sequence.expected = choice.expected(sequence, sequences)
        found.append(sequence.expected)
        load = _load(sequences)
        spent = draft_s * sequence.expected
        choice.measured(MeasuredStep(load, NO_LOAD, seconds(sequences), 0.0, True, spent, depth=sequence.expected))
        sequence.drafted = tuple(range(9, 9 + sequence.expected))
        drafted = choice.drafts([sequence], load, 64).get(0, ())
        accepted = next((n for n, _ in enumerate(drafted) if rng.random() >= chance), len(drafted))
        choice.learn(sequence, drafted, accepted)
    return found


def test_a_model_drafts_as_far_as_that_pays() -> None:
    assert sum(_depths(_cheap, 0.0002, 0.95)[-20:]) > 20 * 6
    assert 20 <= sum(_depths(_cheap, 0.002, 0.7)[-20:]) <= 20 * 6
    assert sum(_depths(_cheap, 0.009, 0.7)[-50:]) <= 10  # drafting takes as long as decoding
    assert sum(_depths(_cheap, 0.0002, 0.02)[-50:]) <= 10
    assert sum(_depths(_dear, 0.0002, 0.95, 4)[-50:]) <= 10


def _chosen(rng: random.Random, rows: int, experts: int, each: int, anew: float) -> float:
    """Share of the experts that so many rows read: each chooses this part of its own anew, the others the first did."""
    first = rng.sample(range(experts), each)
    read = set(first)
    for _ in range(rows - 1):
        kept = [expert for expert in first if rng.random() >= anew]
        read |= {*kept, *rng.sample(range(experts), each - len(kept))}
    return len(read) / experts


@pytest.mark.parametrize("anew", [0.1, 0.5, 1.0])
def test_rows_of_a_mixture_cost_the_experts_that_they_choose(anew: float) -> None:
    experts, each, rng = 64, 8, random.Random(3)
    costs = StepCosts(each / experts)
    rows = RowCosts(costs)

    def seconds(number: int, share: float) -> float:
        return 0.004 + 0.0002 * number + 0.020 * share

    def shares(number: int, anew: float) -> float:
        return sum(_chosen(rng, number, experts, each, anew) for _ in range(200)) / 200

    for step in range(300):
        number = rng.choice([1, 1, 2, 3, 4])
        # Prompts read all experts at times: what these cost shows in them, too.
        if step % 10 == 0:
            costs.learn(NO_LOAD, StepLoad(64, 1, 64, 2000), 0.004 + 64 * 0.0002 + 0.020, 1.0)
            continue
        share = _chosen(rng, number, experts, each, anew)
        costs.learn(_load(number), NO_LOAD, seconds(number, share), share)
        rows.learn(_load(number), seconds(number, share))
    assert costs.expert_share(4) == pytest.approx(shares(4, anew), rel=0.15)
    for number in (1, 2, 4, 6, 9):
        assert rows.seconds(number) == pytest.approx(seconds(number, shares(number, anew)), rel=0.12), number


def test_what_rows_cost_follows_as_they_choose_otherwise() -> None:
    costs = StepCosts(1 / 8)
    rows = RowCosts(costs)

    def learn(number: int, share: float) -> None:
        seconds = 0.004 + 0.0002 * number + 0.020 * share
        costs.learn(_load(number), NO_LOAD, seconds, share)
        rows.learn(_load(number), seconds)

    for _ in range(60):  # rows choose by themselves
        for number in (1, 2, 4):
            learn(number, 1 - (7 / 8) ** number)
    before = rows.seconds(4)
    for _ in range(60):  # rows choose alike; nobody computes four any more
        learn(1, 1 / 8)
        learn(2, 1 / 8 + 0.01)
    assert rows.seconds(4) < 0.85 * before


def test_rows_that_nobody_tried_are_expected_to_take_no_more_than_those_that_were() -> None:
    costs = StepCosts()
    rows = RowCosts(costs)
    for number, seconds in ((1, 0.0100), (4, 0.0103)) * 4:
        if number == 1:
            costs.learn(_load(number), NO_LOAD, seconds)  # which knows of no step of several rows yet
        rows.learn(_load(number), seconds)
    assert rows.seconds(4) == pytest.approx(0.0103, rel=0.02)
    assert rows.seconds(4) < rows.seconds(9) < 0.0103 + 0.5 * costs.of_row * 5
