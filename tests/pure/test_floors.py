"""The floors hold, and a forbidden import planted in a copy of the sources turns the check red."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytest.importorskip("importlinter")

PLANTS = {
    "a lower floor imports a higher one": ("compute/ops.py", "import homenode.engine.request"),
    "the scheduler reads the clock": ("engine/scheduler/order/queue.py", "import time"),
    "the scheduler knows who runs it": ("engine/scheduler/planner.py", "import homenode.engine.executor.base"),
    "the accounting of blocks knows hand-overs": (
        "engine/kv/imports.py",
        "import homenode.transfer.scheduler_events",
    ),
    "a plan knows what is built from it": ("engine/plan/worker_layout.py", "import homenode.engine.runtime.build"),
    "the words of the engine know its parts": ("engine/request.py", "import homenode.engine.kv.blocks"),
    "the server reaches past the client": ("server/app.py", "import homenode.engine.runtime.loop"),
    "the generation core knows an API": ("server/core/answer.py", "import homenode.server.apis.openai.requests"),
    "one endpoint knows another": (
        "server/apis/openai/chat/answer.py",
        "import homenode.server.apis.openai.completions.answer",
    ),
    "torch outside its backend": ("model/weights/load.py", "import torch"),
    "the network outside locate": ("model/tokenizer/tokenizer.py", "import huggingface_hub"),
}


# An editable installation finds the package through a finder of its own, ahead of the path; only the standard finders
# are kept.
_LINT = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]
from importlinter.cli import lint_imports_command
sys.exit(lint_imports_command())
"""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _LINT, "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors", "*.so")
    )
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_the_floors_hold(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_planted_import_is_found(copy: Path) -> None:
    """All in one copy, since what breaks a contract hides nothing that breaks another."""
    for file, line in PLANTS.values():
        place = copy / "src/homenode" / file
        place.write_text(place.read_text() + f"\n{line}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    for why, (file, line) in PLANTS.items():
        importer, imported = file.removesuffix(".py").replace("/", "."), line.removeprefix("import ")
        told = rf"homenode\.{re.escape(importer)} ->\s+{re.escape(imported)} \(l"
        assert re.search(told, result.stdout), f"{why}: {result.stdout}"


def test_the_native_core_called_directly_is_found(copy: Path) -> None:
    ruff = [
        shutil.which("ruff") or str(Path(sys.executable).with_name("ruff")),
        "check",
        "--no-cache",
        "--select",
        "TID251",
        "src",
    ]
    shutil.copy(ROOT / "pyproject.toml", copy)
    assert subprocess.run(ruff, cwd=copy, capture_output=True, timeout=60).returncode == 0
    place = copy / "src/homenode/engine/runtime/loop.py"
    place.write_text("import homenode._native\n" + place.read_text())
    result = subprocess.run(ruff, cwd=copy, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "compute.native only" in result.stdout
