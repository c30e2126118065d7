"""Facts that the kernel tells of this process in /proc/self/status (proc_pid_status(5))."""

from __future__ import annotations

from homenode.cpuset import parse_cpu_list
from homenode.errors import UserError
from homenode.host.topology.facts import FactReader

_FILE = "/proc/self/status"


def process_cpus(reader: FactReader) -> tuple[int, ...] | None:
    """CPUs in this process's affinity mask, which may hold offline ones; None when it is not told."""
    return _list_of(reader, "Cpus_allowed_list")


def process_memory_nodes(reader: FactReader) -> tuple[int, ...] | None:
    """Nodes this process may take memory from, which may hold nodes that are not there; None when it is not told."""
    return _list_of(reader, "Mems_allowed_list")


def _list_of(reader: FactReader, name: str) -> tuple[int, ...] | None:
    for line in reader.text(_FILE).splitlines():
        field, colon, rest = line.partition(":")
        if field == name and colon:
            try:
                return parse_cpu_list(rest.strip()) or None  # no process runs nowhere: an empty list tells nothing
            except UserError as error:
                reader.note("fact_unreadable", f"{_FILE}, {name}: {error.message}")
                return None
    return None
