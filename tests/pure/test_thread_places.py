"""Which compute thread has strayed, told from the CPUs of all threads of an engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from homenode.host.bind.engine_plan import RecordedPlan
from homenode.host.bind.thread_places import place_threads

PLAN = RecordedPlan("", (0, 1, 2), {})


@pytest.mark.parametrize(
    ("masks", "strayed", "elsewhere"),
    [
        ({10: (0,), 11: (1,), 12: (2,)}, [], {}),
        ({10: (0,), 11: (1,), 12: (2,), 13: (3,), 14: (0, 1, 2, 3)}, [], {}),  # a loop that has its own CPU is at home
        ({10: (0,), 11: (1,), 12: (5,)}, [2], {5: 12}),
        ({10: (0,), 11: (1,), 12: (1,)}, [2], {}),  # two on one CPU
        ({10: (0,), 11: (1,), 12: (0, 1, 2, 3)}, [2], {}),  # bound to nothing any more
        ({10: (7,), 11: (7,), 12: (7,)}, [0, 1, 2], {7: 10}),
    ],
)
def test_a_cpu_without_its_thread_is_told(
    masks: Mapping[int, tuple[int, ...]], strayed: list[int], elsewhere: Mapping[int, int]
) -> None:
    seen = place_threads(99, PLAN, masks)
    assert [place.cpu for place in seen.places if place.strayed] == strayed
    assert seen.elsewhere == elsewhere
    assert [place.cpu for place in seen.places] == [0, 1, 2]
    assert seen.report.ok == (not strayed)
    for finding in seen.report.findings:
        assert "homenode doctor" in finding.remedy and "cpuset" in finding.remedy


def test_threads_that_were_not_pinned_cannot_stray() -> None:
    seen = place_threads(99, RecordedPlan("", (), {}), {10: (0, 1)})
    assert seen.places == () and seen.report.ok
