"""Every process of a service may open as many files and sockets as the system allows it, whatever the usual
limit is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.live import LiveServer
from tests.paths import ROOT

_LOWERED = ("sh", "-c", 'ulimit -Sn 200; exec "$@"', "sh")  # before a command: it begins with this soft limit


def family(pid: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def limits(pid: int) -> tuple[str, str]:
    """The soft and the hard limit of open files of a process."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    soft, hard = next(line for line in lines if line.startswith("Max open files")).split()[3:5]
    return soft, hard


def check(pid: int, least: int) -> None:
    """`least`: processes that there must be."""
    found = {member: limits(member) for member in family(pid)}
    assert len(found) >= least
    assert all(soft == hard != "200" for soft, hard in found.values()), found


@pytest.mark.alone
@pytest.mark.skipif(not LiveServer.possible(), reason="there is no model to serve")
@pytest.mark.parametrize(("flags", "least"), [((), 2), (("--api-server-count", "2"), 4)], ids=["one front", "two"])
def test_a_server_and_its_fronts_and_engines(flags: tuple[str, ...], least: int) -> None:
    server = LiveServer("--threads", "1", "--kv-cache-memory", "16MiB", *flags, before=_LOWERED)
    try:
        check(server.process.pid, least)
    finally:
        assert server.close() == 0


def test_a_proxy() -> None:
    command = [*_LOWERED, sys.executable, "-m", "homenode", "proxy", "--decode", "http://127.0.0.1:9", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as proxy:
        assert proxy.stderr is not None
        try:
            assert any("listening http" in line for line in proxy.stderr)
            check(proxy.pid, 1)
        finally:
            proxy.terminate()
            assert proxy.wait(30) == 0
