"""Commands of which a standard stream is closed do their work all the same: `homenode generate ... 2>&-`."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_no_command(closed: str) -> None:
    command = [sys.executable, "-m", "homenode", "generate", "--prompt", "x", "--max-tokens", "2", "--temperature", "0"]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended
    assert "Traceback" not in ended.stderr
    assert (ended.stdout != "") == (">&-" not in closed.split())
