"""The whole transaction of the Ascend binding on an Arm machine that has no NPU: read npu-smi, plan, bind, verify, put
back, for processes of others, below `homenode run`, and for a worker of homenode's own.

A script stands in for npu-smi. Its NPUs are PCI devices that are there, whose interrupts are real; only the names of
their handlers are the driver's, in a copy of /proc/interrupts that is mounted over it.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from homenode.host.topology.accelerator_kinds import KINDS
from tests.host.children import child, masks
from tests.lab.machine import NODES, WHOLE, command, homenode, own_machine, several_nodes
from tests.lab.residency import places
from tests.npu_hosts import single_chips
from tests.npu_tool import install_npu_smi
from tests.waiting import wait_until

_TEN = sum(len(node.cpus) for node in WHOLE[:2]) >= 10
pytestmark = [
    several_nodes,
    own_machine,
    pytest.mark.skipif(platform.machine() != "aarch64", reason="the Ascend binding is applied on Arm only"),
    pytest.mark.skipif(not _TEN, reason="needs ten CPUs on two nodes: five for each of two NPUs"),
]
_PCI, _INTERRUPTS = Path("/sys/bus/pci/devices"), Path("/proc/interrupts")
_MS_BIND, _MNT_DETACH = 4096, 2
_BYTES = 8 << 20
_PROGRAM = """
import ctypes, sys, threading
def named(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
    threading.Event().wait()
for name in (b"acl_thread", b"release_thread"):
    threading.Thread(target=named, args=(name,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
# What worker.main does with the message of the engine, before it loads anything.
_WORKER = (
    """
import logging, sys
import msgspec
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.pinning import apply_binding
from homenode.engine.plan.worker_bindings import worker_places
from homenode.engine.worker.driver_roles import begin_roles
from homenode.host.discovery.read import read_host
from homenode.host.topology.source import LiveSource
logging.basicConfig(level=logging.INFO, format="%(message)s")
class Message(msgspec.Struct, frozen=True):
    binding: EngineBinding
assignment = EngineAssignment(EngineConfig.of(None, {}))
places = worker_places(read_host(LiveSource()), assignment, ["torch:npu:0", "torch:npu:1"])
apply_binding(begin_roles(Message(places.bindings[1])).binding)
"""
    + _PROGRAM
)


@dataclass(frozen=True)
class Npus:
    """The two stand-ins: `addresses` of their PCI functions, `irqs` of each (submission, completion)."""

    addresses: tuple[str, str]
    irqs: tuple[tuple[int, int], tuple[int, int]]

    def routes(self) -> list[list[int]]:
        """Where the interrupts may go, NPU after NPU."""
        return [
            list(parse_cpu_list(Path(f"/proc/irq/{irq}/smp_affinity_list").read_text()))
            for of in self.irqs
            for irq in of
        ]


@pytest.fixture
def npus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npus]:
    """npu-smi on PATH, and the names of interrupts as the driver gives them."""
    found = {
        folder.name: sorted(int(entry.name) for entry in (folder / "msi_irqs").iterdir())
        for folder in sorted(_PCI.iterdir())
        if (folder / "msi_irqs").is_dir()
    }
    usable = [address for address, irqs in found.items() if len(irqs) >= 2]
    if len(usable) < 2:
        pytest.skip("needs two PCI devices with two interrupts each")
    one, other = usable[:2]
    made = Npus((one, other), ((found[one][0], found[one][1]), (found[other][0], found[other][1])))
    chips = single_chips({n: node.cpu_list for n, node in enumerate(WHOLE[:2])})
    tool = install_npu_smi(tmp_path / "bin", chips, dict(enumerate(made.addresses)))
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    with driver_names(tmp_path / "interrupts", made):
        yield made


@contextmanager
def driver_names(copy: Path, npus: Npus) -> Iterator[None]:
    """A copy of /proc/interrupts mounted over it, in which the handlers have the driver's names."""
    text = _INTERRUPTS.read_text()
    for submit, complete in npus.irqs:
        for irq, name in zip((submit, complete), KINDS["npu"].interrupts, strict=True):
            text, count = re.subn(rf"^( *{irq}:.*\s)\S+$", rf"\g<1>{name}", text, flags=re.MULTILINE)
            assert count == 1, irq
    copy.write_text(text)
    libc, over = ctypes.CDLL(None), os.fsencode(_INTERRUPTS)
    assert libc.mount(os.fsencode(copy), over, None, ctypes.c_ulong(_MS_BIND), None) == 0
    try:
        yield
    finally:
        libc.umount2(over, _MNT_DETACH)


def plan_of(rank: int) -> dict[str, tuple[int, ...]]:
    """CPUs by role, as `plan` tells, and the pool."""
    told = homenode("plan", "--strategy", "ascend", "--before-start", "--json").json
    worker = told["workers"][rank]
    return {role: parse_cpu_list(cpus) for role, cpus in {**worker["roles"], "pool": worker["cpus"]}.items()}


def test_the_tool_is_read_and_the_plan_is_the_documented_one(npus: Npus) -> None:
    told = homenode("host", "--json").json["accelerators"]
    assert told["device_type"] == "A2" and [chip["id"] for chip in told["chips"]] == [0, 1]
    assert [parse_cpu_list(chip["local_cpus"]) for chip in told["chips"]] == [node.cpus for node in WHOLE[:2]]
    if len(WHOLE) > 2 or len(NODES) > 2:
        return
    # Each is near one node and gets the other as well: one pool, cut in two.
    both = sorted((*WHOLE[0].cpus, *WHOLE[1].cpus))
    half = len(both) // 2
    for rank, pool in enumerate((both[:half], both[half:])):
        planned = plan_of(rank)
        assert list(planned["pool"]) == pool
        assert [list(planned[role]) for role in ("irq", "main", "acl", "release")] == [
            pool[:2],
            pool[2:-2],
            pool[-2:-1],
            pool[-1:],
        ]


def test_a_process_is_bound_verified_found_drifted_and_put_back(npus: Npus) -> None:
    before, planned = npus.routes(), plan_of(1)
    flags = ("--strategy", "ascend", "--local-rank", "1")
    with child() as running:
        free = masks(running.pid)[running.pid]
        away = next(node for node in WHOLE if planned["pool"][0] not in node.cpus)
        home = next(node for node in WHOLE if planned["pool"][0] in node.cpus)
        running.tell("move", running.pid, away.cpus[0])
        memory = int(running.tell("private", _BYTES))
        running.tell("move", running.pid, ",".join(map(str, free)))
        threads = {name: running.thread(name) for name in ("acl_thread", "release_thread", "python-worker")}
        assert places(running.pid, memory, _BYTES) == {away.id}
        bound = homenode("bind", "--pid", running.pid, *flags, "--json")
        assert bound.code == 0, bound.out + bound.err
        seen = masks(running.pid)
        assert seen[threads["acl_thread"]] == planned["acl"]
        assert seen[threads["release_thread"]] == planned["release"]
        assert seen[threads["python-worker"]] == seen[running.pid] == planned["main"]
        assert places(running.pid, memory, _BYTES) == {home.id}
        submit, complete = planned["irq"]
        assert npus.routes() == [*before[:2], [submit], [complete]], "the other NPU's interrupts stay"
        assert homenode("verify", "--pid", running.pid, *flags, "--json").code == 0

        running.tell("move", threads["acl_thread"], planned["main"][0])
        Path(f"/proc/irq/{npus.irqs[1][0]}/smp_affinity_list").write_text(str(planned["main"][0]))
        drifted = homenode("verify", "--pid", running.pid, *flags, "--json")
        codes = {finding["code"] for finding in drifted.json["findings"] if finding["severity"] == "error"}
        assert drifted.code == 1 and "irq_off_plan" in codes and len(codes) > 1, drifted.out

        undone = homenode("bind", "--undo", "--pid", running.pid, "--json")
        assert undone.code == 0 and npus.routes() == before, undone.out
        assert set(masks(running.pid).values()) == {free}


def test_the_documented_lines_are_written(npus: Npus) -> None:
    planned = plan_of(0)
    with child() as running:
        bound = homenode("bind", "--pid", running.pid, "--strategy", "ascend", "--local-rank", "0")
        lines = [line.removeprefix("homenode: ") for line in bound.err.splitlines()]
        roles = " ".join(f"{role}={list(planned[role])}" for role in ("main", "acl", "release"))
        assert "[cpu_bind_mode] mode=topo_affinity rank=0 visible_npus=[0, 1]" in lines
        assert "The CPU allocation plan is as follows:" in lines and f"NPU0: {roles}" in lines
        homenode("bind", "--undo", "--pid", running.pid)


@pytest.mark.parametrize("own", [False, True], ids=["homenode run", "a worker of homenode's own"])
def test_driver_threads_and_interrupts_of_what_is_started(npus: Npus, own: bool) -> None:
    """However it ends: here it is killed."""
    before, planned = npus.routes(), plan_of(1)
    run = command("run", "--strategy", "ascend", "--local-rank", "1", "--", sys.executable, "-c", _PROGRAM)
    words = [sys.executable, "-c", _WORKER] if own else list(run)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == "ready\n"

            def roles() -> dict[str, tuple[int, ...]]:
                tasks = {tid: Path(f"/proc/{program.pid}/task/{tid}/comm") for tid in masks(program.pid)}
                return {tasks[tid].read_text().strip(): cpus for tid, cpus in masks(program.pid).items()}

            wanted = (planned["acl"], planned["release"])
            wait_until(lambda: (roles().get("acl_thread"), roles().get("release_thread")) == wanted, roles)
            assert masks(program.pid)[program.pid] == planned["main"]
            submit, complete = planned["irq"]
            assert npus.routes()[2:] == [[submit], [complete]]
        finally:
            program.kill()
        told = "" if program.stderr is None else program.stderr.read()
    assert f"acl={list(planned['acl'])}" in told, told
    wait_until(lambda: npus.routes() == before, npus.routes)


def test_nothing_is_bound_by_a_tool_that_fails(npus: Npus, tmp_path: Path) -> None:
    (tmp_path / "bin" / "npu-smi").write_text("#!/bin/sh\necho 'dcmi model initialized failed' >&2\nexit 7\n")
    with child() as running:
        before = masks(running.pid)
        refused = homenode("bind", "--pid", running.pid, "--strategy", "ascend", "--json")
        assert refused.code == 2 and "dcmi model" in json.dumps(refused.json), refused.out
        assert masks(running.pid) == before
