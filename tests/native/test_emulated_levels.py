"""The kernels of AVX-VNNI, AVX-512 and AMX on any x86-64 processor with AVX2, under AddressSanitizer and UBSan: `make
levels`.

Plain functions stand in for their intrinsics (csrc/kernels/emulated), so what is proved is what these kernels say, not
what the compiler made of it for the processors they are for: there test_level_table.py and test_sanitizers.py run them
as they are.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from homenode.compute.native import available_levels
from tests.native.test_level_table import check, table_of
from tests.native.test_sanitizers import BUILD_S, EXAMPLES, built, lacking

SANITIZERS = "address,undefined"
LEVELS = ("avx2vnni", "avx512", "avx512bf16", "amx")
# Rounds with 80 examples; each is gone through at the scalar level and at these.
CHECKS = (
    ("attention", 5),
    ("copy", 20),
    ("delta", 20),
    ("elements", 40),
    ("lane", 10),
    ("linear", 4),
    ("packed", 5),
    ("program", 8),
    ("sampling", 10),
)

pytestmark = [
    pytest.mark.slow,  # to compile them takes minutes
    pytest.mark.timeout(BUILD_S + 900),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64 processors"),
]


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checks with the emulated levels and the scalar one."""
    if "avx2" not in available_levels():
        pytest.skip("what stands in for the instructions needs a processor with AVX2")
    if reason := lacking(SANITIZERS, tmp_path_factory.getbasetemp()):
        pytest.skip(reason)
    options = (
        f"-DHOMENODE_SANITIZE={SANITIZERS}",
        "-DHOMENODE_EMULATE_AVX512=ON",
        f"-DHOMENODE_ONLY_LEVELS={'|'.join(LEVELS)}",
    )
    return built("checks-emulated", *options)


def test_every_kernel_at_every_emulated_level(program: Path) -> None:
    table = table_of([program])
    check(table, ("scalar", *LEVELS))
    assert {level for level, column in table.items() if column.how == "emulated"} == set(LEVELS)


@pytest.mark.parametrize(("name", "rounds"), CHECKS)
def test_checks_at_emulated_levels(program: Path, name: str, rounds: int) -> None:
    """A row alone is the row of a batch, several threads compute what one does; and nothing is read that is
    not there.
    """
    rounds = max(1, rounds * EXAMPLES // 80)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [program, name, str(rounds), "1"], capture_output=True, text=True, env=environment, timeout=800
    )
    assert done.returncode == 0, done.stderr[-8000:]
    assert done.stdout == f"{name}: {rounds} rounds\n"
