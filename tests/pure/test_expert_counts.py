"""How often experts were used: what parts have counted put together, and the file that keeps it."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.engine.executor.expert_usage import CountingExecutor
from homenode.engine.experts.usage import EXPERT_USES, of_engine, of_part, read_table, usage_stats
from homenode.engine.experts.usage_file import add_counts, counts_problem
from homenode.engine.step import WorkerLimits
from homenode.errors import UserError
from homenode.model.expert_placement import ExpertUse
from homenode.model.formats.expert_counts import read_counts, read_placement
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.testing.scripted_executor import ScriptedExecutor
from tests.model.toys import toy_spec

SPEC = toy_spec("qwen3_moe", num_layers=3)  # whose first layer has an ordinary MLP
EXPERTS = 9


def table(*rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Each layer's counts: a number for all its experts."""
    return np.array([[row] * EXPERTS for row in rows], np.uint64)


def test_mixtures_of_a_program_are_layers_of_its_part() -> None:
    assert SPEC.moe and SPEC.moe.dense_layers == (0,)
    assert np.array_equal(of_part(ModelPart.whole(SPEC), SPEC, table(5, 7)), table(0, 5, 7))
    assert np.array_equal(of_part(ModelPart.whole(SPEC), SPEC, table(5)), table(0, 5, 0)), (
        "in the middle of the first step"
    )
    last = plan_parts(SPEC, {}, PartitionSpec(stages=2, layers=(1, 2)))[1]
    assert np.array_equal(of_part(last, SPEC, table(5, 7)), table(5, 7))
    first = plan_parts(SPEC, {}, PartitionSpec(stages=2, layers=(1, 2)))[0]
    assert np.array_equal(of_part(first, SPEC, np.zeros((0, 0), np.uint64)), table(0))


def test_ranks_with_whole_experts_add_up_and_others_count_alike() -> None:
    parts = plan_parts(SPEC, {}, PartitionSpec(stages=1, ranks=2, experts_whole=True))
    own = [table(0, 4, 4), table(0, 6, 6)]
    for rank, part in enumerate(parts):
        own[rank][:, [e for e in range(EXPERTS) if e not in part.experts[1]]] = 0
    both = of_engine(list(zip(parts, own, strict=True)), SPEC)
    assert both[1].tolist() == [4, 6] * 4 + [4]
    alike = plan_parts(SPEC, {}, PartitionSpec(ranks=2))
    assert np.array_equal(of_engine([(alike[0], table(0, 4, 4)), (alike[1], table(0, 5, 5))], SPEC), table(0, 5, 5))


def test_figures_are_sums_and_the_worst_of_each_layer() -> None:
    counts = table(0, 2, 1)
    counts[1, 3] += 9
    found = usage_stats(counts, whole=False)
    assert found == {"tokens": [3, 3, 3, 12, 3, 3, 3, 3, 3], "imbalance": [[1, round(11 / 3, 4)], [2, 1.0]]}
    assert usage_stats(counts, whole=True)["layers"] == counts.tolist()


@pytest.mark.parametrize(
    "told",
    [None, "x", [[1, 2]], [[1] * EXPERTS] * 2, [[-1] * EXPERTS] * 3, [[1 << 70] * EXPERTS] * 3, [["a"] * EXPERTS] * 3],
)
def test_what_is_no_table_is_not_taken(told: object) -> None:
    assert read_table(told, 3, SPEC) is None
    assert np.array_equal(read_table(table(0, 1, 2).tolist(), 3, SPEC), table(0, 1, 2))


def test_a_file_is_added_to_and_read_as_a_placement(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: add_counts(path, table(0, 1, 2), SPEC, 30.0), range(20)))
    assert read_counts(path, SPEC) == ((), (20.0,) * EXPERTS, (40.0,) * EXPERTS)
    assert read_placement(str(path), SPEC) == ExpertUse(read_counts(path, SPEC))
    assert [file.name for file in tmp_path.iterdir()] == ["counts.json"]


def test_nobody_waits_for_a_turn_that_does_not_come(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        assert not add_counts(tmp_path / "counts.json", table(0, 1, 2), SPEC, 0.0)
    finally:
        os.close(folder)
    assert add_counts(tmp_path / "counts.json", table(0, 1, 2), SPEC, 0.0)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("folder", "cannot be written"),
        ("nowhere/counts.json", "in a folder that is there"),
        ("other.json", "counts of 1 layer; the model has 3"),
    ],
)
def test_files_that_cannot_be_added_to_are_refused(tmp_path: Path, setting: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.json").write_text("[[]]")
    problem = counts_problem(str(tmp_path / setting), SPEC)
    assert problem is not None and words in problem.message and problem.param == "expert_counts"
    assert counts_problem(str(tmp_path / "new.json"), SPEC) is None and counts_problem(None, SPEC) is None


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    problem = counts_problem(str(tmp_path / "new.json"), toy_spec("llama"))
    assert isinstance(problem, UserError) and "has no experts" in problem.message


class _Telling(ScriptedExecutor):
    counted = table(0, 1, 1)

    def statistics(self) -> dict[str, Any]:
        return {EXPERT_USES: self.counted.copy(), "threads": 1}


def test_an_executor_adds_what_is_new_each_minute_and_at_the_end(tmp_path: Path) -> None:
    path, now = tmp_path / "counts.json", [0.0]
    inner = _Telling(WorkerLimits(num_blocks=1, block_size=32, max_model_len=32, vocab_size=2, max_sampled_rows=1))
    executor = CountingExecutor(inner, SPEC, str(path), lambda: now[0])
    assert executor.statistics() == {"threads": 1, "experts": usage_stats(inner.counted, whole=True)}
    assert not path.exists()
    now[0] = 61.0
    executor.statistics()
    assert read_counts(path, SPEC)[1] == (1,) * EXPERTS
    inner.counted = table(0, 5, 3)
    executor.statistics()
    assert read_counts(path, SPEC)[1] == (1,) * EXPERTS
    executor.close()
    executor.close()
    assert read_counts(path, SPEC) == ((), (5,) * EXPERTS, (3,) * EXPERTS)
