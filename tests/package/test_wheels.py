"""The wheels that `make wheels` left in dist/, each in a clean environment of every Python at hand, without a compiler.
Without wheels they skip.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from tests.paths import ROOT
from tools.wheels.pythons import Python, find_pythons
from tools.wheels.targets import PYTHONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@functools.cache
def newest_of_each() -> dict[tuple[int, int], Python]:
    """The Pythons of this machine, of each minor version the newest."""
    return {python.version[:2]: python for python in sorted(find_pythons(()), key=lambda python: python.version)}


def _wheel(python: Python) -> Path:
    """The wheel for this Python and this machine."""
    target = next(one for one in reversed(PYTHONS) if one.built_by(python.version[:2]))
    wheels = sorted((ROOT / "dist").glob(f"homenode-*-{target.tag}-*_{platform.machine()}.whl"))
    if not wheels:
        pytest.skip("no wheel for it in dist/; `make wheels` makes it")
    return wheels[-1]


@pytest.fixture(scope="module", params=[11, 12, 13, 14], ids="3.{}".format)
def binaries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel in it."""
    python = newest_of_each().get((3, request.param))
    if python is None:
        pytest.skip(f"there is no Python 3.{request.param} here")
    wheel, folder = _wheel(python), tmp_path_factory.mktemp("env")
    subprocess.run([python.path, "-m", "venv", folder], check=True, timeout=120)
    command = [folder / "bin/pip", "install", "--quiet", "--only-binary", ":all:", wheel]
    subprocess.run(command, check=True, timeout=600, env=_bare(folder / "bin"))
    return folder / "bin"


def _bare(binaries: Path) -> dict[str, str]:
    """An environment in which no compiler is found, and nothing of this project's own environment."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "PATH": str(binaries), "CC": "/bin/false", "CXX": "/bin/false"}


def _said(binaries: Path, tmp_path: Path, *words: str, given: str = "") -> str:
    command = [binaries / "homenode", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, input=given, env=_bare(binaries), cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat_bench_and_host(binaries: Path, tmp_path: Path) -> None:
    assert "NUMA" in _said(binaries, tmp_path, "chat", "--temperature", "0", given="What is NUMA?\n")
    assert json.loads(_said(binaries, tmp_path, "bench", "model", "--batch", "1", "--json"))
    assert json.loads(_said(binaries, tmp_path, "host", "--json"))


def test_serve(binaries: Path, tmp_path: Path) -> None:
    command = [binaries / "homenode", "serve", "--port", "0", "--kv-cache-memory", "64MiB"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=_bare(binaries), cwd=tmp_path)
    deadline = threading.Timer(60, server.kill)
    deadline.start()
    try:
        assert server.stderr is not None
        said = []
        while (line := server.stderr.readline()) and not (found := re.search(r"http://127\.0\.0\.1:\d+", line)):
            said.append(line)
        assert line, f"it ended with {server.wait(10)}: {''.join(said)[-2000:]}"
        body = json.dumps(
            {"model": "homenode-builtin", "prompt": "NUMA is", "max_tokens": 8, "temperature": 0}
        ).encode()
        request = urllib.request.Request(f"{found[0]}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 8
    finally:
        deadline.cancel()
        server.terminate()
        server.communicate(timeout=30)
