"""What the living system tells: of the test itself, and of a child with another mask, other variables and
more threads.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.doctor.live_facts import CAP_SYS_NICE, ProcessSource, read_live_facts
from homenode.host.topology.allowance import Allowance
from tests.host.children import ONE, child, two_cpus


def status(name: str, pid: object = "self") -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def test_capabilities_are_those_of_proc() -> None:
    live = read_live_facts()
    assert live.capabilities == int(status("CapEff"), 16)
    assert live.may(CAP_SYS_NICE) == bool(int(status("CapEff"), 16) >> 23 & 1)
    assert live.process is None


def test_swap_is_that_of_meminfo() -> None:
    total = next(
        int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("SwapTotal")
    )
    live = read_live_facts()
    assert live.swap == total * 1024
    assert 0 <= live.swap_used <= live.swap


def test_asking_whether_a_policy_may_be_set_changes_none() -> None:
    calls = Syscalls()
    try:
        before = calls.get_mempolicy()
    except OSError:
        pytest.skip("get_mempolicy is refused here")
    assert read_live_facts(calls=calls).memory_policy_refusal == ""
    assert calls.get_mempolicy() == before


def test_a_refusal_of_set_mempolicy_is_named() -> None:
    class Refusing(Syscalls):
        def set_mempolicy(self, mode: int, nodes: object = ()) -> None:
            raise PermissionError(errno.EPERM, "no")

    assert read_live_facts(calls=Refusing()).memory_policy_refusal == "EPERM"


def test_threads_of_a_process_are_counted() -> None:
    with child() as running:
        for number in range(3):
            running.thread(f"worker{number}")
        live = read_live_facts(running.pid)
        assert live.process is not None
        assert (live.process.pid, live.process.threads) == (running.pid, int(status("Threads", running.pid)))
        assert live.process.threads == 4
        assert live.process.name == status("Name", running.pid)


def test_a_process_that_has_ended_has_no_facts() -> None:
    with child() as running:
        pid = running.pid
    live = read_live_facts(pid)
    assert live.process is not None
    assert live.process.threads == 0


@two_cpus
def test_a_process_is_seen_with_its_own_mask_and_variables() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    environment = {**os.environ, "OMP_PROC_BIND": "close", "HOMENODE_TEST_SECRET": "x"}
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        os.sched_setaffinity(process.pid, {ONE})
        source = ProcessSource(process.pid)
        assert source.env["OMP_PROC_BIND"] == "close"
        assert "HOMENODE_TEST_SECRET" not in source.env
        allowance = Allowance.of_process(source)
        assert allowance.cpus == (ONE,)
        assert allowance.mask_origin == "openmp"
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_the_command_looks_at_this_machine_and_at_a_process() -> None:
    command = [sys.executable, "-m", "homenode.cli.main", "doctor", "--json"]
    for more in ([], ["--pid", str(os.getpid())], ["--from", "2s/4n/64c/smt2"]):
        result = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60)
        assert result.returncode in (0, 1), result.stderr
        findings = json.loads(result.stdout)["findings"]
        assert findings
        assert (result.returncode == 1) == any(finding["severity"] == "error" for finding in findings)
    result = subprocess.run([*command, "--pid", "1", "--from", "1s/1n/2c"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "--pid" in result.stderr
    result = subprocess.run([*command, "--pid", "4194303"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "no process 4194303" in result.stderr
