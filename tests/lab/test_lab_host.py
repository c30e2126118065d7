"""What is read of a machine of several nodes, against what others read: lscpu, numactl, sysfs itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from homenode.cpuset import parse_cpu_list
from tests.lab.machine import NODES, homenode, several_nodes
from tools.lab.topologies import TOPOLOGIES

pytestmark = several_nodes


@pytest.fixture(scope="module")
def host() -> dict[str, Any]:
    seen: dict[str, Any] = homenode("host", "--json").json
    return seen


def output(*words: str) -> str:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def grouped(rows: list[dict[str, str]], *keys: str) -> set[tuple[int, ...]]:
    """CPUs that agree in these columns of lscpu."""
    found: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(int(row["cpu"]))
    return {tuple(sorted(cpus)) for cpus in found.values()}


@pytest.mark.skipif("HOMENODE_LAB_MACHINE" not in os.environ, reason="this is no machine of `make lab`")
def test_the_machine_is_the_one_that_was_wanted(host: dict[str, Any]) -> None:
    wanted = TOPOLOGIES[os.environ["HOMENODE_LAB_MACHINE"]]
    assert [len(NODES[number].cpus) for number in sorted(NODES)] == [node.cpus for node in wanted.nodes]
    for number, node in enumerate(wanted.nodes):  # the kernel keeps some for itself
        assert 0.8 * (node.mib << 20) <= NODES[number].memory <= node.mib << 20
    assert {len(parse_cpu_list(core)) for core in host["cpus"]["cores"]} == {wanted.threads_per_core}
    assert len(host["cpus"]["sockets"]) == wanted.sockets
    seen = {(node["id"], int(other)): far for node in host["nodes"] for other, far in node["distances"].items()}
    for (one, other), far in wanted.distances.items():
        assert (seen[one, other], seen[other, one]) == (far, far)


def test_cpus_are_where_lscpu_sees_them(host: dict[str, Any]) -> None:
    columns = ("cpu", "core", "socket", "node")
    lines = [line for line in output("lscpu", f"-p={','.join(columns)}").splitlines() if not line.startswith("#")]
    rows = [dict(zip(columns, line.split(","), strict=True)) for line in lines]
    cpus = host["cpus"]
    assert parse_cpu_list(cpus["online"]) == tuple(sorted(int(row["cpu"]) for row in rows))
    assert {parse_cpu_list(core) for core in cpus["cores"]} == grouped(rows, "socket", "core")
    assert {parse_cpu_list(socket) for socket in cpus["sockets"].values()} == grouped(rows, "socket")
    assert {parse_cpu_list(node["cpus"]) for node in host["nodes"] if node["cpus"]} == grouped(rows, "node")


def test_nodes_memory_and_distances_are_as_numactl_sees_them(host: dict[str, Any]) -> None:
    text = output("numactl", "--hardware")
    sizes = {int(node): int(size) for node, size in re.findall(r"^node (\d+) size: (\d+) MB", text, re.MULTILINE)}
    assert {node["id"]: node["memory"] >> 20 for node in host["nodes"]} == sizes
    header, *rows = [line.split() for line in text[text.index("node distances:") :].splitlines()[1:] if line.strip()]
    seen = {int(row[0].rstrip(":")): dict(zip(map(int, header[1:]), map(int, row[1:]), strict=True)) for row in rows}
    assert {node["id"]: {int(other): far for other, far in node["distances"].items()} for node in host["nodes"]} == seen
    assert set(seen) == set(NODES)


def test_devices_are_on_the_nodes_that_sysfs_says(host: dict[str, Any]) -> None:
    seen = {}
    for folder in Path("/sys/bus/pci/devices").iterdir():
        node = int((folder / "numa_node").read_text())
        irqs = (
            sorted(int(entry.name) for entry in (folder / "msi_irqs").iterdir())
            if (folder / "msi_irqs").is_dir()
            else None
        )
        local = parse_cpu_list((folder / "local_cpulist").read_text())
        seen[folder.name] = (node, local, irqs) if node >= 0 else (None, (), irqs)  # -1 comes with a list of all CPUs
    assert set(seen) == {device["address"] for device in host["devices"]}
    for device in host["devices"]:
        node, local, irqs = seen[device["address"]]
        assert (device["node"], parse_cpu_list(device["local_cpus"])) == (node, local)
        assert irqs is None or device["irqs"] == irqs


def test_a_recording_reads_as_the_machine_itself(host: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    assert homenode("host", "record", file).code == 0
    assert homenode("host", "--from", file, "--json").json == host
