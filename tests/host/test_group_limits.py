"""What a process in a control group of its own is told it may use, against the kernel."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MOUNT = Path("/sys/fs/cgroup")
PRINT = """
from homenode.host.topology.allowance import Allowance
seen = Allowance.of_process()
print(seen.cpus, seen.cpuset, seen.mask_origin, seen.cpu_quota, seen.usable_threads, seen.memory_limit)
"""


def own_folder(controller: str) -> Path:
    """Where a group for `controller` may be made: below this process's own group, version 1 or 2. Skips where there is
    none.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return MOUNT / controller / path.lstrip("/")
    enabled = MOUNT / "cgroup.subtree_control"
    if enabled.exists() and controller in enabled.read_text().split():
        return MOUNT
    pytest.skip(f"no control group of this process takes the controller {controller!r}")


@contextlib.contextmanager
def group(controller: str, settings: dict[str, str]) -> Iterator[Path]:
    """A control group with these settings, gone afterwards. Skips where it may not be made."""
    folder = own_folder(controller) / f"homenode-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make {folder}: {error.strerror}")
    try:
        for name, text in settings.items():
            if (folder / name).exists():
                (folder / name).write_text(text)
        yield folder
    finally:
        folder.rmdir()


def seen_inside(folder: Path, first: str = "") -> list[str]:
    """What a process in the group prints; `first` is run before."""
    move = f"echo $$ > {folder}/cgroup.procs && exec {first} {sys.executable} -c '{PRINT}'"
    done = subprocess.run(["sh", "-c", move], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[0].replace(", ", ",").split()


def test_a_cpuset() -> None:
    cpu = max(os.sched_getaffinity(0))
    alone = len(os.sched_getaffinity(0)) == 1
    settings = {"cpuset.mems": "0", "cpuset.cpus": str(cpu)}
    with group("cpuset", settings) as folder:
        cpus, cpuset, origin, *_ = seen_inside(folder)
    assert (cpus, cpuset, origin) == (f"({cpu},)", f"({cpu},)", "none" if alone else "cpuset")


def test_an_affinity_inside_a_cpuset() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    with group("cpuset", {"cpuset.mems": "0", "cpuset.cpus": f"{cpus[0]},{cpus[1]}"}) as folder:
        code = (
            f"{sys.executable} -c 'import os,sys; os.sched_setaffinity(0,[{cpus[0]}]); os.execv(sys.argv[1],"
            f"sys.argv[1:])'"
        )
        seen, cpuset, origin, *_ = seen_inside(folder, code)
    assert (seen, cpuset, origin) == (f"({cpus[0]},)", f"({cpus[0]},{cpus[1]})", "inherited")


def test_a_quota_is_rounded_down() -> None:
    settings = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000", "cpu.max": "150000 100000"}
    with group("cpu", settings) as folder:
        _, _, _, quota, threads, _ = seen_inside(folder)
    assert (quota, threads) == ("1.5", "1")


def test_a_memory_limit() -> None:
    settings = {"memory.limit_in_bytes": str(1 << 30), "memory.max": str(1 << 30)}
    with group("memory", settings) as folder:
        *_, limit = seen_inside(folder)
    assert limit == str(1 << 30)
