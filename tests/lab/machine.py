"""The machine as the kernel's own files show it, read here without the readers under test; and the command line under
test.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homenode.cli.main import main
from homenode.cpuset import format_cpu_list, parse_cpu_list

CGROUPS = Path("/sys/fs/cgroup")
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Node:
    """A NUMA node: `cpus` that this process may use, `memory` in bytes."""

    id: int
    cpus: tuple[int, ...]
    memory: int

    @property
    def cpu_list(self) -> str:
        return format_cpu_list(self.cpus)


def read_nodes() -> dict[int, Node]:
    """The online nodes by number."""
    allowed, found = os.sched_getaffinity(0), {}
    for folder in _NODES.glob("node[0-9]*"):
        number = int(folder.name[4:])
        cpus = tuple(cpu for cpu in parse_cpu_list((folder / "cpulist").read_text()) if cpu in allowed)
        memory = re.search(r"MemTotal: +(\d+) kB", (folder / "meminfo").read_text())
        found[number] = Node(number, cpus, int(memory[1]) * 1024 if memory else 0)
    return dict(sorted(found.items()))


NODES = read_nodes()
_OWNERS = Counter(cpu for node in NODES.values() for cpu in node.cpus)
_ENOUGH = 256 << 20  # bytes of a node; blocks of 64 MiB are moved to and fro
# Nodes with memory and with CPUs of their own; emulated nodes (numa=fake) all list the same CPUs, and no process is on
# one of them only.
WHOLE = [
    node
    for node in NODES.values()
    if node.memory >= _ENOUGH and node.cpus and all(_OWNERS[cpu] == 1 for cpu in node.cpus)
]
EMPTY = [node for node in NODES.values() if node.cpus and not node.memory]
BARE = [node for node in NODES.values() if node.memory and not node.cpus]

several_nodes = pytest.mark.skipif(
    len(WHOLE) < 2,
    reason=f"needs two NUMA nodes with 256 MiB and CPUs of their own, here are {len(WHOLE)}: see tests/lab/README.md",
)
# Such tests send a device's interrupts elsewhere, or turn on a controller of the root control group. They put
# everything back; still they are for machines that nobody else works on.
own_machine = pytest.mark.skipif(
    "HOMENODE_LAB" not in os.environ, reason="changes the machine; set HOMENODE_LAB=1 where nobody else works"
)


@dataclass(frozen=True)
class Done:
    """What a command has said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def homenode(*words: object) -> Done:
    """The command `homenode`, called in this process: interpreters start slowly in emulated guests."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def command(*words: object) -> tuple[str, ...]:
    """The words that start `homenode` in a process of its own; what `homenode run` becomes is only seen there."""
    return (sys.executable, "-m", "homenode.cli.main", *map(str, words))


def start(*words: object, before: Sequence[str] = ()) -> Done:
    """`homenode` in a process of its own, started by the command `before`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*before, *command(*words)], capture_output=True, text=True, timeout=300, env=env, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def status(pid: int | str, field: str) -> str:
    """A field of /proc/PID/status."""
    found = re.search(rf"^{field}:\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, field
    return found[1]


def policies(numa_maps: str) -> set[str]:
    """The memory policies in a text of numa_maps."""
    return {line.split()[1] for line in numa_maps.splitlines() if line.strip()}


@contextlib.contextmanager
def cpuset(cpus: Sequence[int], nodes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """A control group (version 2) that permits these CPUs and memory nodes: the command that starts another
    inside it.
    """
    control = CGROUPS / "cgroup.subtree_control"
    if not control.exists():
        pytest.skip("no control groups of version 2 are mounted at /sys/fs/cgroup")
    was_on = "cpuset" in control.read_text().split()
    try:
        control.write_text("+cpuset")
    except OSError as error:
        pytest.skip(f"no cpusets may be made here: {error}")
    folder = CGROUPS / f"lab-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "cpuset.cpus").write_text(format_cpu_list(cpus))
        (folder / "cpuset.mems").write_text(format_cpu_list(nodes))
        yield ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")
    finally:
        folder.rmdir()
        if not was_on:
            control.write_text("-cpuset")
