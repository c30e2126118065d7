"""`bench attention`: every kind of KV memory is measured, the figures agree with each other, bad plans are refused
before anything is measured.
"""

from __future__ import annotations

import json

import pytest

from homenode.bench.compute import attention as bench_attention
from homenode.bench.compute import passes
from homenode.bench.compute.attention import AttentionPlan, check_plan, measure_attention
from homenode.cli.main import main
from homenode.compute.native import NativeBackend
from homenode.errors import UserError
from tests.native.test_bench_kernels import Counting, Steady

TYPES = ("f32", "bf16", "int8")
TOKEN_BYTES = {"f32": 4 * 24, "bf16": 2 * 24, "int8": 24 + 4}  # of one head's key, or value, of 24 elements


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory and little time."""
    monkeypatch.setattr(bench_attention, "_KV_BYTES", 1 << 20)
    monkeypatch.setattr(passes, "_RUN_SECONDS", 0.001)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 1), (2, 4)])
def test_every_type_is_measured_and_its_figures_agree(batch: int, rows: int) -> None:
    watch = Counting()
    contexts = (rows, 300)
    plan = AttentionPlan(TYPES, ((6, 2, 24),), contexts, batch, repeat=1, rows=rows)
    results = list(measure_attention(NativeBackend([-1, -1]), Steady(), plan, watch))
    assert [(r.type, r.context) for r in results] == [(name, n) for name in TYPES for n in contexts]
    assert watch.names == [f"{name} 6x2x24 at {n}" for name in TYPES for n in contexts]
    assert watch.runs == 2 * plan.points
    for r in results:
        kv_bytes = batch * r.context * 2 * 2 * TOKEN_BYTES[r.type]
        assert r.seconds > 0
        assert r.gb_s == pytest.approx(kv_bytes / r.seconds / 1e9)
        looked_at = sum(r.context - row for row in range(rows))
        assert r.gops == pytest.approx(4 * batch * looked_at * 6 * 24 / r.seconds / 1e9)
        assert r.read_share == pytest.approx(r.gb_s / 100)
        peak = {"f32": 1000, "bf16": 2000, "int8": 4000}[r.type]
        assert r.fraction == pytest.approx(max(r.gb_s / 100, r.gops / peak))
        assert r.limit == ("read" if r.gb_s / 100 >= r.gops / peak else "multiply")
        assert r.steady


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (AttentionPlan(types=("f16",)), "no KV memory of f16"),
        (AttentionPlan(shapes=((14, 4, 64),)), "multiple of the KV heads"),
        (AttentionPlan(shapes=((8, 4, 63),)), "even head"),
        (AttentionPlan(contexts=(1 << 40,)), "GiB for one layer"),
        (AttentionPlan(contexts=(8, 512), rows=9), "9 tokens of a context of 8 tokens"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: AttentionPlan, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_plan(plan)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_prints_json_or_a_table(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    arguments = ["--types", "bf16", "--shapes", "4x2x32", "--contexts", "100", "--repeat", "1", "--threads", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "attention", *arguments, *(["--json"] if as_json else [])])
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    if as_json:
        (found,) = json.loads(out)["results"]
        assert (found["type"], found["heads"], found["kv_heads"], found["head_dim"], found["context"]) == (
            "bf16",
            4,
            2,
            32,
            100,
        )
    else:
        assert "4x2x32" in out
        assert "of reading" in out


def test_shapes_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "attention", "--shapes", "14x2"])
    assert ended.value.code
    assert "no list of shapes" in capsys.readouterr().err
