"""The worker's arrays: tokens, positions, blocks, rows, sampling parameters; against a plain model of a sequence."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import SampledRows, SamplingArrays, StepArrays
from homenode.compute.reference import ReferenceBackend
from homenode.engine.step import StartSequence, Step, StepItem
from homenode.engine.worker.batch import build_batch
from homenode.engine.worker.runner import Runner
from homenode.engine.worker.sampler import sampling_arrays
from homenode.engine.worker.sequences import SequenceTable, TokenCounts
from homenode.errors import UserError
from homenode.sampling import SamplingParams

BLOCK = 32
GREEDY = SamplingParams(temperature=0)


class CountingProgram:
    """Logits whose largest entry is (id + position) % vocab of each wanted row; keeps the arrays it was given."""

    def __init__(self, vocab: int = 50) -> None:
        self.vocab = vocab
        self.steps: list[StepArrays] = []

    def run(self, arrays: StepArrays) -> Any:
        self.steps.append(arrays)
        rows = arrays.sample_rows
        logits = np.zeros((len(rows), self.vocab), np.float32)
        logits[np.arange(len(rows)), (arrays.ids[rows] + arrays.positions[rows]) % self.vocab] = 1
        return logits


def runner(program: CountingProgram) -> Runner:
    return Runner(program, ReferenceBackend(), BLOCK)


def start(seq: int, tokens: list[int], num_prompt: int | None = None, params: SamplingParams = GREEDY) -> StartSequence:
    return StartSequence(seq, tokens, len(tokens) if num_prompt is None else num_prompt, params)


def test_prefill_in_chunks_then_decode_ahead_of_the_results() -> None:
    program = CountingProgram()
    worker = runner(program)
    prompt = list(range(40))
    first = worker.execute(Step(0, [], [start(3, prompt)], [StepItem(3, 0, 30, [7], 0)]))
    assert first.advances == []
    assert program.steps[0].ids.tolist() == prompt[:30]
    assert len(program.steps[0].sample_rows) == 0
    tokens = []
    for number, (begin, count, blocks) in enumerate([(30, 10, [9]), (40, 1, []), (41, 1, [])], start=1):
        result = worker.execute(Step(number, [], [], [StepItem(3, begin, count, blocks, 1)]))
        tokens += result.advances[0].tokens
    assert tokens == [(39 + 39) % 50, (28 + 40) % 50, (18 + 41) % 50]
    last = program.steps[-1]
    assert (last.ids.tolist(), last.positions.tolist(), last.context_len.tolist()) == ([18], [41], [42])
    assert last.block_table.tolist() == [[7, 9]]
    assert last.block_table.flags.c_contiguous
    assert last.block_table.dtype == np.int32


def test_a_mixed_step_against_a_plain_model() -> None:
    """Random mixtures of prefill chunks and decodes; every array is compared with what a straightforward loop makes."""
    rng = random.Random(5)
    for _ in range(30):
        table = SequenceTable(BLOCK)
        items, expected_ids, expected_positions, rows, tables = [], [], [], [], []
        for seq in range(rng.randint(1, 40)):  # beyond the first slots: the arrays have to grow
            tokens = [rng.randrange(1000) for _ in range(rng.randint(1, 100))]
            table.start(start(seq, tokens))
            decodes = rng.random() < 0.5
            begin = len(tokens) - 1 if decodes else rng.randrange(len(tokens))
            count = 1 if decodes else rng.randint(1, len(tokens) - begin)
            blocks = [rng.randrange(10_000) for _ in range(-(-(begin + count) // BLOCK))]
            items.append(StepItem(seq, begin, count, blocks, begin + count == len(tokens)))
            expected_ids += tokens[begin : begin + count]
            expected_positions += range(begin, begin + count)
            tables.append(blocks)
            if items[-1].draws:
                rows.append(len(expected_ids) - 1)
        batch = build_batch(items, table)
        assert batch.arrays.ids.tolist() == expected_ids
        assert batch.arrays.positions.tolist() == expected_positions
        assert batch.arrays.sample_rows.tolist() == rows
        assert np.diff(batch.arrays.query_start).tolist() == [item.count for item in items]
        assert [
            row[: len(blocks)] for row, blocks in zip(batch.arrays.block_table.tolist(), tables, strict=True)
        ] == tables
        assert batch.sampled == [item.seq for item in items if item.draws]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (StepItem(1, 0, 5, [1], 0), "positions 0 to 4"),
        (StepItem(1, 0, 0, [1], 0), "positions 0 to -1"),
        (StepItem(1, 0, 2, [], 0), "its blocks hold 0"),
        (StepItem(1, -1, 2, [1], 0), "positions -1"),
        (StepItem(2, 0, 1, [1], 0), "not started"),
        (StepItem(1, 0, 3, [1], 3, drafted=(4, 5)), "drafted tokens do not follow its last one"),
        (StepItem(1, 3, 2, [1], 3, drafted=(4, 5)), "drafted tokens do not follow its last one"),
        (StepItem(1, 3, 4, [1], 3, drafted=(4, 5)), "positions 3 to 6"),
    ],
)
def test_items_that_cannot_be_are_refused(item: StepItem, words: str) -> None:
    table = SequenceTable(BLOCK)
    table.start(start(1, [1, 2, 3]))
    with pytest.raises(ValueError, match=words):
        build_batch([item], table)


def test_only_the_newest_drawn_token_can_be_computed() -> None:
    table = SequenceTable(BLOCK)
    table.start(start(1, [1, 2]))
    for token in (8, 9):
        table.append(np.array([table.slot(1)]), np.array([token], np.int32))
    assert build_batch([StepItem(1, 3, 1, [4], 1)], table).arrays.ids.tolist() == [9]
    with pytest.raises(ValueError, match="only the newest"):
        build_batch([StepItem(1, 2, 1, [], 0)], table)


def test_slots_are_reused_without_traces() -> None:
    table = SequenceTable(BLOCK)
    table.start(
        start(1, [1, 2], params=SamplingParams(temperature=0.5, logit_bias={3: 1.0}, presence_penalty=1.0, logprobs=2))
    )
    build_batch([StepItem(1, 0, 2, [5, 6, 7], 1)], table)
    slot = table.slot(1)
    table.end(1)
    table.end(1)
    assert (len(table), table.num_biased, table.num_counted) == (0, 0, 0)
    table.start(start(2, [4]))
    assert table.slot(2) == slot
    with pytest.raises(ValueError, match="its blocks hold 0"):
        build_batch([StepItem(2, 0, 1, [], 1)], table)
    assert build_batch([StepItem(2, 0, 1, [8], 1)], table).arrays.block_table.tolist() == [[8]]
    how = sampling_arrays(np.array([slot]), table)
    assert (
        how.settings["temperature"][0],
        how.settings["presence_penalty"][0],
        how.bias_token.size,
        how.seen_token.size,
    ) == (0, 0, 0, 0)


def csr(start: Any, *values: Any) -> list[dict[int, Any]]:
    """Rows of pairs as dictionaries, whatever their order."""
    return [
        dict(zip(values[0][a:b].tolist(), zip(*(v[a:b].tolist() for v in values[1:]), strict=True), strict=True))
        for a, b in itertools.pairwise(start.tolist())
    ]


def test_sampling_parameters_as_arrays() -> None:
    table = SequenceTable(BLOCK)
    plain = SamplingParams(temperature=0.25, top_k=7, top_p=0.5, min_p=0.125, top_n_sigma=1.5, seed=-1)
    table.start(start(1, [1, 2, 3], params=plain))
    table.start(start(2, [5, 5, 6, 5, 9], 3, SamplingParams(repetition_penalty=1.5, seed=2**64 - 1)))
    table.start(
        start(3, [4], params=SamplingParams(frequency_penalty=0.5, presence_penalty=-0.5, logit_bias={8: -1.0, 9: 2.0}))
    )
    slots = np.array([table.slot(1), 0, table.slot(2), table.slot(3)])
    table.append(slots[3:], np.array([4], np.int32))
    how: SamplingArrays = sampling_arrays(slots, table)
    assert how.settings["temperature"].tolist() == [0.25, 0, 1, 1]
    assert how.settings["top_k"].tolist() == [7, 0, 0, 0]
    assert how.settings["top_p"].tolist() == [0.5, 1, 1, 1]
    assert how.settings["min_p"].tolist() == [0.125, 0, 0, 0]
    assert how.settings["top_n_sigma"].tolist() == [1.5, 0, 0, 0]
    assert how.seed.tolist()[0] == how.seed.tolist()[2] == 2**64 - 1
    assert how.counter.tolist() == [3, 0, 5, 2]
    assert how.settings["repetition_penalty"].tolist() == [1, 1, 1.5, 1]
    assert csr(how.bias_start, how.bias_token, how.bias_value) == [{}, {}, {}, {8: (-1.0,), 9: (2.0,)}]
    assert csr(how.seen_start, how.seen_token, how.seen_count) == [{}, {}, {5: (1,), 6: (0,), 9: (1,)}, {4: (1,)}]


def test_what_would_stop_a_sequence_is_forbidden_until_min_tokens() -> None:
    table = SequenceTable(BLOCK, eos_token_ids=(7,))
    # One token is drawn already.
    table.start(start(1, [1, 2, 3], 2, SamplingParams(min_tokens=3, stop_token_ids=(5,), logit_bias={9: 1.0})))
    table.start(start(2, [1], params=SamplingParams(min_tokens=1, ignore_eos=True)))
    slots = np.array([table.slot(1), table.slot(2)])
    forbidden = [{9: (1.0,), 5: (-np.inf,), 7: (-np.inf,)}, {}]
    for wanted in (forbidden, forbidden, [{9: (1.0,)}, {}]):
        how = sampling_arrays(slots, table)
        assert csr(how.bias_start, how.bias_token, how.bias_value) == wanted
        table.append(slots, np.array([4, 4], np.int32))
    table.end(1)
    assert table.num_biased == 0


def test_token_counts_against_a_plain_count() -> None:
    rng = random.Random(2)
    prompt, drawn = [rng.randrange(30) for _ in range(20)], [rng.randrange(200) for _ in range(500)]
    counts = TokenCounts(np.array(prompt + drawn[:9], np.int32), len(prompt))
    for token in drawn[9:]:
        counts.add(token)
    found = dict(zip(counts.tokens.tolist(), counts.counts.tolist(), strict=True))
    assert found == {token: drawn.count(token) for token in set(prompt) | set(drawn)}
    assert len(counts.tokens) == len(found)


def test_prompt_scores_in_chunks_beside_a_decode() -> None:
    """Scored rows name the right tokens: the reference log-softmax of the program's logits is computed by hand."""
    program = CountingProgram()
    worker = runner(program)
    prompt = [3, 1, 4, 1, 5, 9]
    scored = SamplingParams(temperature=0, prompt_logprobs=1, logprobs=0)
    one = worker.execute(
        Step(
            0,
            [],
            [start(1, prompt, params=scored), start(2, [7])],
            [StepItem(2, 0, 1, [5], 1), StepItem(1, 0, 4, [6], 0, 0)],
        )
    )
    two = worker.execute(Step(1, [], [], [StepItem(2, 1, 1, [], 1), StepItem(1, 4, 2, [], 1, 4)]))
    assert [a.seq for a in one.advances] == [2]
    assert [(p.seq, p.first, len(p.scores)) for p in (*one.scored, *two.scored)] == [(1, 1, 4), (1, 5, 1)]
    log_z = float(np.log(np.e + 49))
    for at, score in enumerate([*one.scored[0].scores, *two.scored[0].scores], start=1):
        best = (prompt[at - 1] + at - 1) % 50
        assert score.top[0][0] == best
        assert score.logprob == pytest.approx((1 if prompt[at] == best else 0) - log_z, abs=1e-5)
    drawn = {a.seq: a for a in two.advances}
    assert drawn[2].logprobs == ()
    assert drawn[1].tokens == [(9 + 5) % 50]
    (logprob,) = drawn[1].logprobs
    assert logprob.logprob == pytest.approx(1 - log_z, abs=1e-5)
    assert logprob.top == []


