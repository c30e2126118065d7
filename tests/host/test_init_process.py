"""The first process of a container: it buries orphans, passes signals on, and ends as its child does."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

import pytest

# A subreaper gets orphans as the first process of a pid namespace does.
_AS_FIRST = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
from homenode.cli.init_process import divide
first = os.getpid()
divide()
def states():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == first:
            found.append(fields[0])
    return found
"""
_ORPHANS = """
subprocess.run(["sh", "-c", "(sleep 0.2; exit 3) & (sleep 0.1) &"], check=True)
stop = time.monotonic() + 20
while states() != ["R"] and time.monotonic() < stop:
    time.sleep(0.05)
print(states())
own = subprocess.Popen(["sh", "-c", "exit 7"])
time.sleep(0.2)
print(own.wait())
sys.exit(5)
"""
_WAITS = """
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
print("waits", flush=True)
time.sleep(60)
"""


def _start(program: str) -> subprocess.Popen[str]:
    if ctypes.CDLL(None).prctl(37, ctypes.byref(ctypes.c_int()), 0, 0, 0):
        pytest.skip("no subreapers here")
    return subprocess.Popen([sys.executable, "-c", _AS_FIRST + program], stdout=subprocess.PIPE, text=True)


def test_orphans_are_buried_and_own_children_are_left_to_their_parent() -> None:
    with _start(_ORPHANS) as first:
        assert first.stdout is not None
        assert first.stdout.read().split("\n") == ["['R']", "7", ""]
        assert first.wait(20) == 5


def test_a_signal_reaches_the_command_whose_exit_code_is_kept() -> None:
    with _start(_WAITS) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "waits\n"
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 6


def test_an_end_by_a_signal_is_told_as_a_shell_does() -> None:
    with _start("import signal; os.kill(os.getpid(), signal.SIGKILL)") as first:
        assert first.wait(20) == 128 + signal.SIGKILL
