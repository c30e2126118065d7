"""The list of requests that an engine gives to whoever looks: the same numbers as its figures, one by one."""

from __future__ import annotations

from collections import Counter

import pytest

from homenode.engine.scheduler_config import SchedulerConfig
from tests.pure.schedule_bench import Bench, limits_of


def rows(bench: Bench, most: int = 100):  # type: ignore[no-untyped-def]
    return bench.scheduler.list_requests(3, most, bench.now)


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("blocks", [6, 40])
def test_rows_are_the_figures_one_by_one_at_every_step(slots: int, blocks: int) -> None:
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=slots)
    bench = Bench(config, limits=limits_of(num_blocks=blocks))
    for length in (3, 9, 5, 14, 2, 7):
        bench.submit(list(range(length)), max_tokens=6)
    seen: set[str] = set()
    for _ in range(200):
        told, figures = rows(bench), bench.scheduler.statistics()
        reasons = Counter(row.waits_for for row in told.rows if row.waits_for is not None)
        assert dict(reasons) == figures.waiting_for
        assert sum(row.waits_for is None for row in told.rows) == figures.num_running
        assert told.number == 3 and told.left_out == 0
        for row in told.rows:
            request = bench.requests[row.id]
            assert row.prompt == len(request.prompt_ids) and 0 <= row.computed <= row.prompt
            assert row.generated <= 6 and row.age_s >= 0
        seen |= {*map(str, reasons)}
        if not told.rows:
            break
        bench.step()
        bench.finish_step()
    assert not rows(bench).rows
    assert "slots" in seen or slots == 8


def test_a_list_is_bounded_and_says_what_it_leaves_out() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=3))
    for _ in range(9):
        bench.submit([1, 2, 3], max_tokens=4)
    bench.step()
    told = rows(bench, 2)
    running = sum(row.waits_for is None for row in told.rows)
    assert (running, len(told.rows), told.left_out) == (2, 4, 5)
    bench.run()
