"""Installing from source into a clean environment gives a command that works, and a wheel builds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks, without anything built here."""
    folder = tmp_path_factory.mktemp("sources")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_pip_install_then_generate(sources: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env/bin"
    subprocess.run([binaries / "pip", "install", "--quiet", str(sources)], check=True, timeout=600)
    command = [
        binaries / "homenode",
        "generate",
        "--prompt",
        "Once upon a time",
        "--max-tokens",
        "8",
        "--temperature",
        "0",
        "--json",
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["token_ids"]) == 8


def test_a_wheel_builds(sources: Path, tmp_path: Path) -> None:
    """And says on the way, to who asks with -v, that a compiler is at work."""
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--wheel-dir", str(tmp_path), str(sources)],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert built.returncode == 0, built.stderr[-4000:]
    assert re.search(r"homenode: compiling the kernels .* takes about \d+ minutes on \d+ CPUs", built.stdout)
    (wheel,) = tmp_path.glob("homenode-*.whl")
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    assert "homenode/_native" in names
    assert "homenode/builtin/config.json" in names
    assert "homenode/py.typed" in names


def test_the_toolkit_alone_asks_for_no_compiler(sources: Path, tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho a compiler was asked >&2\nexit 1\n")
    refusing.chmod(0o755)
    environment = {**os.environ, "HOMENODE_TOOLKIT": "1", "CC": str(refusing), "CXX": str(refusing)}
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--wheel-dir", str(tmp_path), str(sources)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[-4000:]
    assert "a compiler was asked" not in built.stdout + built.stderr
    (wheel,) = tmp_path.glob("homenode-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if name.endswith(".so")]
