"""The allowance of a process, read from recorded /proc and /sys texts."""

from __future__ import annotations

from pathlib import Path

from homenode.cpuset import parse_cpu_list
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.source import LiveSource, RecordedSource

GIB = 2**30


def machine(files: dict[str, str], allowed: str = "0-7", cpus: int = 8, smt: int = 2, env: dict[str, str] | None = None) -> RecordedSource:
    """A machine with `cpus` logical CPUs whose siblings are `cpus / smt` apart, plus `files`."""
    half = cpus // smt
    topology = {
        f"/sys/devices/system/cpu/cpu{c}/topology/core_cpus_list": ",".join(str(s) for s in range(c % half, cpus, half))
        for c in range(cpus)
    }
    base = {
        "/sys/devices/system/cpu/online": f"0-{cpus - 1}\n",
        "/proc/self/status": f"Name:\tx\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n",
        "/proc/meminfo": "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\n",
    }
    return RecordedSource("x86_64", base | topology | files, env=env or {})


def test_without_cgroups_all_cores_and_all_available_memory() -> None:
    seen = Allowance.of_process(machine({}))
    assert seen == Allowance(tuple(range(8)), (0, 1, 2, 3), None, None, 0, mems=(0,))
    assert (seen.usable_threads, seen.memory_available) == (4, 32 * GIB)


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up() -> None:
    files = {
        "/proc/self/cgroup": "0::/pods/one",
        "/sys/fs/cgroup/pods/cpu.max": "250000 100000",
        "/sys/fs/cgroup/pods/one/cpu.max": "max 100000",
        "/sys/fs/cgroup/pods/memory.max": "max",
        "/sys/fs/cgroup/pods/one/memory.max": str(4 * GIB),
        "/sys/fs/cgroup/pods/one/memory.current": str(3 * GIB),
        "/sys/fs/cgroup/pods/one/memory.stat": f"anon 1\ninactive_file {GIB}",
    }
    seen = Allowance.of_process(machine(files))
    assert (seen.cpu_quota, seen.memory_limit, seen.memory_available) == (2.5, 4 * GIB, 2 * GIB)
    assert seen.usable_threads == 2


def test_cgroup_v1() -> None:
    files = {
        "/proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a\n1:name=systemd:/x",
        "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
        "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GIB),
        "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB // 2),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    seen = Allowance.of_process(machine(files))
    assert (seen.cpu_quota, seen.memory_limit, seen.memory_available, seen.usable_threads) == (0.5, GIB, GIB // 2, 1)


def test_only_one_of_two_siblings_allowed() -> None:
    assert Allowance.of_process(machine({}, allowed="1,4-5")).physical_cpus == (1, 4)


def test_missing_topology_makes_every_cpu_a_core() -> None:
    files = {"/sys/devices/system/cpu/online": "0-7", "/proc/self/status": "Cpus_allowed_list:\t0,7"}
    assert Allowance.of_process(RecordedSource("x86_64", files)).physical_cpus == (0, 7)


def test_the_live_machine_answers() -> None:
    text = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
    online = parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text())
    seen = Allowance.of_process(LiveSource())
    assert seen.cpus == tuple(cpu for cpu in parse_cpu_list(text.partition(":")[2]) if cpu in online)
    assert set(seen.physical_cpus) <= set(seen.cpus)
    assert seen.memory_available > 0
