"""Whether the CPUs and nodes of a target exist on this machine, asked before anything is changed."""

from __future__ import annotations

from pathlib import Path

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import UserError
from homenode.host.binding.target import Target


def check_target(target: Target, root: str = "/") -> None:
    """Raises UserError for CPUs that are not online and for nodes that are not online or have no memory; `root` stands in for `/` in tests.

    Source: the kernel's ABI documents sysfs-devices-system-cpu and sysfs-devices-node. A kernel without NUMA has node 0 alone.
    """
    devices = Path(root) / "sys/devices/system"
    cpus = {cpu for group in (target.cpus, *target.threads.values()) for cpu in group}
    online = _numbers(devices / "cpu/online")
    missing = cpus.difference(online)
    if online and missing:
        raise UserError(
            f"CPUs {format_cpu_list(missing)} are not online on this machine; it has {format_cpu_list(online)}",
            param="cpus",
            missing=sorted(missing),
        )
    nodes = _numbers(devices / "node/online") or (0,)
    absent = set(target.memory_nodes).difference(nodes)
    if absent:
        raise UserError(
            f"NUMA node {format_cpu_list(absent)} is not on this machine; it has {format_cpu_list(nodes)}",
            param="memory-nodes",
            missing=sorted(absent),
        )
    filled = _numbers(devices / "node/has_memory") or nodes
    empty = set(target.memory_nodes).difference(filled)
    if empty:
        raise UserError(
            f"NUMA node {format_cpu_list(empty)} has no memory; nodes with memory are {format_cpu_list(filled)}",
            param="memory-nodes",
            missing=sorted(empty),
        )


def _numbers(file: Path) -> tuple[int, ...]:
    try:
        return parse_cpu_list(file.read_text(encoding="ascii", errors="replace"))
    except (OSError, UserError):
        return ()
