"""The cost model against what others have published about placement: directions, sizes, and that no simpler model does
as well.
"""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.numa_drawing import DRAWING, PANELS, Panel, draw
from benchmarks.numa_fit import fit, held_out
from benchmarks.numa_published import Published, Row, always, direction, error_of_gain, error_of_ratio, score
from benchmarks.numa_table import PAGE, page
from homenode.numa_policy import PLANNED_POLICIES

PUBLISHED = Published.load()
ROWS = PUBLISHED.rows


def name_of(row: Row) -> str:
    return f"{row.source}: {row.model}, {row.phase}, {row.before.says} -> {row.after.says}"


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_direction_of_every_row_is_reproduced(row: Row) -> None:
    predicted = PUBLISHED.predicted(row)
    assert direction(predicted) == direction(row.observed), f"observed {row.observed:.2f}, predicted {predicted:.2f}"


def test_the_median_error_of_size_is_at_most_30_percent() -> None:
    found = score(ROWS, PUBLISHED.predicted)
    assert found.passes, found
    assert found.ratio < 0.15 and found.gain < 0.25, "the page says 6 and 18 %"


@pytest.mark.parametrize(
    "constant", [1.0, median(row.observed for row in ROWS), 2.0], ids=["no change", "the median", "twice"]
)
def test_a_constant_model_fails(constant: float) -> None:
    found = score(ROWS, always(constant))
    assert not found.passes
    assert len(found.wrong) >= 3


def test_a_model_that_knows_only_how_many_nodes_compute_fails() -> None:
    """Not even with the right directions taken from the rows: twice the nodes, twice the speed."""
    found = score(ROWS, lambda row: 2.0 if row.before.placement == "local" and row.after.placement == "home" else 1.0)
    assert not found.passes


def test_the_headline_of_the_mirroring_fork() -> None:
    decode, prefill = (row for row in ROWS if row.source.startswith("llama.cpp pull 16000"))
    assert decode.observed == pytest.approx(1.41, abs=0.01) and direction(PUBLISHED.predicted(decode)) == 1
    assert prefill.observed == pytest.approx(1.01, abs=0.01) and direction(PUBLISHED.predicted(prefill)) == 0


def test_the_table_of_isolated_and_mirrored_models() -> None:
    rows = [row for row in ROWS if row.source == "ik_llama.cpp fork numa-mirror"]
    assert len(rows) == 12
    assert median(error_of_ratio(row, PUBLISHED.predicted(row)) for row in rows) < 0.1


def test_the_constants_are_those_of_the_fit() -> None:
    assert fit(PUBLISHED) == PUBLISHED.constants, "run: python -m benchmarks.numa_fit"


def test_rows_of_a_source_that_the_constants_never_saw_are_predicted_too() -> None:
    found = held_out(PUBLISHED)
    assert found.ratio <= 0.20 and found.gain <= 0.35, found
    assert found.wrong <= 2, found


def test_rows_are_sound() -> None:
    assert len(ROWS) >= 25 and len({row.source for row in ROWS}) >= 10
    assert {direction(row.observed) for row in ROWS} == {-1, 0, 1}, "a model that always says yes would do"
    assert len({name_of(row) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert PUBLISHED.predicted(row) > 0


def test_what_is_left_out_says_why() -> None:
    assert len(PUBLISHED.left_out) > 20
    assert all(entry.source and entry.what and len(entry.why) > 8 for entry in PUBLISHED.left_out)


def test_errors_by_hand() -> None:
    row = next(row for row in ROWS if direction(row.observed))
    assert error_of_ratio(row, row.observed) == error_of_gain(row, row.observed) == 0
    assert error_of_gain(row, 1.0) == pytest.approx(1.0)
    assert error_of_gain(row, row.observed**2) == pytest.approx(1.0)
    assert (direction(1.11), direction(1.09), direction(0.92), direction(0.9)) == (1, 0, 0, -1)


# The page.


def test_the_page_is_what_the_record_makes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text, PUBLISHED), "run: python -m benchmarks.numa_table"


def test_the_page_says_that_speed_was_predicted_and_names_the_script() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "was predicted here, not measured" in text and "tools/measure_numa.py" in text
    assert all(f"| `{policy}` |" in text for policy in (*PLANNED_POLICIES, "auto"))


def test_the_drawing_is_what_the_script_makes() -> None:
    assert DRAWING.read_text(encoding="utf-8") == draw(), "run: python -m benchmarks.numa_table"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel.policy))
def test_a_panel_shows_where_the_bytes_are(panel: Panel) -> None:
    """As docs and cost model have it: copies held, and nobody reads over the link but under interleave."""
    held = [row for node in panel.held for row in node]
    copies = 2 if panel.policy in ("mirror", "replicate") else 1
    assert sorted(held) == sorted([*range(8)] * copies)
    assert panel.crossing == (panel.policy == "interleave")
    if not panel.crossing:
        assert all(set(work) <= set(here) for work, here in zip(panel.work, panel.held, strict=True))
    assert {p.policy for p in PANELS} == set(PLANNED_POLICIES)
