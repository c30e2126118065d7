"""What drafts bring, by a clock that counts what steps of so many rows take: more where texts repeat themselves, and
hardly less anywhere, in any company. No engine, and no time of this machine.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from homenode.engine.kv.sequence import Sequence as EngineSequence
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.speculation.config import Speculation
from tests.pure.test_draft_choice import _sequence

_GAP_S = 0.0002  # lost where a step waits for tokens
_ANSWER = 72  # tokens

_SHARE = 1 / 16  # of the experts of a mixture that one row reads


def _read(rows: int) -> float:
    """Share of the experts that rows read which choose by themselves."""
    return 1.0 - (1.0 - _SHARE) ** rows


# Seconds of a step by rows: where memory is read for all of them, where products begin to count, where they take most
# of the time already, where kernels take eight rows at a time, and where each row reads other experts.
COSTS: dict[str, Callable[[int], float]] = {
    "memory": lambda rows: 0.010 + 0.0005 * rows,
    "between": lambda rows: 0.010 + 0.0015 * rows,
    "products": lambda rows: 0.0032 + 0.0022 * rows,
    "by eight": lambda rows: 0.010 + 0.008 * -(-rows // 8),
    "uniform mixture": lambda rows: 0.003 + 0.0002 * rows + 0.020 * _read(rows),
}
Text = tuple[list[int], list[int]]  # a prompt and its answer


def _texts(seed: int) -> dict[str, Text]:
    rng = random.Random(seed)
    page = [rng.randrange(100, 30000) for _ in range(90)]
    edited = [rng.randrange(100, 30000) if n % 17 == 16 else token for n, token in enumerate(page)]
    return {
        "copy": (page, page[:_ANSWER]),
        "edit": (page, edited[:_ANSWER]),
        "free": (page, [rng.randrange(100, 30000) for _ in range(_ANSWER)]),
        "words": ([rng.randrange(40) for _ in range(150)], [rng.randrange(40) for _ in range(_ANSWER)]),
        "misleading": ([rng.randrange(8) for _ in range(150)], [rng.randrange(8) for _ in range(_ANSWER)]),
    }


class _Clock:
    """An engine of which only the decision is there."""

    def __init__(self, costs: str) -> None:
        self._seconds, self._mixed = COSTS[costs], "mixture" in costs
        self._costs = StepCosts(_SHARE if self._mixed else 0.0)
        self._choice = DraftChoice(Speculation("auto", None, 8, 2), self._costs)
        for _ in range(8):
            self._step(1, awaited=False)

    def answer(self, texts: Sequence[Text]) -> float:
        """Return how many times as fast answers are made together as without drafts, on their geometric mean."""
        sequences = [self._begun(prompt, answer) for prompt, answer in texts]
        done, seconds, awaited = [1] * len(texts), 0.0, False
        plain = (_ANSWER - 1) * self._seconds(len(texts))
        faster: list[float] = []
        while going := [n for n, (_, answer) in enumerate(texts) if done[n] < len(answer)]:
            decoding = [sequences[n] for n in going]
            drafted = self._choice.drafts(decoding, _load(len(going)), 256) if awaited else {}
            for index, number in enumerate(going):
                done[number] += self._verify(sequences[number], texts[number][1], done[number], drafted.get(index, ()))
            seconds += self._step(len(going) + sum(map(len, drafted.values())), awaited) + _GAP_S * awaited
            faster += [plain / seconds for n in going if done[n] >= _ANSWER]
            awaited = bool(drafted) or self._choice.awaits(decoding)
        return statistics.geometric_mean(faster)

    def _step(self, rows: int, awaited: bool) -> float:
        took, load = self._seconds(rows), _load(rows)
        self._costs.learn(load, NO_LOAD, took, _read(rows) if self._mixed else 0.0)
        self._tell(load, took, awaited)
        return took

    def _tell(self, load: StepLoad, took: float, awaited: bool) -> None:
        self._choice.rows.learn(load, took)
        self._choice._gaps[awaited] = _GAP_S * awaited

    def _begun(self, prompt: list[int], answer: list[int]) -> EngineSequence:
        sequence = _sequence([1, 2, 3])
        sequence.tokens[:] = [*prompt, answer[0]]
        self._choice.prepare(sequence, len(prompt))
        return sequence

    def _verify(self, sequence: EngineSequence, answer: list[int], at: int, drafted: Sequence[int]) -> int:
        there = answer[at:]
        right = next((n for n, token in enumerate(drafted) if n >= len(there) or token != there[n]), len(drafted))
        if drafted:
            self._choice.learn(sequence, tuple(drafted), right)
        sequence.tokens += there[: right + 1]
        return right + 1


def _load(rows: int) -> StepLoad:
    return StepLoad(rows, rows, 0, 0, 1)


@pytest.mark.parametrize("costs", COSTS)
def test_nothing_is_much_slower_in_any_company(costs: str) -> None:
    clock = _Clock(costs)
    texts = _texts(1)
    company: list[list[str]] = [[name] for name in texts]
    company += [[name] * number for name in ("misleading", "free") for number in (2, 4, 8)]
    company += [["copy", "misleading"] * number for number in (1, 2, 4)]
    for names in company:
        others = [_texts(2 + n)[name] for n, name in enumerate(names)]
        # Rows of eight at a price are lost together where the first few drafts are wrong.
        assert clock.answer(others) >= (0.95 if costs == "by eight" else 0.97), names


@pytest.mark.parametrize(
    ("costs", "copies", "edits"),
    [("memory", 3.5, 2.2), ("between", 2.8, 1.6), ("products", 1.4, 1.1), ("uniform mixture", 1.8, 1.15)],
)
def test_copies_are_much_faster(costs: str, copies: float, edits: float) -> None:
    clock = _Clock(costs)
    found = {name: clock.answer([_texts(5)[name]]) for name in ("copy", "edit", "copy", "edit")}
    assert found["copy"] >= copies and found["edit"] >= edits, found
