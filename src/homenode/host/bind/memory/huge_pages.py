"""The part of some memory of this process that really lies on huge pages, as the kernel tells, and why not where it
does not.

Asking for huge pages (madvise MADV_HUGEPAGE) succeeds even where none will be given: the setting of the machine, one of
the process, or memory in pieces too small is noticed only when the pages are touched. So they are counted afterwards.

Sources: proc_pid_smaps(5), proc_pid_status(5), prctl(2) PR_SET_THP_DISABLE; the kernel's
Documentation/admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from homenode.host.topology.finding import Finding
from homenode.units import format_bytes

ENOUGH_SHARE = 0.9
# What a cache of address translations reaches without huge pages anyway: models as small as that are not slowed down
# noticeably.
TELLING_BYTES = 64 << 20
COST = "loading takes longer so, and decoding was measured up to 6 % slower on two CPUs of a virtual machine"
_RANGE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ")
_COUNTED = ("Rss:", "AnonHugePages:", "ShmemPmdMapped:")  # of two dozen lines for each range
_SMAPS, _STATUS = Path("/proc/self/smaps"), Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Residence:
    """Bytes of some ranges that are in memory, and those of them on huge pages. A huge page at the end of a range
    counts whole."""

    present: int = 0
    huge: int = 0

    @property
    def share(self) -> float:
        """The part on huge pages, 0 to 1; 0 where nothing is present."""
        return self.huge / self.present if self.present else 0.0

    def __add__(self, other: Residence) -> Residence:
        return Residence(self.present + other.present, self.huge + other.huge)


def residences(*groups: Iterable[tuple[int, int]], smaps: Path = _SMAPS) -> tuple[Residence, ...] | None:
    """Return where ranges of this process, (address, bytes), lie now, one answer for each group of them. None where the
    kernel does not tell.

    The kernel walks all pages to answer: microseconds for huge ones, about a second for 100 GB of small ones.
    """
    try:
        entries = list(parse_smaps(smaps.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return None
    wanted = [[(address, address + size) for address, size in ranges] for ranges in groups]
    return tuple(sum((entry.within(ranges) for entry in entries), Residence()) for ranges in wanted)


@dataclass(frozen=True, slots=True)
class MappedRange:
    """An entry of smaps: addresses from `start` to `end`, and what of them is present and on huge pages, in bytes."""

    start: int
    end: int
    residence: Residence

    def within(self, ranges: Iterable[tuple[int, int]]) -> Residence:
        """Return what belongs to the given `ranges`; their part of it by size, where the kernel has put others into one
        entry with them.
        """
        covered = sum(max(0, min(self.end, end) - max(self.start, start)) for start, end in ranges)
        size = self.end - self.start
        return Residence(self.residence.present * covered // size, self.residence.huge * covered // size)


def parse_smaps(text: str) -> Iterator[MappedRange]:
    """The entries of smaps. Lines that are none of the kernel's are left out."""
    start = end = 0
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        if match := _RANGE.match(line):
            yield from _entry(start, end, sizes)
            start, end, sizes = int(match[1], 16), int(match[2], 16), {}
            continue
        if not line.startswith(_COUNTED):
            continue
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isascii() and words[0].isdecimal() and len(words[0]) <= 18:
            sizes[name] = int(words[0]) * 1024
    yield from _entry(start, end, sizes)


def _entry(start: int, end: int, sizes: dict[str, int]) -> Iterator[MappedRange]:
    if start < end:
        huge = sizes.get("AnonHugePages", 0) + sizes.get("ShmemPmdMapped", 0)  # private memory, and that of a memfd
        yield MappedRange(start, end, Residence(sizes.get("Rss", 0), huge))


def disabled_for_this_process(status: Path = _STATUS) -> bool:
    """Return whether huge pages are off for this process alone, by prctl of its own or of whoever started it."""
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split() == ["THP_enabled:", "0"] for line in lines)


def small_pages(seen: Residence, setting: str, disabled: bool) -> tuple[Finding, ...]:
    """A warning when less than ENOUGH_SHARE of weights and KV memory is on huge pages. Pure.

    setting: the word of /sys/kernel/mm/transparent_hugepage/enabled, empty where there is none. disabled: see
    `disabled_for_this_process`.
    """
    if seen.present < TELLING_BYTES or seen.share >= ENOUGH_SHARE:
        return ()
    why, remedy = _cause(setting, disabled)
    message = (
        f"of {format_bytes(seen.present)} of weights and KV memory {seen.share:.0%} are on huge pages: {why}; {COST}"
    )
    return (Finding("warning", "small_pages", message, remedy),)


def small_shared_pages(seen: Residence) -> tuple[Finding, ...]:
    """The same of weights in memory that several processes map, which has settings of its own. Pure."""
    if seen.present < TELLING_BYTES or seen.share >= ENOUGH_SHARE:
        return ()
    message = (
        f"of {format_bytes(seen.present)} of experts that this engine shares {seen.share:.0%} are on huge pages: "
        "before Linux 6.1, or where free memory is "
        f"in pieces too small, memory that several processes map is not given them; {COST}"
    )
    remedy = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled as root, then start all engines again."
    return (Finding("warning", "small_shared_pages", message, remedy),)


def _cause(setting: str, disabled: bool) -> tuple[str, str]:
    file = "/sys/kernel/mm/transparent_hugepage/enabled"
    if not setting:
        return "this kernel has no transparent huge pages", "Use a kernel with CONFIG_TRANSPARENT_HUGEPAGE."
    if setting == "never":
        return "they are off on this machine", f"echo madvise > {file} as root, then start again."
    if disabled:
        remedy = (
            "Start it without that: the service manager, container runtime or program above it that calls prctl "
            "decides."
        )
        return "they are off for this process (prctl PR_SET_THP_DISABLE), which children inherit", remedy
    remedy = (
        "Start it again after `echo 1 > /proc/sys/vm/compact_memory` (root); "
        "`echo madvise > /sys/kernel/mm/transparent_hugepage/defrag` has the kernel make room whenever it is asked."
    )
    return "free memory is in pieces too small for them", remedy
