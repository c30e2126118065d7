"""What `homenode run` says follows the level, which the program that it starts inherits."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from homenode.cli.flags.logs import LogConfig, lines_from
from homenode.cli.main import cli
from homenode.logs.setup import LEVEL_VARIABLE, LEVELS

_LINES = ["debug: threads", "bound as planned", "warning: interrupts are left alone", "error: refused", "info: none"]


@pytest.mark.parametrize(
    ("level", "told"),
    [("debug", _LINES), ("info", _LINES[1:]), (None, _LINES[1:]), ("warning", _LINES[2:4]), ("error", _LINES[3:4])],
)
def test_lines_of_a_level_are_said_and_a_level_that_is_given_is_inherited(
    monkeypatch: pytest.MonkeyPatch, level: str | None, told: list[str]
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "inherited")
    said: list[str] = []
    say = lines_from(level, said.append)
    for line in _LINES:
        say(line)
    assert said == told
    assert os.environ[LEVEL_VARIABLE] == (level or "inherited")


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_verbose_is_debug_whatever_else_is_said(level: str | None) -> None:
    assert LogConfig(level, True).level == "debug"
    assert LogConfig(level).level == level


@pytest.mark.parametrize(
    "command",
    [
        "serve --check-config",
        "proxy --show-config",
        "generate --prompt x",
        "chat",
        "bench model",
        "bench nodes",
        "run true",
    ],
)
def test_a_level_that_is_none_is_refused_with_those_there_are(command: str) -> None:
    first, *rest = command.split()
    group = [first, rest.pop(0)] if first == "bench" else [first]
    result = CliRunner().invoke(cli, [*group, "--log-level", "wran", *rest])
    assert result.exit_code == 2
    assert all(level in result.stderr for level in ("wran", *LEVELS))
