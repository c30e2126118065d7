"""What stays behind when `run` becomes a program: driver threads are bound as they come, interrupts are given back at
the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.host.children import ONE, OTHER, masks, two_cpus
from tests.host.test_irq import free, lists  # noqa: F401
from tests.waiting import wait_until

_PROGRAM = """
import ctypes, sys, threading
def work():
    ctypes.CDLL(None).prctl(15, b"acl_thread", 0, 0, 0)
    print(threading.get_native_id(), flush=True)
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
"""
_LAUNCHER = """
import sys
from pathlib import Path
from homenode.host.bind.watchdog import Watchdog
from homenode.host.bind.launch import run_bound
from homenode.host.bind.base.state import State
from homenode.host.bind.base.target import IrqRoute, Target
from homenode.host.discovery.read import read_host
from homenode.host.topology.source import LiveSource
one, other, folder, address, action, program = sys.argv[1:]
routes = (IrqRoute(address, action, (int(other),)),) if address else ()
target = Target((int(one),), {"acl_thread": (int(other),)}, (), routes)
Watchdog(read_host(LiveSource(), accelerators=False), State(Path(folder))).watch_worker(target)
run_bound(target, [sys.executable, "-c", program])
"""


@contextmanager
def program(folder: Path, address: str = "", action: str = "") -> Iterator[subprocess.Popen[str]]:
    folder.mkdir(mode=0o700, exist_ok=True)
    arguments = [sys.executable, "-c", _LAUNCHER, str(ONE), str(OTHER), str(folder), address, action, _PROGRAM]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield started
    finally:
        started.kill()
        started.wait(10)
        for stream in (started.stdin, started.stdout):
            if stream is not None:
                stream.close()


@two_cpus
def test_a_drivers_thread_is_bound_when_it_appears(tmp_path: Path) -> None:
    with program(tmp_path / "state") as running:
        assert running.stdout is not None
        thread = int(running.stdout.readline())
        wait_until(lambda: masks(running.pid).get(thread) == (OTHER,))
        assert masks(running.pid)[running.pid] == (ONE,)


@two_cpus
def test_interrupts_are_routed_before_the_program_starts_and_given_back_after_it(
    tmp_path: Path,
    free: list[tuple[str, str, int]],  # noqa: F811
) -> None:
    address, action, irq = free[0]
    before = lists()
    with program(tmp_path / "state", address, action) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert lists()[irq] == str(OTHER)
        assert running.stdin is not None
        running.stdin.close()
        running.wait(10)
    wait_until(lambda: lists() == before, "given back by the one that stayed behind")


def test_nobody_stays_behind_for_a_target_without_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from homenode.host.bind import watchdog
    from homenode.host.bind.base.target import Target
    from homenode.host.discovery.read import read_host
    from homenode.host.topology.source import LiveSource

    monkeypatch.setattr(watchdog, "start_sidecar", lambda *_: pytest.fail("a sidecar was started"))
    watchdog.Watchdog(read_host(LiveSource(), accelerators=False), None).watch_worker(Target((ONE,)))