def test_a_seeded_sequence_draws_the_same_whatever_shares_the_batch() -> None:
    def drawn(others: int) -> list[int]:
        worker = runner(CountingProgram())
        seeded = SamplingParams(temperature=5.0, seed=11)
        starts = [start(i, [i], params=SamplingParams(temperature=5.0, seed=i)) for i in range(others)]
        starts.insert(others // 2, start(99, [1, 2], params=seeded))
        order = [s.seq for s in starts]
        tokens = []
        for number in range(12):
            items = [
                StepItem(
                    s,
                    number and len(starts[i].token_ids) - 1 + number,
                    1 if number else len(starts[i].token_ids),
                    [] if number else [i],
                    1,
                )
                for i, s in enumerate(order)
            ]
            result = worker.execute(Step(number, [], [] if number else starts, items))
            tokens += [token for a in result.advances if a.seq == 99 for token in a.tokens]
        return tokens

    alone = drawn(0)
    assert len(set(alone)) > 1
    assert drawn(5) == drawn(20) == alone


class WrongBackend(ReferenceBackend):
    """Fails to draw, once."""

    failed = False

    def sample(self, logits: Any, how: SamplingArrays, num_logprobs: int = -1) -> SampledRows:
        if not self.failed:
            self.failed = True
            raise MemoryError
        return super().sample(logits, how, num_logprobs)


def test_sequences_of_a_failed_step_can_be_ended_and_started_anew() -> None:
    worker = Runner(CountingProgram(), WrongBackend(), BLOCK)
    step = Step(0, [], [start(1, [2])], [StepItem(1, 0, 1, [0], 1)])
    with pytest.raises(MemoryError):
        worker.execute(step)
    worker.execute(Step(1, [1, 55], [start(2, [2])], [StepItem(2, 0, 1, [0], 1)]))
    assert worker.num_sequences == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 2.0}, "min_p is 2.0"),
        ({"top_n_sigma": float("nan")}, "top_n_sigma is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias of token 3"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias of token 3"),
    ],
)
def test_sampling_parameters_out_of_range_are_named(changes: dict[str, Any], words: str) -> None:
    SamplingParams(logit_bias={1: float("-inf")}, seed=-1, top_p=1e-45, max_tokens=0).check()
    with pytest.raises(UserError, match=words):
        SamplingParams(**changes).check()


