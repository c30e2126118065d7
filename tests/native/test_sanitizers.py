"""The native core under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, as a program of its own:
csrc/tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from homenode.compute.native import available_levels
from tests.paths import ROOT

EXAMPLES = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "80"))
BUILD_S = 1200
TRIVIAL = "#include <thread>\nint main() { int x = 0; std::thread([&] { x = 1; }).join(); return x - 1; }\n"

# Rounds of each check with 80 examples; ThreadSanitizer looks at what several threads touch.
CHECKS = [
    *(
        ("address,undefined", check, rounds)
        for check, rounds in (
            ("attention", 20),
            ("chosen", 20),
            ("coded", 20),
            ("copy", 40),
            ("delta", 40),
            ("elements", 40),
            ("lane", 30),
            ("linear", 10),
            ("packed", 10),
            ("program", 8),
            ("ranks", 30),
            ("sampling", 20),
            ("shared_weights", 10),
            ("stream", 40),
            ("thread_pool", 20),
        )
    ),
    *(
        ("thread", check, rounds)
        for check, rounds in (
            ("attention", 5),
            ("chosen", 5),
            ("copy", 20),
            ("delta", 20),
            ("lane", 30),
            ("linear", 5),
            ("packed", 5),
            ("program", 10),
            ("ranks", 60),
            ("sampling", 10),
            ("shared_weights", 5),
            ("thread_pool", 30),
        )
    ),
]


def tool(name: str) -> str | None:
    """A program next to this Python, or else on the path."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@cache
def lacking(sanitizers: str, folder: Path) -> str | None:
    """Why nothing can be built with these sanitizers here; None when it can."""
    compiler = os.environ.get("CXX", "c++")
    if tool("cmake") is None:
        return "cmake is not installed; `make test` installs it"
    if shutil.which(compiler) is None:
        return f"there is no compiler {compiler}"
    source, program = folder / "trivial.cpp", folder / "trivial"
    source.write_text(TRIVIAL)
    built = subprocess.run(
        [compiler, f"-fsanitize={sanitizers}", "-pthread", source, "-o", program], capture_output=True, text=True
    )
    if built.returncode:
        return f"{compiler} has no runtime for -fsanitize={sanitizers}: {built.stderr.strip()[-200:]}"
    ran = subprocess.run([program], capture_output=True, text=True)
    return (
        f"a program with -fsanitize={sanitizers} does not run here: {ran.stderr.strip()[-200:]}"
        if ran.returncode
        else None
    )


@cache
def program(sanitizers: str) -> Path:
    """The checks, built with these sanitizers; what has not changed is not compiled again."""
    name = f"sanitize-{sanitizers.partition(',')[0]}"
    return built(name, f"-DHOMENODE_SANITIZE={sanitizers}", f"-DHOMENODE_ONLY_LEVELS={'|'.join(levels_to_check())}")


def levels_to_check() -> list[str]:
    """The levels that run on this machine when tiles are emulated."""
    levels = list(available_levels())
    return [*levels, "amx"] if "avx512bf16" in levels and "amx" not in levels else levels


def built(name: str, *options: str) -> Path:
    """The checks, built in the folder of this name with these options of CMake; by one process at a time."""
    return built_folder(name, *options) / "homenode_checks"


def built_folder(name: str, *options: str) -> Path:
    """The folder of this name, everything in it built with these options of CMake."""
    cmake, ninja = tool("cmake"), tool("ninja")
    assert cmake
    folder = ROOT / "build" / name
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
    with alone_in(folder):
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(folder), *generator, *options],
            [cmake, "--build", str(folder), "--parallel", str(len(os.sched_getaffinity(0)))],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
            assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return folder


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Tests run in several processes; who comes second waits, and finds everything built."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.slow  # each kind of sanitizer is a build of minutes; `make sanitize` runs them
@pytest.mark.timeout(BUILD_S + 600)
@pytest.mark.parametrize(
    ("sanitizers", "check", "rounds"),
    CHECKS,
    ids=[f"{sanitizers.partition(',')[0]}-{check}" for sanitizers, check, _ in CHECKS],
)
def test_sanitizers_find_nothing(
    sanitizers: str, check: str, rounds: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if reason := lacking(sanitizers, tmp_path_factory.getbasetemp()):
        pytest.skip(reason)
    rounds = max(1, rounds * EXAMPLES // 80)
    # Leaks are not looked for: that takes the right to trace, which containers do not give.
    options = {
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    done = subprocess.run(
        [program(sanitizers), check, str(rounds), "1"], capture_output=True, text=True, env={**os.environ, **options}
    )
    assert done.returncode == 0, done.stderr[-8000:]
    assert done.stdout == f"{check}: {rounds} rounds\n"
