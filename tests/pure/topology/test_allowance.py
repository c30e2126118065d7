"""The allowance of a process, read from recorded /proc and /sys texts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.source import LiveSource, RecordedSource

GIB = 2**30


def machine(
    files: dict[str, str], allowed: str = "0-7", cpus: int = 8, smt: int = 2, env: dict[str, str] | None = None
) -> RecordedSource:
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
    text = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Cpus_allowed_list:")
    )
    online = parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text())
    seen = Allowance.of_process(LiveSource())
    assert seen.cpus == tuple(cpu for cpu in parse_cpu_list(text.partition(":")[2]) if cpu in online)
    assert set(seen.physical_cpus) <= set(seen.cpus)
    assert seen.memory_available > 0


def limits(files: dict[str, str], **kwargs: str) -> Allowance:
    return Allowance.of_process(
        machine({f"/sys/fs/cgroup/{name}" if name[0] != "/" else name: text for name, text in files.items()}, **kwargs)
    )


def test_a_quota_is_rounded_down_but_never_to_nothing() -> None:
    quota = {"/proc/self/cgroup": "0::/a", "a/cpu.max": "399999 100000"}
    assert limits(quota).usable_threads == 3
    assert limits(quota | {"a/cpu.max": "10000 100000"}).usable_threads == 1
    assert limits(quota | {"a/cpu.max": "max 100000"}).usable_threads == 4


@pytest.mark.parametrize("text", ["x y", "100000", "-5 100000", "100000 0", "max", "1" * 5000 + " 1"])
def test_a_quota_that_is_none(text: str) -> None:
    assert limits({"/proc/self/cgroup": "0::/a", "a/cpu.max": text}).cpu_quota is None


@pytest.mark.parametrize("path", ["/docker/0123abcd", "/", "/../../outside"])
def test_inside_a_container_the_mount_is_the_group(path: str) -> None:
    """A path as the host sees it, or one of a cgroup namespace: the limits lie at the top of the mount."""
    v2 = {"cpu.max": "200000 100000", "memory.max": str(GIB), "cpuset.cpus.effective": "0-1"}
    seen = limits({"/proc/self/cgroup": f"0::{path}", **v2}, allowed="0-1")
    assert (seen.cpu_quota, seen.memory_limit, seen.cpuset, seen.mask_origin) == (2.0, GIB, (0, 1), "cpuset")
    v1 = {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": str(GIB)}
    cgroup = f"3:cpuset:{path}\n2:memory:{path}\n1:cpu,cpuacct:{path}"
    seen = limits({"/proc/self/cgroup": cgroup, **v1, "cpuset/cpuset.effective_cpus": "2-3"}, allowed="2-3")
    assert (seen.cpu_quota, seen.memory_limit, seen.cpuset, seen.mask_origin) == (1.0, GIB, (2, 3), "cpuset")


def test_a_hybrid_mount_has_version_two_below_unified() -> None:
    files = {
        "/proc/self/cgroup": "2:cpuset:/job\n0::/user",
        "cpuset/job/cpuset.cpus": "4-7",
        "unified/user/cpu.max": "150000 100000",
        "unified/user/memory.max": str(2 * GIB),
    }
    seen = limits(files, allowed="4-7")
    assert (seen.cpuset, seen.cpu_quota, seen.memory_limit) == ((4, 5, 6, 7), 1.5, 2 * GIB)


def test_controllers_mounted_together_in_either_order() -> None:
    for mount in ("cpu,cpuacct", "cpuacct,cpu", "cpu"):
        files = {f"{mount}/a/cpu.cfs_quota_us": "300000", f"{mount}/a/cpu.cfs_period_us": "100000"}
        assert limits({"/proc/self/cgroup": "4:cpu,cpuacct:/a", **files}).cpu_quota == 3.0


def test_the_nearest_group_with_a_cpuset_counts() -> None:
    files = {
        "/proc/self/cgroup": "0::/a/b/c",
        "a/cpuset.cpus.effective": "0-3",
        "cpuset.cpus.effective": "0-7",
        "a/b/cpuset.cpus.effective": "",
    }
    assert limits(files, allowed="0-3").cpuset == (0, 1, 2, 3)


def test_offline_cpus_are_in_neither_mask_nor_cpuset() -> None:
    files = {"/proc/self/cgroup": "0::/", "cpuset.cpus.effective": "0-63"}
    seen = limits(files, allowed="0-255")
    assert (seen.cpus, seen.cpuset, seen.mask_origin) == (tuple(range(8)), tuple(range(8)), "none")


CPUSET = {"/proc/self/cgroup": "0::/pod", "pod/cpuset.cpus.effective": "0-5"}


@pytest.mark.parametrize(
    ("allowed", "env", "origin"),
    [
        ("0-5", {"OMP_PROC_BIND": "true"}, "cpuset"),
        ("0-1", {}, "inherited"),
        ("0", {"OMP_PROC_BIND": "TRUE"}, "openmp"),
        ("0,4", {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}, "openmp"),  # both siblings of one core
        ("0", {"OMP_PLACES": "threads"}, "openmp"),
        ("1", {"GOMP_CPU_AFFINITY": "1-3"}, "openmp"),
        ("0", {"KMP_AFFINITY": "granularity=fine,compact,1,0"}, "openmp"),
        ("0", {"KMP_AFFINITY": "disabled"}, "inherited"),
        ("0", {"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}, "inherited"),
        ("0", {"OMP_PROC_BIND": "0"}, "inherited"),  # no word of OpenMP's: libraries ignore it
        ("0-1", {"OMP_PROC_BIND": "true"}, "inherited"),  # two cores: no place of OpenMP's, so somebody meant it
        ("0", {"OMP_PROC_BIND": "true", "SLURM_LOCALID": "0", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"}, "inherited"),
        ("0", {"OMP_PROC_BIND": "true", "SLURM_LOCALID": "0", "SLURM_CPU_BIND": "quiet,none"}, "openmp"),
        ("0", {"OMP_PROC_BIND": "true", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "inherited"),  # mpirun binds by itself
    ],
)
def test_where_a_mask_comes_from(allowed: str, env: dict[str, str], origin: str) -> None:
    source = machine(
        {f"/sys/fs/cgroup/{name}" if name[0] != "/" else name: text for name, text in CPUSET.items()},
        allowed=allowed,
        env=env,
    )
    assert Allowance.of_process(source).mask_origin == origin


def test_an_accidental_mask_widens_to_the_cpuset_and_no_other_mask_widens() -> None:
    files = {f"/sys/fs/cgroup/{name}" if name[0] != "/" else name: text for name, text in CPUSET.items()}
    accident = Allowance.of_process(machine(files, allowed="0", env={"OMP_PROC_BIND": "true"}))
    wide = accident.widened()
    assert (accident.cpus, accident.physical_cpus) == ((0,), (0,))
    assert (wide.cpus, wide.physical_cpus, wide.mask_origin, wide.mems) == (
        (0, 1, 2, 3, 4, 5),
        (0, 1, 2, 3),
        "cpuset",
        (0,),
    )
    assert wide.widened() == wide
    for allowed, env in (("0", {}), ("0-5", {"OMP_PROC_BIND": "true"})):
        meant = Allowance.of_process(machine(files, allowed=allowed, env=env))
        assert meant.widened() is meant


def test_an_accidental_mask_under_a_cpuset_of_all_cpus_widens_to_no_limit() -> None:
    files = {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpuset.cpus.effective": "0-7"}
    wide = Allowance.of_process(machine(files, allowed="3", env={"OMP_PROC_BIND": "spread"})).widened()
    assert (wide.cpus, wide.mask_origin) == (tuple(range(8)), "none")


def test_an_accidental_mask_stays_where_the_cpuset_is_not_known() -> None:
    seen = Allowance.of_process(machine({}, allowed="0", env={"OMP_PROC_BIND": "true"}))
    assert (seen.mask_origin, seen.widened().cpus) == ("openmp", (0,))


def test_memory_nodes_are_cut_to_the_online_ones() -> None:
    nodes = {"/sys/devices/system/node/online": "0,2"}
    assert Allowance.of_process(machine({**nodes, "/proc/self/status": "Mems_allowed_list:\t0-1023"})).mems == (0, 2)
    assert Allowance.of_process(machine({**nodes, "/proc/self/status": "Mems_allowed_list:\t2"})).mems == (2,)
    assert Allowance.of_process(machine({**nodes, "/proc/self/status": "x"})).mems == (0, 2)


def test_free_memory_takes_no_part_in_comparisons() -> None:
    less = machine({"/proc/meminfo": "MemAvailable: 1 kB"})
    assert Allowance.of_process(machine({})) == Allowance.of_process(less)
    assert Allowance.of_process(less).memory_available == 1024


def test_limits_of_the_calling_process_are_the_kernels() -> None:
    """A child that runs on one CPU is allowed that one."""
    cpu = max(os.sched_getaffinity(0))
    code = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); from homenode.host.topology.allowance "
        "import Allowance as A\n"
    )
    code += "seen = A.of_process(); print(seen.cpus, seen.physical_cpus, seen.mask_origin)"
    done = subprocess.run([sys.executable, "-c", code, str(cpu)], capture_output=True, text=True, timeout=60)
    origin = "none" if len(parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text())) == 1 else "inherited"
    assert done.stdout.split("\n")[0] in (f"({cpu},) ({cpu},) {origin}", f"({cpu},) ({cpu},) cpuset"), done.stderr


def node_files(*free_kb: int) -> dict[str, str]:
    """Nodes with this much free memory each, besides as much of files, of which half a GiB is in use by all."""
    files = {"/sys/devices/system/node/online": f"0-{len(free_kb) - 1}"}
    for node, free in enumerate(free_kb):
        lines = (
            f"MemTotal: {8 * GIB // 1024} kB",
            f"MemFree: {free // 2} kB",
            f"Inactive(file): {free // 2} kB",
            "FilePages: 7 kB",
        )
        files[f"/sys/devices/system/node/node{node}/meminfo"] = "\n".join(f"Node {node} {line}" for line in lines)
    return files


def test_memory_of_nodes_that_a_cpuset_forbids_is_not_available() -> None:
    gib = GIB // 1024
    status = "Cpus_allowed_list: 0-7\nMems_allowed_list: {}\n"
    nodes = node_files(30 * gib, 10 * gib)
    seen = {
        mems: limits({**nodes, "/proc/self/status": status.format(mems)}).memory_available for mems in ("0", "1", "0-1")
    }
    assert seen == {"0": 24 * GIB, "1": 8 * GIB, "0-1": 32 * GIB}


def test_nodes_that_do_not_say_what_is_free_leave_it_at_the_whole() -> None:
    nodes = {
        "/sys/devices/system/node/online": "0-1",
        "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1024 kB",
    }
    assert (
        limits({**nodes, "/proc/self/status": "Cpus_allowed_list: 0-7\nMems_allowed_list: 1"}).memory_available
        == 32 * GIB
    )
