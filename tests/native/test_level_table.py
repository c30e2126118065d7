"""Every kernel at every level against the scalar level: levels of this processor, AMX with emulated tiles, and Arm's
through an emulator. Levels of x86-64 that this processor lacks: test_emulated_levels.py.

`csrc/tests/levels.cpp` does the comparing, over random shapes; here the cells of the table are counted, and it is
printed (`pytest -s`).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from homenode.compute.activations import PAIRS, PLAIN
from tests.native.test_sanitizers import BUILD_S, built, lacking, levels_to_check, program, tool
from tests.native.weights import FORMATS

ROUNDS = 6
KERNELS = (
    *FORMATS,
    *(f"{name}_mul" for name in (*PLAIN, *PAIRS)),
    *PLAIN,
    *("attention f32", "attention bf16", "attention int8"),
    *("attention within f32", "attention within bf16", "attention within int8"),
    *(
        "rms_norm",
        "rotate",
        "divide",
        "soft_cap",
        "sigmoid_mul",
        "multiply_rows",
        "add_positive",
        "add_weighted",
        "convolve",
        "delta_rule",
        "selective_scan",
        "exponentials",
        "sum_exponentials",
        "find_largest",
        "merge",
        "copy_tiles",
    ),
)
EMULATED = {"aarch64": ("qemu-aarch64", "-cpu", "max")}
CROSS = {"aarch64": "aarch64-linux-gnu-g++"}
ARM_LEVELS = ("scalar", "neon", "dotprod", "i8mm")
ARM_CHECKS = (("linear", 2), ("program", 3), ("elements", 5), ("copy", 3))


@dataclass(slots=True)
class Column:
    """One level: `native` or `emulated`, and what was found of each kernel."""

    how: str
    cells: dict[str, str] = field(default_factory=dict)


Table = Mapping[str, Column]


def table_of(command: Sequence[str | Path]) -> Table:
    """What `homenode_checks levels` prints: for each level the largest difference of each kernel."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [*command, "levels", str(ROUNDS), "1"], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *cells, last = done.stdout.splitlines()
    assert last == f"levels: {ROUNDS} rounds"
    table: dict[str, Column] = {}
    for kernel, level, how, difference in (line.split("\t") for line in cells):
        table.setdefault(level, Column(how)).cells[kernel] = "same bits" if float(difference) == 0 else difference
    return table


def check(table: Table, levels: Sequence[str]) -> None:
    """Print the table; an empty cell fails."""
    assert set(table) == set(levels)
    rows = {"": [table[level].how for level in levels]} | {
        kernel: [table[level].cells.get(kernel, "") for level in levels] for kernel in KERNELS
    }
    print("\n" + " " * 17 + "".join(f"{level:>12}" for level in levels))
    for kernel, cells in rows.items():
        print(f"{kernel:17}" + "".join(f"{cell:>12}" for cell in cells))
    assert not [(kernel, level) for level in levels for kernel in KERNELS if kernel not in table[level].cells]


@cache
def cross_built(machine: str) -> Path:
    """The checks for another processor, in a program that needs no library there."""
    target = [
        f"-DCMAKE_SYSTEM_PROCESSOR={machine}",
        f"-DCMAKE_CXX_COMPILER={CROSS[machine]}",
        "-DCMAKE_SYSTEM_NAME=Linux",
    ]
    return built(f"checks-{machine}", *target, "-DHOMENODE_CHECKS=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static")


@pytest.fixture
def arm_program() -> list[str | Path]:
    """The command that runs the checks on an Arm processor, this one or an emulated one."""
    for name in (CROSS["aarch64"], EMULATED["aarch64"][0]):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user)")
    if tool("cmake") is None:
        pytest.skip("cmake is not installed; `make test` installs it")
    return [*EMULATED["aarch64"], cross_built("aarch64")]


@pytest.mark.slow  # builds for minutes, as do the others here; `make levels` runs them
@pytest.mark.timeout(BUILD_S + 600)
def test_levels_of_this_processor(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := lacking("address,undefined", tmp_path_factory.getbasetemp()):
        pytest.skip(reason)
    check(table_of([program("address,undefined")]), levels_to_check())


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 600)
@pytest.mark.skipif(platform.machine() == "aarch64", reason="this is an Arm processor: the levels run natively")
def test_levels_of_arm(arm_program: list[str | Path]) -> None:
    check(table_of(arm_program), ARM_LEVELS)


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 600)
@pytest.mark.parametrize(("name", "rounds"), ARM_CHECKS)
@pytest.mark.skipif(platform.machine() == "aarch64", reason="this is an Arm processor: the other tests run natively")
def test_checks_on_arm(arm_program: list[str | Path], name: str, rounds: int) -> None:
    """A row alone is the row of a batch, several threads compute what one does: at every Arm level."""
    done = subprocess.run([*arm_program, name, str(rounds), "1"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{name}: {rounds} rounds\n"