def random_steps(rng: random.Random, count: int) -> list[Step]:
    """A history of sequences of several kinds that come, decode together for a while, and go; blocks are given when
    they are needed.
    """
    kinds = (
        GREEDY,
        SamplingParams(temperature=1, seed=3),
        SamplingParams(temperature=0, logprobs=1),
        SamplingParams(temperature=1, seed=4, presence_penalty=0.5),
        SamplingParams(temperature=1, seed=5, min_tokens=4, stop_token_ids=(1,)),
    )
    lengths: dict[int, int] = {}  # of the running sequences
    steps, next_seq, next_block = [], 0, 1
    for number in range(count):
        ends = [seq for seq in lengths if rng.random() < 0.02]
        for seq in ends:
            del lengths[seq]
        items = []
        for seq, length in lengths.items():
            if rng.random() < 0.02:
                continue  # it has to wait, for whatever reason
            new = [next_block] if length % BLOCK == 0 else []
            next_block += len(new)
            items.append(StepItem(seq, length, 1, new, 1))
            lengths[seq] += 1
        starts = []
        if not lengths or (len(lengths) < 12 and rng.random() < 0.1):
            tokens = [rng.randrange(50) for _ in range(rng.randint(1, 3 * BLOCK))]
            blocks = -(-len(tokens) // BLOCK)
            starts.append(start(next_seq, tokens, params=kinds[next_seq % len(kinds)]))
            items.append(StepItem(next_seq, 0, len(tokens), list(range(next_block, next_block + blocks)), 1))
            lengths[next_seq] = len(tokens)
            next_seq, next_block = next_seq + 1, next_block + blocks
        steps.append(Step(number, ends, starts, items))
    return steps


def test_a_step_that_carries_on_is_the_one_made_from_nothing() -> None:
    """Two workers get the same steps; one of them has to forget the step before each time."""
    carried = 0
    for seed in range(6):
        programs = CountingProgram(), CountingProgram()
        carrying, forgetting = runner(programs[0]), runner(programs[1])
        for step in random_steps(random.Random(seed), 150):
            before = programs[0].steps[-1] if programs[0].steps else None
            wanted, found = forgetting.execute(step), carrying.execute(step)
            forgetting._batches.forget()
            assert (found.advances, found.scored) == (wanted.advances, wanted.scored)
            if step.items:
                last, plain = programs[0].steps[-1], programs[1].steps[-1]
                arrays = {name: array for name, array in vars(plain).items() if array is not None}
                assert len(arrays) == 6  # all but the rows of a stage before
                for name, array in arrays.items():
                    assert np.array_equal(getattr(last, name), array) and getattr(last, name).dtype == array.dtype, name
                assert last.block_table.flags.c_contiguous
                carried += before is not None and last.query_start is before.query_start
    assert carried > 100, "steps were made from nothing that only carried on"


def test_what_cannot_carry_on_is_refused_as_ever() -> None:
    worker = runner(CountingProgram())
    worker.execute(Step(0, [], [start(1, [5] * (BLOCK - 1))], [StepItem(1, 0, BLOCK - 1, [3], 1)]))
    worker.execute(Step(1, [], [], [StepItem(1, BLOCK - 1, 1, [], 1)]))
    with pytest.raises(ValueError, match="its blocks hold 32"):
        worker.execute(Step(2, [], [], [StepItem(1, BLOCK, 1, [], 1)]))
    with pytest.raises(ValueError, match="positions 34 to 34 were asked for"):
        worker.execute(Step(3, [], [], [StepItem(1, BLOCK + 2, 1, [4], 1)]))
    worker.execute(Step(4, [], [], [StepItem(1, BLOCK, 1, [], 1)]))
    with pytest.raises(ValueError, match="was not started here or has ended"):
        worker.execute(Step(5, [1], [], [StepItem(1, BLOCK + 1, 1, [], 1)]))
