"""A whole host: its JSON, its fingerprint, how long it takes, and what any text in any file does to it."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import parse_cpu_list
from homenode.host.discovery.read import read_host
from homenode.host.topology.describe import fingerprint, host_to_dict
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource, RecordedSource, RecordingSource
from tests.examples import examples

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
PCI = "/sys/bus/pci/devices/0000:c1:00.0"


def machine() -> dict[str, str]:
    """Two sockets with a node and four cores each, two threads to a core, a cache for each node; CPU 15 is offline."""
    files = {
        f"{CPU}/online": "0-14",
        f"{CPU}/present": "0-15",
        f"{CPU}/isolated": "7",
        f"{NODE}/online": "0,4",
        f"{NODE}/node0/cpulist": "0-3,8-11",
        f"{NODE}/node0/meminfo": "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 1 kB",
        f"{NODE}/node0/distance": "10 32",
        f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": "4",
        f"{NODE}/node4/cpumap": "0000f0f0",
        f"{NODE}/node4/distance": "32 10",
        "/proc/sys/kernel/osrelease": "6.1.0",
        "/proc/sys/kernel/numa_balancing": "1",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/proc/interrupts": "           CPU0\n  40:          1  ITS-MSI 4 Edge      cq_update_irq",
        "/proc/self/status": "Cpus_allowed_list:\t0-3,8-11\nMems_allowed_list:\t0",
        "/proc/self/cgroup": "0::/pod",
        "/sys/fs/cgroup/pod/cpuset.cpus.effective": "0-3,8-11",
        "/sys/fs/cgroup/pod/cpu.max": "350000 100000",
        "/sys/fs/cgroup/pod/memory.max": "1073741824",
        "/sys/fs/cgroup/pod/memory.current": "4096",
        "/sys/fs/cgroup/pod/memory.stat": "inactive_file 4096",
        "/proc/meminfo": "MemAvailable: 4096 kB",
        f"{PCI}/vendor": "0x19e5",
        f"{PCI}/device": "0xd802",
        f"{PCI}/class": "0x120000",
        f"{PCI}/numa_node": "4",
        f"{PCI}/local_cpulist": "4-7,12-15",
        f"{PCI}/msi_irqs/40": "msix",
    }
    for cpu in range(15):
        socket = cpu % 8 // 4
        files |= {
            f"{CPU}/cpu{cpu}/topology/core_cpus_list": f"{cpu % 8}-{cpu % 8},{cpu % 8 + 8}",
            f"{CPU}/cpu{cpu}/topology/physical_package_id": str(socket),
            f"{CPU}/cpu{cpu}/topology/die_id": "0",
            f"{CPU}/cpu{cpu}/cache/index3/level": "3",
            f"{CPU}/cpu{cpu}/cache/index3/type": "Unified",
            f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": ("0-3,8-11", "4-7,12-14")[socket],
        }
    return files


def host_of(files: dict[str, str]) -> Host:
    return read_host(RecordedSource("aarch64", files), accelerators=False)


def test_the_json_form_holds_the_host() -> None:
    host = host_of(machine())
    assert json.loads(json.dumps(host_to_dict(host))) == {
        "fingerprint": fingerprint(host),
        "machine": "aarch64",
        "kernel": "6.1.0",
        "numa_balancing": True,
        "transparent_huge_pages": "madvise",
        "cpus": {
            "model": "",
            "online": "0-14",
            "offline": "15",
            "isolated": "7",
            "sockets": {"0": "0-3,8-11", "1": "4-7,12-14"},
            "dies": [{"socket": 0, "die": 0, "cpus": "0-3,8-11"}, {"socket": 1, "die": 0, "cpus": "4-7,12-14"}],
            "l3": ["0-3,8-11", "4-7,12-14"],
            "clusters": [],
            "cores": ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7"],
            "capacities": {"1024": "0-14"},
            "priority": "",
        },
        "nodes": [
            {
                "id": 0,
                "cpus": "0-3,8-11",
                "memory": 1 << 30,
                "distances": {"0": 10, "4": 32},
                "huge_pages": {"2097152": 4},
            },
            {"id": 4, "cpus": "4-7,12-14", "memory": None, "distances": {"0": 32, "4": 10}, "huge_pages": {}},
        ],
        "devices": [
            {
                "address": "0000:c1:00.0",
                "vendor": "0x19e5",
                "device": "0xd802",
                "class": "0x120000",
                "node": 4,
                "local_cpus": "4-7,12-14",
                "irqs": [40],
            }
        ],
        "accelerators": {"device_type": None, "chips": [], "errors": [], "notes": []},
        "interrupts": [{"irq": 40, "chip": "ITS-MSI", "actions": ["cq_update_irq"]}],
        "allowance": {
            "cpus": "0-3,8-11",
            "physical_cpus": "0-3",
            "mask_origin": "cpuset",
            "cpuset": "0-3,8-11",
            "memory_nodes": "0",
            "cpu_quota": 3.5,
            "usable_threads": 3,
            "memory_limit": 1 << 30,
        },
        "variables": {},
        "notes": [],
    }


def test_core_cache_and_node_of_every_cpu_can_be_told_from_the_json() -> None:
    host = host_of(machine())
    raw = host_to_dict(host)
    for cpu in host.cpus:
        core = next(cpus for cpus in map(parse_cpu_list, raw["cpus"]["cores"]) if cpu.id in cpus)
        cache = next(cpus for cpus in map(parse_cpu_list, raw["cpus"]["l3"]) if cpu.id in cpus)
        socket = next(number for number, cpus in raw["cpus"]["sockets"].items() if cpu.id in parse_cpu_list(cpus))
        node = next(node["id"] for node in raw["nodes"] if cpu.id in parse_cpu_list(node["cpus"]))
        assert (min(core), min(cache), int(socket), node) == (cpu.core, cpu.l3, cpu.socket, cpu.node)


def test_the_fingerprint_is_of_the_structure() -> None:
    files = machine()
    mark = fingerprint(host_of(files))
    assert len(mark) == 16
    assert (
        fingerprint(
            host_of(files | {"/proc/meminfo": "MemAvailable: 1 kB", "/proc/self/status": "Cpus_allowed_list: 3"})
        )
        == mark
    )
    assert fingerprint(host_of(files | {f"{NODE}/node0/meminfo": "Node 0 MemTotal: 1 kB"})) == mark
    changes = {
        f"{CPU}/online": "0-13",
        f"{NODE}/node0/distance": "10 20",
        f"{PCI}/numa_node": "0",
        f"{CPU}/cpu1/topology/core_cpus_list": "1",
    }
    marks = {fingerprint(host_of(files | {path: text})) for path, text in changes.items()}
    assert len(marks | {mark}) == len(changes) + 1


def test_a_recording_of_this_machine_reads_as_this_machine() -> None:
    recorder = RecordingSource(LiveSource())
    live = read_host(recorder, accelerators=False)
    msi = {
        f"{folder}/{name}": ""
        for folder, names in recorder.folders.items()
        if folder.endswith("/msi_irqs")
        for name in names
    }
    recorded = read_host(RecordedSource(recorder.machine, recorder.files | msi, env=recorder.env), accelerators=False)
    assert recorded == live
    assert host_to_dict(recorded) == host_to_dict(live)
    assert live.cpus
    assert live.kernel


def test_640_cpus_are_read_in_no_time() -> None:
    files = {f"{CPU}/online": "0-639", f"{NODE}/online": "0-7", "/proc/self/status": "Cpus_allowed_list:\t0-639"}
    for node in range(8):
        files |= {
            f"{NODE}/node{node}/cpulist": f"{node * 80}-{node * 80 + 79}",
            f"{NODE}/node{node}/distance": "10 " * 8,
        }
    for cpu in range(640):
        files |= {
            f"{CPU}/cpu{cpu}/topology/core_cpus_list": str(cpu),
            f"{CPU}/cpu{cpu}/topology/physical_package_id": str(cpu // 160),
        }
    source = RecordedSource("aarch64", files)
    times = []
    for _ in range(5):
        start = time.process_time()
        assert len(read_host(source, accelerators=False).cpus) == 640
        times.append(time.process_time() - start)
    assert min(times) < 0.1  # some 5 ms; the bound leaves room for a slow machine


LINES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "-1", "0-3", "0-65535", "ffffffff", "10 20", "0::/..", "max", "9" * 5000, "0x", "\0", "1-"]),
)


@given(st.dictionaries(st.sampled_from(sorted(machine())), LINES, max_size=12), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_any_text_in_any_file_is_read_and_what_makes_no_sense_is_noted(changes: dict[str, str], alone: bool) -> None:
    host = host_of(changes if alone else machine() | changes)
    assert json.dumps(host_to_dict(host))
    assert len(fingerprint(host)) == 16
    online = {cpu.id for cpu in host.cpus}
    assert set(host.allowance.cpus) <= online
    assert all(set(node.cpus) <= online for node in host.nodes)
    assert all(note.message and note.remedy for note in host.notes)
    assert len(host.notes) <= 50


def test_every_kind_of_junk_is_noted_with_its_file() -> None:
    junk = [
        f"{CPU}/online",
        f"{NODE}/node0/cpulist",
        f"{CPU}/cpu0/topology/core_cpus_list",
        f"{PCI}/numa_node",
        "/sys/fs/cgroup/pod/cpu.max",
    ]
    junk += [
        "/sys/fs/cgroup/pod/memory.max",
        "/proc/sys/kernel/numa_balancing",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        f"{CPU}/isolated",
    ]
    for path in junk:
        assert any(path in note.message for note in host_of(machine() | {path: "?!"}).notes), path


def test_a_host_equals_itself_whatever_memory_is_free() -> None:
    host = host_of(machine())
    assert host == replace(host, allowance=replace(host.allowance, memory_available=1))
