"""The programs of docs/examples: each runs as it stands, and prints what its reader expects to see."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.engine.live import BUILTIN, LiveServer
from tests.paths import ROOT
from tests.waiting import PATIENCE_S

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = pytest.mark.skipif(not BUILTIN.is_file(), reason="no built-in model")

FOLDER = ROOT / "docs" / "examples"
ANSWER = "NUMA means non-uniform memory access"
# Patterns that the lines of each program hold, in this order.
EXPECTED = {
    "serve_and_ask": ("model:  homenode-builtin", rf"answer: {ANSWER}", rf"stream: {ANSWER}", r"([2-9]|\d\d) pieces"),
    "offline_batch": (rf"What is NUMA\? +{ANSWER}", r"3 \+ 4 = 7", r"48 tokens, length", r"in a batch and alone: True"),
    "structured_output": (r'json: +{"machine"', r"nodes is [1-8],", r"choice: +(yes|no)", r"-[01]\d\n", "refused: 400"),
    "tools_loop": (r'call: +add\({.*}\) = \d+\n', r"answer: .", r"\['user', 'assistant', 'tool', 'assistant'\]"),
    "embeddings_search": ("4 vectors", r"NUMA\? .* A NUMA machine has", r"four\? .* Seven plus five", "by score: 0"),
    "prefill_and_decode": (r"through the proxy: '", r"{'handover': 1}", r"own answer: True"),
    "bind_another_engine": (r"16-31", r"engine: serving", "4 threads on CPUs", "exit code 0", "undone: exit code 0"),
    "simulate_fleet": (r"machines finished", r" 1 +30 ", r" 3 +30 ", r"weights on each machine: \w"),
}  # fmt: skip
ALONE = "serve_and_ask"  # run as a person runs it, with a server of its own


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    running = LiveServer("--served-model-name", "homenode-builtin", "--kv-cache-memory", "32MiB", "--threads", "1")
    yield running
    assert running.close() == 0


def hold_in_order(printed: str, patterns: tuple[str, ...]) -> None:
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(printed, at)
        assert found is not None, f"{pattern!r} is not printed, or not in this place: {printed}"
        at = found.end()


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {ALONE}))
def test_a_program_prints_what_is_expected(
    name: str, server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXAMPLE_URL", server.url)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.syspath_prepend(FOLDER)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    hold_in_order(capsys.readouterr().out, EXPECTED[name])


def test_a_program_runs_with_a_server_of_its_own_and_ends_it() -> None:
    command = [sys.executable, str(FOLDER / f"{ALONE}.py")]
    environment = {name: value for name, value in os.environ.items() if name != "EXAMPLE_URL"}
    environment |= {"NO_PROXY": "*", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, env=environment)
    assert ran.returncode == 0, ran.stderr
    hold_in_order(ran.stdout, EXPECTED[ALONE])


def test_every_program_is_expected_to_print_something_is_short_and_on_the_page() -> None:
    programs = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py")}
    assert set(EXPECTED) == set(programs) - {"local_server"}
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    for name, text in programs.items():
        assert len(text.splitlines()) <= 80, f"{name}.py is to be read at a glance: at most 80 lines"
        assert f"({name}.py)" in page, f"docs/examples/index.md lacks {name}.py"
        assert name == "local_server" or f"`python docs/examples/{name}.py`" in text
