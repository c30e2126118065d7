"""Make the recorded hosts of the tests from captured /sys and /proc trees, and what hwloc says of the same trees.

    python tools/record_hosts.py CAPTURES tests/hosts [--lstopo lstopo-no-graphics]

CAPTURES is a folder of archives: tests/hwloc/linux/*.tar.bz2 and tests/hwloc/x86+linux/*.tar.bz2 of hwloc,
tests/ts/lscpu/dumps/*.tar.gz of util-linux. Written are one recording for each line of the table below, and
expected.json: CPUs, cores, sockets, L3 caches, nodes and distances as lstopo reads them from the same tree, which is
the independent opinion that the tests hold the reader to.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.host.discovery.snapshot import record, write_recording
from homenode.host.topology.source import CommandResult, LiveSource

HWLOC, HWLOC_GIT, UTIL_LINUX = "hwloc 2.9.0", "hwloc, git 3b37b024 (August 2026)", "util-linux 2.38.1"


@dataclass(frozen=True, slots=True)
class Capture:
    """`name`: of the recording. `archive`: of the capture, without its ending. `why`: what this machine has that others
    have not.
    """

    name: str
    archive: str
    machine: str
    origin: str
    about: str
    why: str


CAPTURES = (
    Capture("altered-24cpu-overlapping-nodes", "fakeheterocpunuma", "x86_64", HWLOC,
        "two-socket Xeon, altered for hwloc's tests",
        "nodes that share CPUs, one node without any, asymmetric distances"),
    Capture("altered-40cpu-pci-nodes", "fakepcilocalities", "x86_64", HWLOC_GIT,
        "four-socket Xeon, altered for hwloc's tests", "thirty PCI functions over nodes 0 to 3"),
    Capture("altered-6cpu-memory-tiers", "fakeheteromemtiers", "x86_64", HWLOC,
        "small machine, altered for hwloc's tests", "sparse ids, four nodes of memory without CPUs"),
    Capture("altered-8cpu-memory-initiators", "fakememinitiators-1np2c+1npp+gi", "x86_64", HWLOC,
        "Xeon Gold 6230, altered for hwloc's tests", "nodes without memory and nodes without CPUs, ten distances"),
    Capture("arm-128cpu-clusters", "128arm-2pa2n8cluster4co", "aarch64", HWLOC, "two-socket Arm server",
        "clusters of four cores, package ids 36 and 8442, distances 10 to 33"),
    Capture("arm-2cpu-board", "2arm-2c", "armv7l", HWLOC, "Arm board", "no NUMA folder"),
    Capture("arm-dgx-spark", "nvidia-dgx-gb10", "aarch64", HWLOC_GIT, "NVIDIA DGX Spark (GB10)",
        "cores of five speeds in two clusters"),
    Capture("core-hybrid-20cpu", "20em64t-hybrid-1p6c2t+2ca4co1t", "x86_64", HWLOC_GIT,
        "Intel Core with two kinds of cores", "six cores with SMT, eight in clusters of four without"),
    Capture("core-hybrid-5cpu", "5intel64-hybrid-lakefield", "x86_64", HWLOC, "Intel Core (Lakefield)",
        "five cores, of whose two kinds this kernel says nothing"),
    Capture("epyc-96cpu-8node", "x86_64-epyc_7451", "x86_64", UTIL_LINUX, "two EPYC 7451",
        "sixteen L3s on eight nodes; neither memory nor distances are told"),
    Capture("ia64-128cpu-17node", "128ia64-17n4s2c", "ia64", HWLOC, "Itanium Altix",
        "a node without CPUs; hexadecimal masks only"),
    Capture("ia64-256cpu-64node", "256ia64-64n2s2c", "ia64", HWLOC, "Itanium Altix",
        "64 nodes at five distances; hexadecimal masks only"),
    Capture("ia64-8cpu-2node", "8ia64-2n2s2c", "ia64", HWLOC, "Itanium server",
        "an early kernel: empty cache masks, socket ids such as 196867"),
    Capture("opteron-16cpu-offline", "16amd64-8n2c-cpusets", "x86_64", HWLOC, "eight Opterons",
        "a node with one of its two CPUs offline"),
    Capture("opteron-32cpu-8node", "32amd64-4s2n4c-cgroup2", "x86_64", HWLOC, "four Opterons",
        "two nodes and two L3s a socket"),
    Capture("opteron-48cpu-sparse-nodes", "48amd64-4d2n6c-sparse", "x86_64", HWLOC, "four Opterons",
        "node ids 0, 1, 2, 33, 34, 45, 72 and 73"),
    Capture("opteron-64cpu-modules", "64amd64-4s2n4ca2co", "x86_64", HWLOC, "four Opteron 6276",
        "pairs of half-cores that the kernel calls siblings"),
    Capture("power-256cpu-sparse-nodes", "256ppc-8n8s4t", "ppc64", HWLOC, "POWER7 server",
        "SMT4, node ids 0, 1, 4, 5, 8, 9, 12 and 13, no socket ids"),
    Capture("power7-16cpu", "ppc64-POWER7", "ppc64", UTIL_LINUX, "POWER7 partition",
        "a node of which only the CPU mask is told"),
    Capture("power7-64cpu-cpuless-node", "ppc64-POWER7-64cpu", "ppc64", UTIL_LINUX, "POWER7 server",
        "SMT4, a node without CPUs"),
    Capture("power9-6gpu-sparse-nodes", "nvidiagpunumanodes", "ppc64le", HWLOC, "POWER9 AC922 with six V100",
        "the GPUs' memory is nodes 250 to 255; gaps between the CPU numbers"),
    Capture("ps3-2cpu", "2ps3-2t", "ppc64", HWLOC, "PlayStation 3", "two threads of one core, hardly any files"),
    Capture("qemu-64cpu-dies", "fakecpuid1f-64intel64-2p4d2n2c2t", "x86_64", HWLOC, "qemu guest",
        "dies and sixteen nodes, SMT"),
    Capture("riscv-2cpu", "rv64-linux", "riscv64", UTIL_LINUX, "RISC-V machine", "no NUMA folder"),
    Capture("s390-20cpu-books", "20s390-2g6s4c", "s390x", HWLOC, "IBM Z", "books, no socket ids"),
    Capture("s390-8cpu-drawers", "s390-lpar-drawer", "s390x", UTIL_LINUX, "IBM Z partition",
        "drawers; the node lists more CPUs than are there"),
    Capture("vmware-16cpu-4node", "vmware_fpe", "x86_64", UTIL_LINUX, "VMware guest",
        "four nodes as the hypervisor makes them up"),
    Capture("xeon-16cpu-offline", "16em64t-4s2c2t-offlines", "x86_64", HWLOC, "four Xeons with SMT",
        "four CPUs offline, so that some cores have one thread"),
    Capture("xeon-32cpu-vector-engines", "32intel64-2p8co2t+8ve", "x86_64", HWLOC,
        "two Xeon Silver 4108 with eight NEC Vector Engines", "accelerators of another maker, all on one node"),
    Capture("xeon-32cpu-xeon-phi", "32em64t-2n8c+1mic", "x86_64", HWLOC, "two Xeon E5-2680 with a Xeon Phi",
        "137 PCI functions on both nodes and on none"),
    Capture("xeon-40cpu-pci", "40intel64-2g2n4c+pci", "x86_64", HWLOC, "four Xeon E7-4870",
        "PCI functions on node 2 and on none"),
    Capture("xeon-40cpu-pci-conflicts", "40intel64-4n10c+pci-conflicts", "x86_64", HWLOC, "four Xeon E7-4870",
        "PCI functions whose local CPUs are wrong"),
    Capture("xeon-64cpu-gap-in-nodes", "x86_64-64cpu", "x86_64", UTIL_LINUX, "four Xeon X7550",
        "node ids 0, 2 and 3: one socket lies on no node of its own"),
    Capture("xeon-8cpu-buggy-firmware", "8em64t-2s2ca2c-buggynuma", "x86_64", HWLOC, "two Xeons",
        "eight nodes, each with all CPUs, all at distance 10"),
    Capture("xeon-96cpu-16socket", "96em64t-4n4d3ca2co", "x86_64", HWLOC, "sixteen Xeons",
        "four sockets on each of four nodes"),
    Capture("xeon-memory-caches", "memorysidecaches", "x86_64", HWLOC_GIT, "two Xeons with memory-side caches",
        "two nodes a socket, distances 10, 11 and 21"),
    Capture("xeon-offline-first-node", "offline-cpu0-node0", "x86_64", HWLOC, "two Xeons",
        "CPU 0 and node 0 are offline: only node 1 is left"),
    Capture("xeon-phi-64cpu-hbm", "64intel64-fakeKNL-SNC4-hybrid", "x86_64", HWLOC, "Xeon Phi (Knights Landing)",
        "nodes 4 to 7 are fast memory without CPUs, SMT4"),
)  # fmt: skip


# Most files of a capture are of no interest to anyone here, and unpacking them takes minutes.
UNREAD = re.compile(
    r"/(cpuidle|power|stats|thermal_throttle|microcode|queues|statistics|vmstat|numastat)(/|$)|/(uevent|crash_notes)$"
)


class CapturedTree(LiveSource):
    """A machine whose /sys and /proc were copied into a folder."""

    def __init__(self, root: Path, machine: str) -> None:
        super().__init__(str(root), env={})
        self._captured_machine = machine

    @property
    def machine(self) -> str:
        return self._captured_machine

    def command(self, words: Sequence[str]) -> CommandResult:
        return CommandResult("", 127, "missing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lstopo", default="lstopo-no-graphics", help="hwloc's program (Debian package hwloc-nox)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    expected = {}
    for capture in CAPTURES:
        archive = next(
            (path for path in options.captures.iterdir() if path.name.startswith(capture.archive + ".tar.")), None
        )
        if archive is None:
            sys.exit(f"{options.captures} has no capture {capture.archive}")
        with tempfile.TemporaryDirectory() as folder:
            root = unpack(archive, Path(folder))
            recording = record(
                CapturedTree(root, capture.machine), about=f"{capture.about}; {capture.origin}, {capture.archive}"
            )
            write_recording(options.out / f"{capture.name}.json", recording)
            expected[capture.name] = opinion(options.lstopo, root)
    (options.out / "expected.json").write_text(expected_text(expected), encoding="utf-8")
    print("\n".join(table_rows(expected)))


def unpack(archive: Path, folder: Path) -> Path:
    """The root of the tree in an archive: the folder that holds sys."""

    def inside(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        if UNREAD.search(member.name):
            return None
        try:
            return tarfile.data_filter(member, path)
        except tarfile.FilterError:
            return None  # a link that leads out of the tree is no fact of this machine

    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter=inside)
    return min(folder.rglob("sys"), key=lambda path: len(path.parts)).parent


def opinion(lstopo: str, root: Path) -> dict[str, object]:
    """What hwloc reads from a tree."""
    env = {
        **os.environ,
        "HWLOC_FSROOT": str(root),
        "HWLOC_THISSYSTEM": "0",
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1",
        "HWLOC_HIDE_ERRORS": "1",
        "HWLOC_DEBUG_ALLOW_OVERLAPPING_NODE_CPUSETS": "1",
    }
    command = [
        lstopo,
        "--of",
        "xml",
        "--disallowed",
        "--no-io",
        "--filter",
        "core:all",
        "--filter",
        "package:all",
        "--filter",
        "l3:all",
    ]
    out = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    top = ET.fromstring(out)
    objects: dict[str, list[ET.Element]] = {}
    for item in top.iter("object"):
        objects.setdefault(item.get("type", ""), []).append(item)
    nodes = {int(item.get("os_index", "0")): item for item in objects.get("NUMANode", [])}
    if not any((root / "sys/devices/system/node").glob("node[0-9]*")):
        nodes.clear()  # hwloc makes up one where there is none
    online = {int(item.get("os_index", "0")) for item in objects["PU"]}
    return {
        "cpus": format_cpu_list(online),
        "cores": sets(objects.get("Core", [])),
        "sockets": sets(objects.get("Package", [])),
        "l3": sets(objects.get("L3Cache", [])),
        "nodes": {str(node): memory_of(root, node, item) for node, item in sorted(nodes.items())},
        "node_cpus": {str(node): cpus_of_node(root, node, online) for node in sorted(nodes)},
        "distances": distances(top),
    }


def sets(objects: Iterable[ET.Element]) -> str:
    """Their CPUs, each as a list, with bars between; in order of the lowest CPU."""
    return "|".join(format_cpu_list(cpus) for cpus in sorted(mask(item.get("cpuset", "")) for item in objects))


def mask(text: str) -> list[int]:
    """CPUs of hwloc's masks: 32-bit groups of which those that are nought may be empty."""
    groups = [int(group, 16) if group else 0 for group in text.split(",")]
    return [32 * place + bit for place, group in enumerate(reversed(groups)) for bit in range(32) if group >> bit & 1]


