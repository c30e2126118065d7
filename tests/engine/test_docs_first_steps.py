"""The commands of the page of first steps, run as they stand; only the port is the one of a server that was started for
it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.live import BUILTIN, LiveServer
from tests.paths import ROOT
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(not BUILTIN.is_file(), reason="no built-in model")

PAGES = {"docs/first-steps.md": 6, "README.md": 2}  # with the least commands that are run of each
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ASKS = re.compile(
    r"(?:curl .*127\.0\.0\.1:8000|homenode (?:chat|generate) ?(?:--chat .*)?$|echo .*\| homenode chat)", re.DOTALL
)
_ANSWER = "non-uniform memory access"


def blocks(page: str, kind: str) -> list[str]:
    return [block for found, block in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if found == kind]


def commands(page: str) -> list[str]:
    """What a person types behind `$`, with the lines that a backslash continues, of commands that ask a model."""
    lines = [line for block in blocks(page, "console") for line in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.M)]
    return [line for line in (re.sub(r"\s+# .*", "", each) for each in lines) if _ASKS.match(line)]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    running = LiveServer("--served-model-name", "homenode-builtin", "--kv-cache-memory", "32MiB")
    yield running
    assert running.close() == 0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folders of commands, with `homenode` as this Python has it."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "homenode"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m homenode "$@"\n')
    command.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def run(line: list[str], server: LiveServer, path: str, text: str = "") -> str:
    environment = {**os.environ, "PATH": path, "NO_PROXY": "*"}
    ran = subprocess.run(line, input=text, capture_output=True, text=True, timeout=2 * PATIENCE_S, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
@pytest.mark.parametrize("page", PAGES)
def test_what_is_typed_on_a_page_gets_an_answer(page: str, server: LiveServer, path: str) -> None:
    found = commands(page)
    assert len(found) >= PAGES[page]
    for line in found:
        out = run(["sh", "-c", line.replace("http://127.0.0.1:8000", server.url)], server, path)
        if "/v1/models" in line:
            assert "homenode-builtin" in {model["id"] for model in json.loads(out)["data"]}
        elif "curl" in line:
            assert said(out)
        else:
            assert _ANSWER in out or line == "homenode chat"  # whose input is empty here


def said(out: str) -> str:
    """The text of an answer, whole or streamed."""
    if not out.startswith("data:"):
        choice = json.loads(out)["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    events = [line.removeprefix("data: ") for line in out.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)


def test_the_program_of_the_page_prints_the_answer(server: LiveServer, path: str, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    (program,) = blocks("docs/first-steps.md", "python")
    file = tmp_path / "ask.py"
    file.write_text(program.replace("http://127.0.0.1:8000", server.url))
    assert _ANSWER in run([sys.executable, str(file)], server, path)
