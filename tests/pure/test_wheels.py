"""What `make wheels` decides before it compiles anything: targets, Pythons, headers for another processor, checksums,
progress.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.paths import ROOT
from tools.wheels.__main__ import main
from tools.wheels.checksums import write_checksums
from tools.wheels.compilers import GLIBC
from tools.wheels.python_headers import DIFFERENCES, assertions, config_for
from tools.wheels.pythons import Python, choose, find_pythons, read_python
from tools.wheels.run import run, time_left
from tools.wheels.targets import LARGEST, MACHINES, PYTHONS, WheelError, faults, platform_tag

X86, ARM = MACHINES["x86_64"], MACHINES["aarch64"]
CONFIG = """#define ALIGNOF_LONG 8
/* Define if we can use x64 gcc inline assembler */
#define HAVE_GCC_ASM_FOR_X64 1
#  define HAVE_GCC_ASM_FOR_X87 1
/* #undef HAVE_USABLE_WCHAR_T */
#define PY_SUPPORT_TIER 1
#define SIZEOF_LONG 8
#define SIZEOF_WCHAR_T 4
#define SIZEOF_UNHEARD_OF 7
"""


def _python(minor: int, patch: int = 0) -> Python:
    return Python(Path(f"/python3.{minor}"), (3, minor, patch), Path("/headers"), Path("/pyconfig.h"))


def _module(machine: str, levels: tuple[str, ...]) -> bytes:
    head = b"\x7fELF" + bytes(14) + MACHINES[machine].elf.to_bytes(2, "little")
    return head + b"".join(level.encode() + b"\0" for level in levels)


def test_the_levels_and_the_oldest_python_are_those_of_the_project() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    named = re.findall(r"set\(HOMENODE_LEVELS ([a-z0-9 ]+)\)", cmake)
    assert [tuple(levels.split()) for levels in named] == [X86.levels, ARM.levels]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">=3.{PYTHONS[0].minor}"' in project
    assert f'wheel.py-api = "cp3{PYTHONS[1].minor}"' in project and PYTHONS[1].stable


def test_the_page_names_every_wheel() -> None:
    page = (ROOT / "docs/releasing.md").read_text(encoding="utf-8")
    for machine in MACHINES.values():
        for target in PYTHONS:
            assert f"homenode-VERSION-{target.tag}-{platform_tag(machine, GLIBC)}.whl" in page


@pytest.mark.parametrize(
    ("machine", "module", "size", "wrong"),
    [
        ("x86_64", _module("x86_64", X86.levels), 1000, ""),
        ("aarch64", _module("aarch64", ARM.levels), LARGEST, ""),
        ("aarch64", _module("x86_64", ARM.levels), 1000, "not for aarch64"),
        ("x86_64", b"not a library", 1000, "not for x86_64"),
        ("x86_64", _module("x86_64", X86.levels[:-1]), 1000, "lacks the levels amx"),
        ("x86_64", _module("x86_64", X86.levels), LARGEST + 1, "15.0 MB; at most 15 MB"),
    ],
)
def test_faults_of_a_wheel(machine: str, module: bytes, size: int, wrong: str) -> None:
    found = "; ".join(faults(MACHINES[machine], module, size))
    assert wrong in found and bool(found) == bool(wrong)


def test_each_wheel_is_built_by_the_oldest_python_that_can() -> None:
    pythons = [_python(13), _python(12, 4), _python(12, 1), _python(11, 7), _python(11, 2)]
    assert choose(PYTHONS[0], pythons).version == (3, 11, 2)
    assert choose(PYTHONS[1], pythons).version == (3, 12, 1)
    assert choose(PYTHONS[1], [_python(11), _python(14)]).version == (3, 14, 0)
    with pytest.raises(WheelError, match=r"CPython 3\.12 and later.*--python; seen: 3\.11\.0"):
        choose(PYTHONS[1], [_python(11)])
    with pytest.raises(WheelError, match="seen: none"):
        choose(PYTHONS[0], [])


def test_an_interpreter_that_cannot_build_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    for path in (broken, tmp_path / "none"):
        assert read_python(path) is None
        with pytest.raises(WheelError, match=f"--python {path} cannot build"):
            find_pythons([path])
    arguments = ["--python", str(broken), "--dist", str(tmp_path / "dist"), "--build", str(tmp_path / "build")]
    assert main(arguments) == 1
    assert f"wheels: error: --python {broken} cannot build" in capsys.readouterr().err


def test_pyconfig_of_another_processor_and_back() -> None:
    there = config_for(ARM, CONFIG)
    assert "/* #undef HAVE_GCC_ASM_FOR_X64 */" in there and "/* #undef HAVE_GCC_ASM_FOR_X87 */" in there
    assert "#define HAVE_USABLE_WCHAR_T 1" in there and "#define PY_SUPPORT_TIER 2" in there
    assert len(there.splitlines()) == len(CONFIG.splitlines())
    assert config_for(X86, there) == CONFIG.replace("#  define", "#define") == config_for(X86, CONFIG)


def test_pyconfig_of_this_python_changes_in_the_known_names_only() -> None:
    text = Path(sysconfig.get_config_h_filename()).read_text(encoding="utf-8")
    changed = set(text.splitlines()) ^ set(config_for(ARM, text).splitlines())
    assert all(any(name in line for name in DIFFERENCES) for line in changed)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_wrong_size_does_not_compile(tmp_path: Path) -> None:
    for config, right in ((CONFIG, True), (CONFIG.replace("SIZEOF_LONG 8", "SIZEOF_LONG 4"), False)):
        (tmp_path / "sizes.cpp").write_text(assertions(config))
        done = subprocess.run(
            ["g++", "-std=c++20", "-fsyntax-only", tmp_path / "sizes.cpp"], capture_output=True, text=True
        )
        assert (done.returncode == 0) == right, done.stderr
    assert "SIZEOF_LONG" in done.stderr


def test_checksums_are_read_by_sha256sum(tmp_path: Path) -> None:
    files = [tmp_path / "b-1.whl", tmp_path / "a-1.tar.gz"]
    for file in files:
        file.write_bytes(file.name.encode())
    sums = write_checksums(tmp_path, files)
    assert [line[66:] for line in sums.read_text().splitlines()] == ["a-1.tar.gz", "b-1.whl"]
    check = ["sha256sum", "--check", "--strict", sums.name]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    files[0].write_bytes(b"changed")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1


@pytest.mark.parametrize(
    ("done", "of", "seconds", "text"),
    [(1, 108, 4.0, "about 7 minutes left"), (100, 108, 400.0, "about 32 s left"), (108, 108, 9.0, "about 1 s left")],
)
def test_time_left(done: int, of: int, seconds: float, text: str) -> None:
    assert time_left(done, of, seconds) == text


def test_progress_is_told_and_a_failure_shows_the_end_of_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.wheels.run._EVERY_S", 0.0)
    told: list[str] = []
    script = "for i in 1 2 3; do echo \"  [$i/3] Building\"; done; echo 'a.cpp: error: no' >&2; exit "
    run(["sh", "-c", script + "0"], tmp_path / "log", told.append, {"PATH": "/usr/bin:/bin"}, tmp_path)
    assert [line.split(",")[0] for line in told] == [*(f"{i} of 3 files compiled" for i in (1, 2, 3)), "done in 0 s"]
    with pytest.raises(WheelError, match=r"sh ended with 7 \(all it said: .*log\)(\n.*)*a\.cpp: error: no"):
        run(["sh", "-c", script + "7"], tmp_path / "log", told.append, {"PATH": "/usr/bin:/bin"}, tmp_path)
    with pytest.raises(WheelError, match="not done in 1 s"):
        run(["sleep", "60"], tmp_path / "log", told.append, {"PATH": "/usr/bin:/bin"}, tmp_path, deadline_s=1)


@pytest.mark.parametrize("target", ["setup", "serve", "test", "wheels"])
def test_make_says_what_it_does_and_how_long_it_takes(target: str) -> None:
    done = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if target == "wheels":  # says it itself
        assert "-m tools.wheels" in done.stdout
    else:
        assert re.search(r"^echo .*(minutes|seconds)", done.stdout, re.M)


def test_help_needs_nothing_installed() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.wheels", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--machine" in done.stdout
