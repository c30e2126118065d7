"""One attempt of a test in which a call fails, and all of them as a child process has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.paths import ROOT
from tests.waiting import PATIENCE_S

KINDS = ("none", "files", "core", "large")  # as in calls.cpp
_CALLS = Path(__file__).with_name("calls.cpp")


class Attempt(NamedTuple):
    """`number`: of the call that was to fail (0: none), and with `all_after` all that followed it; `calls`: how many
    there were; `failed`: the name of the one that did. `outcome`: `same` result as without a failure, `other` result, a
    `named` error of homenode, or an `unnamed` one. `left`: what the process had before and has afterwards, where that
    differs.
    """

    number: int
    all_after: bool
    calls: int
    failed: str
    outcome: str
    words: str
    left: dict[str, Any]


def build(folder: Path) -> Path | str:
    """The library that is preloaded, compiled into `folder`; in words why it cannot be had here."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or not sys.platform.startswith("linux"):
        return "there is no C++ compiler to build what makes calls fail"
    library = folder / "calls.so"
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", str(_CALLS), "-o", str(library), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=4.5 * PATIENCE_S)
    return library if built.returncode == 0 else f"what makes calls fail cannot be built: {built.stderr[-300:]}"


def attempts(library: Path, task: str, kind: str, model: Path, most: int) -> list[Attempt]:
    """Those of a child process, at most `most` with a failure and one without. AssertionError when it does not come to
    its end.
    """
    command = [sys.executable, "-m", "tests.failing.child", task, kind, str(model), str(most)]
    variables = {"LD_PRELOAD": str(library), "FAILING_CALLS": str(library), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=4.5 * PATIENCE_S, cwd=ROOT, env={**os.environ, **variables}
    )
    found = [Attempt(**json.loads(line)) for line in done.stdout.splitlines()]
    last = found[-1] if found else None
    assert done.returncode == 0, f"it ended with {done.returncode} after {last}\n{done.stderr[-4000:]}"
    return found
