"""One form of line for everything in a stream; a level says which lines; a command's lines can be held."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from homenode.logs.setup import LEVEL_VARIABLE, LEVELS

_SAY = """
import logging, os, sys, warnings
from homenode.logs.setup import begin_command_log, begin_service_log, hold_log
{begin}
for name in ("homenode.part", "uvicorn.error"):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("%s of %s", level, name.split(".")[0])
warnings.warn("beware", stacklevel=1)
print(os.environ.get("HOMENODE_LOG_LEVEL", "info"))
"""
_DATED = re.compile(r"(debug|info|warning|error) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} server: (.*)")


def said(script: str, inherited: str | None = None) -> tuple[list[str], str]:
    """Lines on stderr, and stdout."""
    environment = {name: value for name, value in os.environ.items() if name != LEVEL_VARIABLE}
    environment |= {} if inherited is None else {LEVEL_VARIABLE: inherited}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    return ran.stderr.splitlines(), ran.stdout


@pytest.mark.parametrize("inherited", [None, "error"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_service_writes_dated_lines_of_its_level_and_of_libraries_what_is_wrong(
    level: str, inherited: str | None
) -> None:
    lines, out = said(_SAY.format(begin=f"begin_service_log('server', {level!r})"), inherited)
    found = [match.group(1, 2) for line in lines if (match := _DATED.fullmatch(line))]
    least = LEVELS.index(level)
    ours = [(each, f"{each} of homenode") for each in LEVELS[least:]]
    libraries = [(each, f"{each} of uvicorn") for each in LEVELS[max(least, LEVELS.index("warning")) :]]
    assert [each for each in found if "UserWarning" not in each[1]] == ours + libraries
    assert any("UserWarning: beware" in line for line in lines) == (level != "error")
    assert not any("uvicorn.error" in line for line in lines)
    assert out == f"{level}\n"  # what child processes inherit


@pytest.mark.parametrize(
    ("begin", "inherited", "level"),
    [
        ("begin_service_log('server')", None, "info"),
        ("begin_service_log('server')", "debug", "debug"),
        ("begin_service_log('server')", "nonsense", "info"),
        ("begin_command_log()", None, "warning"),
        ("begin_command_log()", "error", "error"),
        ("begin_command_log('debug')", "error", "debug"),
    ],
)
def test_the_level_is_the_one_given_else_inherited_else_usual(begin: str, inherited: str | None, level: str) -> None:
    lines, out = said(_SAY.format(begin=begin), inherited)
    assert out == f"{level}\n"
    ours = [line for line in lines if line.endswith("of homenode")]
    assert len(ours) == len(LEVELS) - LEVELS.index(level)


def test_a_command_speaks_as_its_other_messages_do() -> None:
    lines, _ = said(_SAY.format(begin="begin_command_log()"))
    assert lines[:2] == ["homenode: warning: warning of homenode", "homenode: error: error of homenode"]


_HOLD = """
import logging, sys, time
from homenode.logs import repetition
from homenode.logs.setup import begin_command_log, hold_log
begin_command_log()
log = logging.getLogger("homenode.part")
log.handlers = []
for handler in logging.getLogger().handlers:
    handler._repetitions.period_s = 0.05  # its counts come by a timer, and are held as well
with hold_log():
    sys.stderr.write("an ans")
    for _ in range(9):
        log.warning("too warm")
    deadline = time.monotonic() + 20
    while handler._last and time.monotonic() < deadline:
        time.sleep(0.01)
    sys.stderr.write("wer\\n")
log.warning("later")
"""


def test_lines_of_a_hold_come_after_it_with_their_counts() -> None:
    lines, _ = said(_HOLD)
    assert lines == [
        "an answer",
        *["homenode: warning: too warm"] * 5,
        "homenode: warning: 4 more like this one: too warm",
        "homenode: warning: later",
    ]


def test_clients_that_leave_are_not_warned_of() -> None:
    lines, _ = said(
        "import logging\n"
        "from homenode.logs.setup import begin_service_log\n"
        "begin_service_log('server')\n"
        "logging.getLogger('asyncio').warning('socket.send() raised exception.')\n"
        "logging.getLogger('asyncio').error('Task exception was never retrieved')\n"
    )
    assert [line.rpartition("server: ")[2] for line in lines] == ["Task exception was never retrieved"]
