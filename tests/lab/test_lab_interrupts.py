"""Interrupts of a device on a node of its own: routed with the plan of the device, seen when they drift, put back.

A device of any kind stands in for an accelerator: a tool on PATH that answers as nvidia-smi does names it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homenode.cpuset import format_cpu_list, parse_cpu_list
from tests.host.children import child
from tests.lab.machine import NODES, Done, homenode, own_machine, several_nodes

pytestmark = [several_nodes, own_machine]
_PCI = Path("/sys/bus/pci/devices")
_TOOL = """#!/bin/sh
case "$*" in
*query-gpu*) echo "0, GPU-5a8c1f37-0000-4000-8000-000000000001, 0000{address}, Stand-in" ;;
*) exit 0 ;;
esac
"""


def device_of(*drivers: str) -> str:
    """The address of a device with interrupts on another node than the first; its driver is one of these."""
    for folder in sorted(_PCI.iterdir()):
        driver = (folder / "driver").resolve().name if (folder / "driver").exists() else ""
        node = int((folder / "numa_node").read_text())
        if driver in drivers and (folder / "msi_irqs").is_dir() and node > min(NODES) and NODES[node].cpus:
            return folder.name
    pytest.skip(f"no device of {' or '.join(drivers)} with interrupts on a node with CPUs other than the first")


def routes(address: str) -> dict[int, tuple[int, ...]]:
    """Where the interrupts of a device may go."""
    irqs = sorted(int(entry.name) for entry in (_PCI / address / "msi_irqs").iterdir())
    return {irq: parse_cpu_list(Path(f"/proc/irq/{irq}/smp_affinity_list").read_text()) for irq in irqs}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that answers for nvidia-smi; the folder of remembered things is the test's own too."""
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return tool


def answers_for(tool: Path, address: str) -> None:
    tool.write_text(_TOOL.format(address=address.upper()))
    tool.chmod(0o755)


def interrupts(done: Done) -> dict[str, str]:
    """Outcomes of the steps that concern interrupts."""
    return {step["what"]: step["outcome"] for step in done.json["steps"] if step["what"].startswith("irq ")}


def test_interrupts_go_to_the_node_of_their_device_and_come_back(stand_in: Path) -> None:
    address = device_of("virtio-pci")
    node = NODES[int((_PCI / address / "numa_node").read_text())]
    answers_for(stand_in, address)
    (chip,) = homenode("host", "--json").json["accelerators"]["chips"]
    assert (chip["address"], chip["node"]) == (address, node.id)
    (worker,) = homenode("plan", "--json").json["workers"]
    wanted = parse_cpu_list(worker["roles"]["irq"])
    assert wanted and set(wanted) <= set(node.cpus) and worker["memory_node"] == node.id
    before = routes(address)
    with child() as running:
        bound = homenode("bind", "--pid", running.pid, "--yes", "--json")
        assert bound.code == 0 and set(routes(address).values()) == {wanted}, bound.out
        assert set(interrupts(bound).values()) == {"done"} and len(interrupts(bound)) == len(before)
        assert homenode("verify", "--pid", running.pid, "--json").code == 0

        irq, away = next(iter(before)), format_cpu_list([min(set(NODES[min(NODES)].cpus) - set(wanted))])
        Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(away)
        drifted = homenode("verify", "--pid", running.pid, "--json")
        assert drifted.code == 1 and [finding["code"] for finding in drifted.json["findings"]] == ["irq_off_plan"]

        undone = homenode("bind", "--undo", "--pid", running.pid, "--json")
        assert undone.code == 0 and routes(address) == before, undone.out


def test_interrupts_that_the_kernel_keeps_for_itself_are_said_and_hinder_nothing(stand_in: Path) -> None:
    address = device_of("nvme")
    answers_for(stand_in, address)
    before = routes(address)
    with child() as running:
        bound = homenode("bind", "--pid", running.pid, "--yes", "--json")
        said = interrupts(bound)
        assert bound.code == 0 and set(said.values()) == {"done", "failed"}
        after = routes(address)
        assert {f"irq {irq}" for irq in before if after[irq] != before[irq]} <= {
            what for what, outcome in said.items() if outcome == "done"
        }
        assert {finding["code"] for finding in bound.json["findings"]} == {"irq_refused"}
        seen = homenode("verify", "--pid", running.pid, "--json")
        assert seen.code == 0 and {finding["code"] for finding in seen.json["findings"]} == {"irq_off_plan"}, seen.out
        undone = homenode("bind", "--undo", "--pid", running.pid, "--json")
        assert undone.code == 0 and routes(address) == before, undone.out
