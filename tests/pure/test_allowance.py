"""The allowance of a process, read from recorded /proc and /sys texts."""

from __future__ import annotations

from pathlib import Path

from homenode.host.topology.allowance import Allowance

GIB = 2**30


def machine(root: Path, files: dict[str, str], cpus: int = 8, smt: int = 2) -> Path:
    """A fake root with `cpus` logical CPUs whose siblings are `cpus / smt` apart, plus `files`."""
    half = cpus // smt
    topology = {
        f"sys/devices/system/cpu/cpu{c}/topology/core_cpus_list": ",".join(str(s) for s in range(c % half, cpus, half)) for c in range(cpus)
    }
    for name, text in {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n", **topology, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def test_without_cgroups_all_cores_and_all_available_memory(tmp_path: Path) -> None:
    seen = Allowance.of_process(machine(tmp_path, {}), cpus=range(8))
    assert seen == Allowance(tuple(range(8)), (0, 1, 2, 3), None, None, 32 * GIB)
    assert seen.usable_threads == 4


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pods/one",
        "sys/fs/cgroup/pods/cpu.max": "250000 100000",
        "sys/fs/cgroup/pods/one/cpu.max": "max 100000",
        "sys/fs/cgroup/pods/memory.max": "max",
        "sys/fs/cgroup/pods/one/memory.max": str(4 * GIB),
        "sys/fs/cgroup/pods/one/memory.current": str(3 * GIB),
        "sys/fs/cgroup/pods/one/memory.stat": f"anon 1\ninactive_file {GIB}",
    }
    seen = Allowance.of_process(machine(tmp_path, files), cpus=range(8))
    assert (seen.cpu_quota, seen.memory_limit, seen.memory_available) == (2.5, 4 * GIB, 2 * GIB)
    assert seen.usable_threads == 2


def test_cgroup_v1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a\n1:name=systemd:/x",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GIB),
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB // 2),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    seen = Allowance.of_process(machine(tmp_path, files), cpus=range(8))
    assert (seen.cpu_quota, seen.memory_limit, seen.memory_available, seen.usable_threads) == (0.5, GIB, GIB // 2, 1)


def test_only_one_of_two_siblings_allowed(tmp_path: Path) -> None:
    seen = Allowance.of_process(machine(tmp_path, {}), cpus=(1, 4, 5))
    assert seen.physical_cpus == (1, 4)


def test_missing_topology_makes_every_cpu_a_core(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1024 kB\n")
    assert Allowance.of_process(tmp_path, cpus=(0, 7)).physical_cpus == (0, 7)


def test_the_live_machine_answers() -> None:
    seen = Allowance.of_process()
    assert seen.cpus
    assert set(seen.physical_cpus) <= set(seen.cpus)
    assert seen.memory_available > 0
