"""How much more memory may be taken, from files as kernels write them."""

from __future__ import annotations

import pytest

from homenode.host.topology.facts import FactReader
from homenode.host.topology.headroom import Headroom, read_headroom
from homenode.host.topology.source import LiveSource, RecordedSource

MIB, GIB = 1 << 20, 1 << 30
V2 = {"/proc/self/cgroup": "0::/serving/one\n"}
MEMINFO = {"/proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {20 * GIB // 1024} kB\n"}
ONE, ABOVE = "/sys/fs/cgroup/serving/one", "/sys/fs/cgroup/serving"
CALM = "some avg10=0.50 avg60=0.10 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
PRESSED = "some avg10=34.20 avg60=9.00 avg300=1.00 total=99\nfull avg10=11.00 avg60=0.00 avg300=0.00 total=9\n"


def group(folder: str, current: int, high: str = "max", most: str = "max", inactive: int = 0) -> dict[str, str]:
    return {
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.max": f"{most}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {inactive}\n",
    }


CASES: dict[str, tuple[dict[str, str], int, str]] = {
    "the machine": ({}, 20 * GIB - 512 * MIB, "available memory on this machine"),
    "no limit": (V2 | group(ONE, GIB), 20 * GIB - 512 * MIB, "this machine"),
    "memory.high": (V2 | group(ONE, GIB, high=str(2 * GIB)), GIB - 64 * MIB, "below memory.high of its control group"),
    "memory.max": (V2 | group(ONE, GIB, most=str(2 * GIB)), GIB - 64 * MIB, "below memory.max of its control group"),
    "the lower of both": (V2 | group(ONE, GIB, str(3 * GIB), str(2 * GIB)), GIB - 64 * MIB, "memory.max"),
    "a small group keeps less": (V2 | group(ONE, 0, most=str(64 * MIB)), 60 * MIB, "memory.max"),
    "page cache can be had back": (
        V2 | group(ONE, GIB, str(2 * GIB), inactive=GIB // 2),
        3 * GIB // 2 - 64 * MIB,
        "memory.high",
    ),
    "over memory.high": (V2 | group(ONE, 3 * GIB, high=str(2 * GIB)), 0, "0 MiB are left below memory.high"),
    "a group above": (V2 | group(ONE, GIB) | group(ABOVE, GIB, high=str(2 * GIB)), GIB - 64 * MIB, "memory.high"),
    "calm": (V2 | group(ONE, 0, high=str(GIB)) | {f"{ONE}/memory.pressure": CALM}, GIB - 64 * MIB, "memory.high"),
    "pressure": (
        V2 | group(ONE, 0, high=str(GIB)) | {f"{ONE}/memory.pressure": PRESSED},
        0,
        "memory pressure: tasks of its control group waited for memory in 34 %",
    ),
    "pressure of the machine": ({"/proc/pressure/memory": PRESSED}, 0, "tasks of this machine waited"),
    "nonsense": ({"/proc/pressure/memory": "some avg10=x\nsome\n"}, 20 * GIB - 512 * MIB, "this machine"),
    "version 1": (
        {
            "/proc/self/cgroup": "4:memory:/box\n",
            "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(3 * GIB),
            "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(2 * GIB),
        },
        GIB - 64 * MIB,
        "below memory.limit_in_bytes",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tightest_limit_counts(name: str) -> None:
    files, nbytes, words = CASES[name]
    seen = read_headroom(FactReader(RecordedSource("x86_64", MEMINFO | files)))
    assert seen.nbytes == nbytes
    assert words in seen.reason


def test_memory_in_equal_parts_of_several_nodes_ends_where_one_of_them_is_full() -> None:
    nodes = {
        f"/sys/devices/system/node/node{n}/meminfo": f"Node {n} MemFree: {free * GIB // 1024} kB\n"
        for n, free in ((0, 15), (1, 5))
    }
    reader = FactReader(RecordedSource("x86_64", MEMINFO | nodes | {"/sys/devices/system/node/online": "0-1\n"}))
    assert read_headroom(reader, ((0,),)).nbytes == 15 * GIB - 512 * MIB
    both = read_headroom(reader, ((0,), (1,)))
    assert both.nbytes == 2 * (5 * GIB - 512 * MIB)
    assert "NUMA node 1" in both.reason


def test_this_machine_says_something() -> None:
    seen = read_headroom(FactReader(LiveSource()))
    assert isinstance(seen, Headroom)
    assert seen.reason
