"""How far loading is: lines without a terminal, a bar on one, and nothing of a model that is there at once."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest
from rich.console import Console

from homenode.cli.output import loading_progress, report
from homenode.units import format_progress
from tests.waiting import PATIENCE_S, wait_until

_MIB = 1 << 20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.parametrize(
    ("done", "total", "seconds", "first", "line"),
    [
        (256 * _MIB, 1024 * _MIB, 2.0, 0, "256MiB of 1GiB, 128MiB/s, 6 s left"),
        (256 * _MIB, 1024 * _MIB, 2.0, 128 * _MIB, "256MiB of 1GiB, 64MiB/s, 12 s left"),
        (1024 * _MIB, 1024 * _MIB, 4.0, 0, "1GiB of 1GiB, 256MiB/s"),
        (0, 1024 * _MIB, 4.0, 0, "0B of 1GiB, 0B/s"),
        (0, 1024 * _MIB, 0.0, 0, "0B of 1GiB, 0B/s"),
    ],
)
def test_bytes_rate_and_time_left(done: int, total: int, seconds: float, first: int, line: str) -> None:
    assert format_progress(done, total, seconds, first) == line


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_progress, "_EVERY_S", 0.02)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    lines: list[str] = []
    with loading_progress.loading_progress(lines.append) as update:
        time.sleep(0.1)
        assert lines == []  # nothing is known yet
        update(0, 100 * _MIB)
        update(40 * _MIB, 100 * _MIB)
        wait_until(lambda: len(lines) >= 2)
    assert all(re.fullmatch(r"loading: 40MiB of 100MiB, \S+/s, \d+ s left", line) for line in lines)
    assert not [thread for thread in threading.enumerate() if thread.name == "loading progress"], "the end ends them"


def test_a_model_that_is_there_at_once_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    lines: list[str] = []
    with loading_progress.loading_progress(lines.append) as update:
        for done in range(11):
            update(done * _MIB, 10 * _MIB)
    assert lines == []


def test_on_a_terminal_there_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(report, "ERR", Console(file=terminal, force_terminal=True, width=100), raising=False)
    monkeypatch.setattr(loading_progress, "_QUICK_S", PATIENCE_S)
    with loading_progress.loading_progress(lambda line: None) as update:
        update(1 * _MIB, 100 * _MIB)
        assert terminal.getvalue() == ""
        monkeypatch.setattr(loading_progress, "_QUICK_S", 0.0)  # as if that time had passed
        for done in (10, 40, 60):
            update(done * _MIB, 100 * _MIB)
            wait_until(lambda done=done: f"{done}.0/100.0" in _ESCAPES.sub("", terminal.getvalue()))  # type: ignore[misc]
    shown = _ESCAPES.sub("", terminal.getvalue())
    assert re.search(r"loading .*60\.0/100\.0 MiB .*/s .* left", shown)