def memory_of(root: Path, node: int, item: ET.Element) -> int | None:
    """Bytes; None where the capture does not say, of which hwloc makes 0."""
    told = (root / f"sys/devices/system/node/node{node}/meminfo").is_file()
    return int(item.get("local_memory", "0")) if told else None


def cpus_of_node(root: Path, node: int, online: set[int]) -> str:
    """Online CPUs by the kernel's own list: hwloc gives memory without CPUs the CPUs that it is near to."""
    folder = root / f"sys/devices/system/node/node{node}"
    listed = text_of(folder / "cpulist")
    cpus = parse_cpu_list(listed) if listed is not None else mask(text_of(folder / "cpumap") or "0")
    return format_cpu_list(online.intersection(cpus))


def text_of(path: Path) -> str | None:
    return path.read_text(errors="replace").strip("\0 \n") if path.is_file() else None


def distances(top: ET.Element) -> dict[str, list[int]]:
    """Rows in ascending order of the nodes, by node; empty where hwloc found none or did not believe them."""
    matrix = next(
        (item for item in top.iter("distances2") if item.get("name") == "NUMALatency" and item.get("indexing") == "os"),
        None,
    )
    if matrix is None:
        return {}
    ids = [int(word) for item in matrix.iter("indexes") for word in (item.text or "").split()]
    values = [int(word) for item in matrix.iter("u64values") for word in (item.text or "").split()]
    by_pair = {
        (here, there): values[row * len(ids) + column]
        for row, here in enumerate(ids)
        for column, there in enumerate(ids)
    }
    return {str(here): [by_pair[here, there] for there in sorted(ids)] for here in sorted(ids)}


def expected_text(expected: Mapping[str, Mapping[str, object]]) -> str:
    """One fact a line."""
    hosts = []
    for name, facts in sorted(expected.items()):
        lines = ",\n".join(f"  {json.dumps(fact)}: {json.dumps(value)}" for fact, value in facts.items())
        hosts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(hosts) + "\n}\n"


def table_rows(expected: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The lines of the table in the folder's README."""
    rows = ["| file | machine | CPUs | nodes | kept for | origin |", "|---|---|---|---|---|---|"]
    for capture in CAPTURES:
        facts = expected[capture.name]
        nodes = facts["nodes"]
        count = len(nodes) if isinstance(nodes, dict) else 0
        cpus = len(parse_cpu_list(str(facts["cpus"])))
        rows.append(
            f"| {capture.name} | {capture.about} ({capture.machine}) | {cpus} | {count} | {capture.why} | "
            f"{capture.origin}, {capture.archive} |"
        )
    return rows


if __name__ == "__main__":
    main()
