"""Headroom: how much more memory this process can take before the kernel slows it down or ends something: control
groups, pressure, the machine.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.high, memory.max, memory.pressure),
cgroup-v1/memory.rst and accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.host.topology.cgroups import memory_groups
from homenode.host.topology.facts import FactReader
from homenode.host.topology.memory import available_on, read_available, read_meminfo

PRESSED_PERCENT = 20.0  # of the last ten seconds in which some task waited for memory
_KEPT_SHARE = 16  # one part of so many of a limit is left alone...
_MOST_KEPT_OF_GROUP, _MOST_KEPT_OF_MACHINE = 64 << 20, 512 << 20  # ...and at most so much
_PRESSURE = "/proc/pressure/memory"


@dataclass(frozen=True, slots=True)
class Headroom:
    """`nbytes` that can still be taken, and what limits it: words that go behind a colon."""

    nbytes: int
    reason: str


def read_headroom(reader: FactReader, parts: Sequence[Sequence[int]] = ()) -> Headroom:
    """The least that control groups, pressure, and the available memory of the machine leave, and that of the nodes
    of each of `parts`, from which equal parts of the memory come. Something of each limit is kept for others, and for
    what else this process takes."""
    return min(_limits(reader, parts), key=lambda limit: limit.nbytes)


def _limits(reader: FactReader, parts: Sequence[Sequence[int]]) -> Iterator[Headroom]:
    meminfo = read_meminfo(reader, "/proc/meminfo")
    kept = min(_MOST_KEPT_OF_MACHINE, meminfo.get("MemTotal", 0) // _KEPT_SHARE)
    for nodes in parts:
        left = _left(available_on(reader, nodes), kept, f"of available memory on NUMA node {format_cpu_list(nodes)}")
        yield Headroom(left.nbytes * len(parts), left.reason)
    yield _left(read_available(reader), kept, "of available memory on this machine")
    yield from _pressure(reader, _PRESSURE, "this machine")
    for group in memory_groups(reader):
        for name, limit in group.limits:
            kept = min(_MOST_KEPT_OF_GROUP, limit // _KEPT_SHARE)
            yield _left(limit - group.used, kept, f"below {name} of its control group")
        yield from _pressure(reader, f"{group.folder}/memory.pressure", "its control group")


def _left(nbytes: int, kept: int, what: str) -> Headroom:
    return Headroom(
        max(0, nbytes - kept), f"{max(0, nbytes) >> 20} MiB are left {what}, of which {kept >> 20} MiB are kept free"
    )


def _pressure(reader: FactReader, path: str, whose: str) -> Iterator[Headroom]:
    """Nothing is to be taken where tasks wait for memory already. Lines such as `some avg10=1.50 avg60=...`."""
    for line in reader.text(path).splitlines():
        kind, _, rest = line.partition(" ")
        share = _percent(rest.split(" ")[0]) if kind == "some" else None
        if share is not None and share >= PRESSED_PERCENT:
            yield Headroom(
                0,
                f"memory pressure: tasks of {whose} waited for memory in {share:.0f} % of the last ten seconds "
                f"({path})",
            )


def _percent(word: str) -> float | None:
    name, _, value = word.partition("=")
    digits = value.replace(".", "", 1)
    if name != "avg10" or not digits.isascii() or not digits.isdecimal() or len(digits) > 9:
        return None
    return float(value)
