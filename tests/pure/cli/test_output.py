"""Output that cannot be written is one sentence and an exit code, whichever command writes it and by whatever means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "arguments", ["--version", "--help", "host", "host --json", "serve --show-config", "plan --json"]
)
def test_a_full_disk_behind_standard_output_is_told(arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "homenode", *arguments.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1, ran.stderr
    assert "the output cannot be written: No space left on device" in ran.stderr


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full"])
def test_an_error_that_cannot_be_told_is_still_an_exit_code(redirection: str) -> None:
    command = f'exec "$0" -m homenode serve /no/such/model {redirection}'
    ran = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", "")
