"""The whole extension module under AddressSanitizer and UndefinedBehaviorSanitizer: its own tests, loading, and golden
texts, in processes of their own.

The program of `test_sanitizers.py` runs kernels at all levels; here it is the bindings, the handles that Python holds,
and what they keep alive.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.test_sanitizers import BUILD_S, built_folder, lacking
from tests.paths import ROOT

SANITIZERS = "address,undefined"
SUITE_S = 1500
# Every process that has this on its path imports the module that was built here, wherever homenode is installed.
REDIRECT = """
import importlib.abc, importlib.util, sys

class Sanitized(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {module!r}) if name == "homenode._native" else None

sys.meta_path.insert(0, Sanitized())
"""
SUITES = {
    "handles": ["test_elements.py", "test_program.py", "test_moe.py", "test_homes.py", "test_memory.py",
        "test_thread_pool.py"],
    "weights": ["test_linear_weights.py", "test_shared_weights.py", "test_packed_checksum.py"],
    "kv": ["test_kv_memory.py", "test_kv_parts.py", "test_kv_shared.py", "test_kv_stream.py", "test_attached_kv.py"],
    "others": ["test_sampling.py", "test_ring.py", "test_lane_messages.py"],
    "golden": ["../model/test_builtin.py", "../model/test_stories.py", "../engine/test_golden.py"],
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(BUILD_S + SUITE_S + 60)]


def sanitized_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder it was built in. Skips where that cannot be done."""
    if reason := lacking(SANITIZERS, tmp_path_factory.getbasetemp()):
        pytest.skip(reason)
    if importlib.util.find_spec("nanobind") is None:
        pytest.skip("nanobind is not installed; `make test` installs it")
    # Of the levels the scalar one: the kernels of all of them are checked without Python, and take the compiler most of
    # its time.
    return built_folder(
        "sanitize-module",
        f"-DHOMENODE_SANITIZE={SANITIZERS}",
        "-DHOMENODE_SANITIZED_MODULE=ON",
        "-DHOMENODE_ONLY_LEVELS=scalar",
        f"-DPython_EXECUTABLE={sys.executable}",
    )


def library_of_compiler(name: str) -> str:
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def variables(folder: Path, findings: Path) -> dict[str, str]:
    """The environment in which every Python process uses that module. `findings`: what the names of their reports begin
    with.
    """
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(REDIRECT.format(module=str(next(folder.glob("_native*.so")))))
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Exceptions are looked for when the sanitizer starts, so the library that throws them is there by then. Python
    # itself frees not all at its end.
    return {
        "LD_PRELOAD": f"{library_of_compiler('libasan.so')} {library_of_compiler('libstdc++.so')}",
        "PYTHONPATH": os.pathsep.join(paths),
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:log_path={findings}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={findings}",
        "HOMENODE_FUZZ_EXAMPLES": "20",
    }


@pytest.mark.parametrize("suite", SUITES)
def test_sanitizers_find_nothing_in_the_module(
    suite: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = sanitized_module(tmp_path_factory)
    environment = {**os.environ, **variables(folder, tmp_path / "finding")}
    which = "import homenode._native as n; print(n.__file__)"
    used = subprocess.run([sys.executable, "-c", which], capture_output=True, text=True, env=environment)
    assert used.stdout.strip().startswith(str(folder)), used.stderr[-2000:]
    files = [os.path.normpath(Path("tests/native") / file) for file in SUITES[suite]]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow", *files]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=SUITE_S)
    findings = "\n".join(file.read_text(errors="replace")[:6000] for file in sorted(tmp_path.glob("finding*")))
    assert not findings, findings
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
