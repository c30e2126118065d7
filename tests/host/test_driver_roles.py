"""A worker on an NPU, without the NPU: threads that call themselves as the driver's do get their CPUs, from the process
itself and below `homenode run`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from homenode.cpuset import format_cpu_list
from homenode.host.bind.base.threads import descendants, threads
from tests.host.children import CPUS, ONE, OTHER, two_cpus
from tests.npu_hosts import single_chips
from tests.npu_tool import install_npu_smi
from tests.waiting import wait_until

_BODY = """
import ctypes, os, sys, threading
def work(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
    threading.Event().wait()
def start():
    for name in (b"acl_thread", b"release_thread"):
        threading.Thread(target=work, args=(name,), daemon=True).start()
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
_WORKER = (
    _BODY
    + """
import logging
from types import SimpleNamespace
import msgspec
from homenode.engine.binding import DriverRoles, EngineBinding
from homenode.engine.worker.driver_roles import begin_roles
from homenode.host.plan.plan import WorkerBinding
from homenode.host.topology.host import Accelerator
logging.basicConfig(level=logging.INFO, format="%(message)s")
one, other = map(int, sys.argv[1:3])
roles = {"irq": (one,), "main": (one,), "acl": (other,), "release": (other,)}
binding = EngineBinding((), (one,), (), roles=DriverRoles(3, (one, other), roles, "0000:ff:1f.7", lines=("NPU3",)))
class Message(msgspec.Struct, frozen=True):
    binding: EngineBinding
print(begin_roles(Message(binding)).binding.roles is not None, file=sys.stderr, flush=True)
start()
"""
)
# A front whose worker, as homenode's own are, is known by its command line.
_FRONT = """
import os, subprocess, sys
words = ["-m", "homenode.engine.worker.main", "7", str(os.getpid()), "homenode-worker-0", "npu:0"]
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1], *words], check=False).returncode)
"""


@contextmanager
def started(arguments: list[str], folder: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOMENODE_STATE_DIR": str(folder), **more}
    folder.mkdir(mode=0o700, exist_ok=True)
    program = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait(10)
        for stream in (program.stdin, program.stdout, program.stderr):
            if stream is not None:
                stream.close()


def masks_by_name(pid: int) -> dict[str, set[int]]:
    return {thread.name: os.sched_getaffinity(thread.tid) for thread in threads(pid)}


@two_cpus
def test_driver_threads_of_a_worker_get_their_cpus(tmp_path: Path) -> None:
    with started([sys.executable, "-c", _WORKER, str(ONE), str(OTHER)], tmp_path / "state") as program:
        assert program.stdout is not None and program.stderr is not None
        pid = int(program.stdout.readline())
        wait_until(
            lambda: (seen := masks_by_name(pid)).get("acl_thread") == {OTHER} and seen.get("release_thread") == {OTHER}
        )
        assert os.sched_getaffinity(pid) == {ONE}
        program.kill()
        told = program.stderr.read()
    assert "NPU3" in told.splitlines() and "True" in told
    assert "irq" in told, "interrupts that are not there are told"


@two_cpus
@pytest.mark.parametrize("rank", [[], ["--local-rank", "0"]])
def test_homenode_run_binds_the_worker_that_a_server_of_ours_starts(tmp_path: Path, rank: list[str]) -> None:
    """One NPU: what is run is no rank itself, the worker that it starts is."""
    tools = install_npu_smi(tmp_path / "bin", single_chips({0: format_cpu_list(CPUS)}), {}).parent
    flags = ["--strategy", "fair", "--visible-devices", "0", *rank]
    command = [sys.executable, "-m", "homenode", "run", *flags, "--", sys.executable, "-c", _FRONT, f"{_BODY}start()"]
    with started(command, tmp_path / "state", PATH=f"{tools}{os.pathsep}{os.environ['PATH']}") as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        allowed = os.sched_getaffinity(0)
        assert pid in descendants(program.pid)

        def bound() -> bool:
            seen = masks_by_name(pid)
            return all(len(seen.get(name, allowed)) < len(allowed) for name in ("acl_thread", "release_thread"))

        wait_until(bound)
