"""homenode where its native core was not compiled: the placement toolkit works, and what computes says what
is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPUTING = (
    ("serve", "--port", "0"),
    ("generate", "--prompt", "x"),
    ("chat",),
    ("bench", "model"),
    ("bench", "nodes"),
    ("bench", "step"),
    ("bench", "transfer"),
)
PLACING = (
    ("host",),
    ("doctor",),
    ("plan",),
    ("verify", "--strategy", "fair", "--pid"),
    ("run", "--", "true"),
    ("--version",),
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a Python in which the compiled module cannot be found."""
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["homenode._native"] = None\n', encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


def homenode(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homenode", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("command", COMPUTING, ids=" ".join)
def test_what_computes_says_how_to_get_the_core(environment: dict[str, str], command: tuple[str, ...]) -> None:
    ended = homenode(environment, *command)
    assert ended.returncode == 1, ended
    assert "the native core of homenode cannot be loaded" in ended.stderr
    assert "python3-dev" in ended.stderr and "install" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", PLACING, ids=" ".join)
def test_the_placement_toolkit_works(environment: dict[str, str], command: tuple[str, ...]) -> None:
    own = [str(os.getpid())] if command[-1] == "--pid" else []
    ended = homenode(environment, *command, *own)
    assert "native core of homenode cannot" not in ended.stderr
    assert "Traceback" not in ended.stderr
    # Exit code 1 is a finding about this machine or process.
    assert ended.returncode in ((0, 1) if command[0] in ("doctor", "verify") else (0,)), ended
