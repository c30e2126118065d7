"""What `benchmarks.gaps` says of a server: gaps beside a long prompt, and how servers compare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gap_figures import Beside, figures_of, gaps_within, table

ROUND = Beside(gaps=(0.1, 0.4, 0.2), reader_alone=0.05, short=(0.3, 0.5), short_alone=0.1, long=10.0)


def test_a_gap_counts_that_a_prompt_lies_in() -> None:
    moments = [0.0, 1.0, 2.0, 6.0, 7.0, 9.0]
    assert gaps_within(moments, 2.5, 6.5) == [4.0, 1.0]
    assert gaps_within(moments, 2.0, 6.0) == [4.0]
    assert gaps_within(moments, 3.0, 4.0) == [4.0]  # no token came meanwhile
    assert gaps_within([1.0], 0.0, 9.0) == []


def test_the_longest_silence_of_any_round_counts_and_the_median_of_waits() -> None:
    figures = figures_of([ROUND, replace(ROUND, gaps=(2.0,), short=(0.7,), long=20.0)])
    assert (figures.silence, figures.short, figures.long) == (2.0, 0.5, 15.0)


@pytest.mark.parametrize("rounds", [[], [replace(ROUND, gaps=())], [ROUND, replace(ROUND, short=())]])
def test_nothing_is_said_of_a_round_that_shows_nothing(rounds: list[Beside]) -> None:
    with pytest.raises(ValueError, match="round"):
        figures_of(rounds)


def test_others_are_compared_with_the_first() -> None:
    slow = replace(ROUND, gaps=(20.0,), short=(40.0,), long=20.0)
    shown = table({"ours": figures_of([ROUND]), "theirs": figures_of([slow])})
    assert "| ours | 0.40 s | 0.40 s | 0.05 s | 0.40 s | 0.10 s | 10.00 s |" in shown
    assert shown.endswith("ours, of what theirs takes: silence 1/50.0, short prompt 1/100.0, long prompt 0.50")
