"""Texts that answers must not hold, repetitions that cost, and Mirostat: what the worker makes of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from homenode.engine.step import StartSequence
from homenode.engine.token_rules import TokenRules
from homenode.engine.worker.forbidden import ForbiddenTexts
from homenode.engine.worker.repetitions import RepetitionPenalty
from homenode.engine.worker.sequences import SequenceTable
from homenode.sampling import SamplingParams

PIECES = ["a", "b", "c", "ab", "bc", "abc", "ca", "cab", " ", "aab", "bcb", "ba"]


class Pieces:
    special_token_ids = ()

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token].encode()


@pytest.mark.parametrize("word", ["abc", "aab", "abab", "b", "caca"])
def test_no_way_to_write_a_forbidden_text_is_left(word: str) -> None:
    """Texts by chance from all tokens that are not forbidden: none holds the word, and nothing else is forbidden."""
    rules, rng = TokenRules(Pieces(), len(PIECES)), random.Random(3)
    for _ in range(200):
        watching, text = ForbiddenTexts([rules.forbidden(word)], ()), ""
        for _ in range(12):
            banned = set(watching.penalties()[0].tolist())
            assert banned == {t for t, piece in enumerate(PIECES) if word in text + piece}
            token = rng.choice(sorted(set(range(len(PIECES))) - banned))
            text += PIECES[token]
            watching.add(token)
        assert word not in text


def test_a_repetition_costs_more_the_longer_it_is() -> None:
    params = SamplingParams(dry_multiplier=2.0, dry_base=3.0, dry_allowed_length=2, dry_breaker_ids=(9,))
    penalty = RepetitionPenalty(params, np.array([1, 2, 3, 4, 1, 2, 3], np.int32))
    tokens, values = penalty.penalties()
    assert tokens.tolist() == [4] and values.tolist() == [-6.0]  # three tokens stood before: 2 * 3 ** (3 - 2)
    penalty.add(7)
    assert not len(penalty.penalties()[0])
    broken = RepetitionPenalty(params, np.array([1, 9, 3, 4, 1, 9, 3], np.int32))
    assert not len(broken.penalties()[0])  # one token behind the breaker is shorter than what is allowed


def test_only_the_last_tokens_are_looked_at() -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=1, dry_penalty_last_n=3)
    assert not len(RepetitionPenalty(params, np.array([5, 6, 1, 2, 5], np.int32)).penalties()[0])
    assert RepetitionPenalty(params, np.array([1, 5, 6, 5], np.int32)).penalties()[0].tolist() == [6]


def test_mirostat_moves_its_bound_towards_the_surprise_it_aims_at() -> None:
    table = SequenceTable(4)
    params = SamplingParams(mirostat=2, mirostat_tau=3.0, mirostat_eta=0.5, temperature=1.0)
    table.start(StartSequence(1, [1, 2], 2, params))
    table.start(StartSequence(2, [1, 2], 2, params, surprise_limit=4.5))
    first, second = table.slot(1), table.slot(2)
    limits = table.settings["max_surprise"]
    assert limits[[first, second]].tolist() == [6.0, 4.5]
    table.steer(np.array([first, second]), np.array([5.0, 1.0], np.float32))
    assert limits[[first, second]].tolist() == [5.0, 5.5]
    table.end(1), table.end(2)
    assert table.num_steered == 0 and table.num_biased == 0
