"""Whatever moment of a start a signal comes at: the server ends as it should, and leaves no process and no
file behind.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.engine.live import LiveServer
from tests.paths import ROOT
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not LiveServer.possible(), reason="there is no model to serve"),
]

_MARK = "HOMENODE_TEST_MARK"  # in the environment of every process that a start makes
_MORE = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "0")) // 100
_SIGNALS = [signal.SIGTERM, signal.SIGKILL, *(_MORE * [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])]
SHAPES = {
    "one front": ("serve",),
    "two fronts": ("serve", "--api-server-count", "2"),
    "two workers": ("serve", "--tensor-parallel-size", "2"),
    "proxy": ("proxy", "--decode", "http://127.0.0.1:9"),
}


class _Start:
    """A server on a free port with temporary files of its own."""

    def __init__(self, shape: str, temporary: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.mark = secrets.token_hex(8)
        flags = [*SHAPES[shape], "--port", str(self.port)]
        environment = os.environ | {"TMPDIR": str(temporary), _MARK: self.mark, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "homenode", *flags],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_until_answers(self) -> float:
        """Seconds to the first answer of /version."""
        began = time.monotonic()

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/version", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(answers)
        return time.monotonic() - began

    def processes(self) -> list[int]:
        """Those that bear the mark of this start, without the dead that nobody has waited for."""
        wanted, found = f"{_MARK}={self.mark}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended meanwhile, or is somebody else's
        return found

    def end(self, number: signal.Signals) -> int:
        """The exit code after this signal."""
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            for pid in self.processes():
                if self.process.returncode is None:
                    os.kill(pid, signal.SIGKILL)


def _shared_names() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_signal_at_any_moment_of_a_start_leaves_nothing(shape: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance, names = random.Random(seed), _shared_names()
    whole = _Start(shape, tmp_path)
    needed = whole.wait_until_answers()
    assert whole.end(signal.SIGTERM) == 0
    for number in [*_SIGNALS, *([signal.SIGINT] if shape == "one front" else [])]:
        start = _Start(shape, tmp_path)
        moment = chance.uniform(0.05, 1.2) * needed
        time.sleep(moment)
        begun = len(start.processes()) > 1  # it has processes of its own: from then on only an orderly end will do
        code = start.end(number)
        told = f"{number.name} after {moment:.3f} of {needed:.3f} s, seed {seed}"
        orderly = {0} if begun else {0, -number, 130, 1}  # 1: click's answer to Ctrl-C while the program is imported
        expected = {-number} if number is signal.SIGKILL else orderly
        assert code in expected, told
        wait_until(lambda start=start: not start.processes())
        if number is not signal.SIGKILL:
            assert not list(tmp_path.iterdir()), told
    following = _Start(shape, tmp_path)
    following.wait_until_answers()
    assert following.end(signal.SIGTERM) == 0
    assert not list(tmp_path.iterdir()), "what a killed server leaves is removed by the next one"
    assert not [name for name in _shared_names() - names if "homenode" in name]


@pytest.mark.parametrize("shape", SHAPES)
def test_signals_at_every_moment_of_a_stop_leave_nothing(shape: str, tmp_path: Path) -> None:
    """Whoever presses Ctrl-C again and again gets a sooner end, and the same one."""
    names = _shared_names()
    start = _Start(shape, tmp_path)
    start.wait_until_answers()
    sent = 0

    def has_ended() -> bool:
        nonlocal sent
        if start.process.poll() is not None:
            return True
        start.process.send_signal((signal.SIGTERM, signal.SIGINT)[sent % 2])
        sent += 1
        return False

    wait_until(has_ended, every_s=0.002)
    assert (start.process.returncode, sent > 5) == (0, True)
    wait_until(lambda: not start.processes())
    assert not list(tmp_path.iterdir())
    assert not [name for name in _shared_names() - names if "homenode" in name]
