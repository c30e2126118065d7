"""`bench kernels`: every format can be measured, the figures agree with each other, bad plans are refused before
anything is measured.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from homenode.bench.compute import kernels as bench_kernels
from homenode.bench.compute import passes
from homenode.bench.compute.kernels import KernelPlan, check_plan, measure_kernels
from homenode.bench.compute.stored import FORMATS, random_blocks, stored_matrix
from homenode.cli.main import main
from homenode.compute.native import NativeBackend
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import BY_NAME
from homenode.errors import UserError


class Steady:
    """A meter of an imaginary machine that never changes."""

    def read(self, eight_streams: bool, short: bool) -> float:
        return 100e9

    def multiply(self, kind: str) -> float:
        return {"int8": 4000e9, "bf16": 2000e9, "f32": 1000e9, "int6": 5000e9}[kind]

    def round_trips(self) -> tuple[float, ...]:
        return (40.0,)


class Counting:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.runs = 0

    def started(self, what: str) -> None:
        self.names.append(what)

    def ran(self) -> None:
        self.runs += 1

    def discarded(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory and little time."""
    monkeypatch.setattr(bench_kernels, "_WEIGHT_BYTES", 1 << 20)
    monkeypatch.setattr(passes, "_RUN_SECONDS", 0.001)


@pytest.mark.usefixtures("quick")
def test_every_format_is_measured_and_its_figures_agree() -> None:
    watch = Counting()
    plan = KernelPlan(FORMATS, ((256, 96),), (1, 5), repeat=1)
    results = list(measure_kernels(NativeBackend([-1, -1]), Steady(), plan, watch))
    assert [(r.format, r.tokens) for r in results] == [(name, n) for name in FORMATS for n in (1, 5)]
    assert watch.names == [f"{name} 256x96" for name in FORMATS]
    assert watch.runs == 2 * plan.points
    for r in results:
        assert r.seconds > 0
        assert r.gops == pytest.approx(2 * 256 * 96 * r.tokens / r.seconds / 1e9)
        assert r.gb_s == pytest.approx(96 * BY_NAME[r.format].row_bytes(256) / r.seconds / 1e9)
        assert r.fraction == pytest.approx(r.gops / r.ceiling_gops)
        assert r.ceiling_gops == pytest.approx(
            min(100 * r.intensity, {"int8": 4000, "bf16": 2000, "f32": 1000, "int6": 5000}[r.path])
        )
        assert r.cpu_gops > 0
        assert r.steady


def test_a_shape_that_ends_inside_a_block_is_refused() -> None:
    with pytest.raises(UserError, match="Q4_K has blocks of 256"):
        check_plan(KernelPlan(("Q8_0", "Q4_K"), ((96, 32),)), frozenset(FORMATS))


@pytest.mark.parametrize("name", FORMATS)
def test_stored_matrices_have_finite_values_of_sensible_size(name: str) -> None:
    dtype = BY_NAME[name]
    with stored_matrix(dtype, 40, 512) as fd:
        weight = NativeBackend([-1]).weight_from_file(StoredMatrix(fd, 0, dtype, 40, 512), name)
    values = np.stack([weight.unpack_row(row) for row in range(40)])
    assert np.isfinite(values).all()
    assert 1e-4 < np.abs(values).mean() < 100


def test_blocks_repeat_beyond_a_bound() -> None:
    blocks = random_blocks(BY_NAME["Q8_0"], (1 << 14) + 3)
    assert blocks.shape == ((1 << 14) + 3, 34)
    assert np.array_equal(blocks[:3], blocks[1 << 14 :])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "kernels", *arguments])
    return ended.value.code or 0, *capsys.readouterr()


@pytest.mark.usefixtures("quick")
def test_the_command_prints_json_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawing = tmp_path / "roof.svg"
    code, out, err = run(
        capsys,
        "--formats",
        "q8_0,BF16",
        "--shapes",
        "256x64",
        "--tokens",
        "1,3",
        "--repeat",
        "1",
        "--threads",
        "1",
        "--json",
        "--plot",
        str(drawing),
    )
    assert code == 0, err
    found = json.loads(out)
    assert [(r["format"], r["columns"], r["rows"], r["tokens"]) for r in found["results"]] == [
        ("Q8_0", 256, 64, 1), ("Q8_0", 256, 64, 3), ("BF16", 256, 64, 1), ("BF16", 256, 64, 3),
    ]  # fmt: skip
    assert found["backend"]["threads"] == 1
    assert ET.parse(drawing).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--formats", "Q9_9"), "no kernel for format Q9_9"),
        (("--shapes", "12"), "no list of shapes"),
        (("--shapes", "0x32"), "no list of shapes"),
        (("--tokens", "0"), "0 is too small"),
        (("--shapes", "100x32", "--formats", "Q8_0"), "blocks of 32"),
        (("--plot", "roof.gif"), ".svg or .png"),
        (("--plot", "/nowhere/roof.svg"), "/nowhere"),
        (("--isa", "mmx"), "mmx"),
    ],
)
def test_bad_arguments_end_with_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
