"""Real agents as their users run them: Claude Code and Codex, of the packages `claude-agent-sdk` and
`openai-codex-cli-bin`. They are found in this environment, in that of HOMENODE_AGENTS (a folder as `python -m venv`
makes one), or on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE_S

_CODEX_SETTINGS = """
model = "{model}"
model_provider = "here"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
"""
_CLAUDE_SETTINGS = {
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}
MODEL = "story-teller"


@dataclass(frozen=True)
class Agent:
    """A program that works on a folder. `place`: within site-packages. `command`: for its path, what the user says, and
    whether that goes on with what was said before. `settings`: writes files below the folder of its user, and gives
    variables, for the URL of a server.
    """

    name: str
    place: str
    command: Callable[[str, str, bool], list[str]]
    settings: Callable[[str, Path], dict[str, str]]

    def find(self) -> str | None:
        """The program, where it is installed."""
        places = [*map(Path, sys.path)]
        if prefix := os.environ.get("HOMENODE_AGENTS"):
            places += Path(prefix).glob("lib/python*/site-packages")
        found = (place / self.place for place in places)
        return next((str(path) for path in found if path.is_file()), shutil.which(self.name))

    def work(self, url: str, folder: Path, said: Sequence[str]) -> list[str]:
        """What it answers to each message of a user, one after another, with the server at `url` for its model. All
        its files are in `folder`. Raises AssertionError where it fails, with what it said.
        """
        program = self.find()
        assert program is not None
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        (work / "notes.txt").write_text("The third line of the notes is here.\n")
        variables = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **self.settings(url, home)}
        return [_answer(self.command(program, text, number > 0), work, variables) for number, text in enumerate(said)]


def _answer(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    ended = subprocess.run(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    return ended.stdout


def _run_claude(program: str, text: str, again: bool) -> list[str]:
    return [program, "-p", text, "--model", MODEL, "--allowedTools", "Bash,Read", *(["--continue"] if again else [])]


def _set_claude(url: str, home: Path) -> dict[str, str]:
    return {**_CLAUDE_SETTINGS, "ANTHROPIC_BASE_URL": url, "CLAUDE_CONFIG_DIR": str(home / "claude")}


def _run_codex(program: str, text: str, again: bool) -> list[str]:
    how = ["--skip-git-repo-check"]
    return [program, "exec", "resume", "--last", *how, text] if again else [program, "exec", *how, text]


def _set_codex(url: str, home: Path) -> dict[str, str]:
    (home / "codex").mkdir()
    (home / "codex" / "config.toml").write_text(_CODEX_SETTINGS.format(model=MODEL, url=url))
    return {"CODEX_HOME": str(home / "codex")}


CLAUDE = Agent("claude", "claude_agent_sdk/_bundled/claude", _run_claude, _set_claude)
CODEX = Agent("codex", "codex_cli_bin/bin/codex", _run_codex, _set_codex)
AGENTS = (CLAUDE, CODEX)
