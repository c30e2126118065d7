"""The runner of measurements: turns, intervals and records."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from homenode import __version__
from homenode.bench.runner import Interval, in_turns, keep_record
from tests.paths import ROOT

FIGURES = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=60)


@given(FIGURES)
@settings(max_examples=50)
def test_an_interval_holds_its_median_and_lies_within_the_values(values: list[float]) -> None:
    found = Interval.of(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    if len(values) < 6:
        assert (found.low, found.high) == (min(values), max(values))


def test_an_interval_is_that_of_order_statistics() -> None:
    assert Interval.of([*range(1, 31)]) == (15.5, 10, 22)
    assert Interval.of_ratios([2.0, 3.0, 8.0], [1.0, 2.0, 2.0]) == (2.0, 1.5, 4.0)
    assert str(Interval(1.0, 0.98765, 1.02)) == "1.000 (0.988 to 1.020)"


def test_each_side_begins_as_often_as_the_other() -> None:
    turns = list(in_turns(("old", "new"), 6))
    assert [number for number, _ in turns] == [*range(6)]
    assert [order[0] for _, order in turns] == ["old", "new"] * 3
    assert all(set(order) == {"old", "new"} for _, order in turns)


def test_a_record_says_machine_and_versions(tmp_path: Path) -> None:
    keep_record(None, figure=1)
    keep_record(tmp_path / "a.json", {"llama.cpp": "b1"}, figure=1)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["versions"]["llama.cpp"] == "b1" and found["versions"]["homenode"].startswith(__version__)
    assert found["machine"]["processor"] and found["machine"]["cpus"] > 0 and found["figure"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_nobody_makes_intervals_or_machine_lines_of_its_own() -> None:
    others = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "src/homenode/bench").rglob("*.py")]
    found = {path.name for path in others if re.search(r"1\.96\b|platform\.release", path.read_text(encoding="utf-8"))}
    assert found == {"runner.py"}
