"""Guesses for engines whose answers are known: some right, some wrong, by chance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from homenode.engine.kv.sequence import Sequence as EngineSequence
from homenode.engine.runtime import planned_parts
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.steps.step_load import StepLoad

_MOST = 5


class AnswerDrafts(Drafter):
    """A `Drafter`. `answers`: the tokens that follow each prompt. `share`: of the sequences that decode, those
    with guesses in a step. `accepted` and `rejected` count.
    """

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int, seed: int = 0) -> None:
        self._answers, self._vocab_size, self._rng = answers, vocab_size, random.Random(seed)
        self.share = 0.7
        self.accepted = self.rejected = 0

    @property
    def max_drafted(self) -> int:
        return _MOST

    def awaits(self, running: Sequence[EngineSequence]) -> bool:
        return self._rng.random() < self.share

    def drafts(self, decoding: Sequence[EngineSequence], load: StepLoad, room: int) -> dict[int, tuple[int, ...]]:
        return {
            index: self._guess(sequence) for index, sequence in enumerate(decoding) if self._rng.random() < self.share
        }

    def learn(self, sequence: EngineSequence, drafted: tuple[int, ...], accepted: int) -> None:
        self.accepted += accepted
        self.rejected += len(drafted) - accepted

    def _guess(self, sequence: EngineSequence) -> tuple[int, ...]:
        count = self._rng.randint(1, _MOST)
        right = self._answers[tuple(sequence.request.prompt_ids)][sequence.num_outputs :][: self._rng.randint(0, count)]
        return (*right, *(self._rng.randrange(self._vocab_size) for _ in range(count - len(right))))


def draft_answers(
    monkeypatch: pytest.MonkeyPatch, prompts: Sequence[list[int]], answers: Sequence[Sequence[int]], vocab_size: int
) -> AnswerDrafts:
    """Have engines that are made from now on guess these."""
    drafts = AnswerDrafts(dict(zip(map(tuple, prompts), answers, strict=True)), vocab_size)
    monkeypatch.setattr(planned_parts, "DraftChoice", lambda *settings: drafts)
    return drafts
