"""The places of a process's memory: its ranges from /proc/PID/maps and /proc/PID/numa_maps. Parsing is pure.

Sources: proc_pid_maps(5), numa(7) section "/proc/pid/numa_maps", and mpol_to_str() of the kernel, whose policies may
hold spaces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from homenode.cpuset import parse_cpu_list
from homenode.errors import HostError, UserError

# Kinds of ranges: `private` is memory of this process alone; the others are left where they are.
KINDS = ("private", "shared", "device", "file", "kernel")
_MOST_TEXT = 256 << 20  # bytes; a process may have at most 2**31 mappings, ones met in earnest have some ten thousand
_POLICY = re.compile(r"(prefer \(many\)|weighted interleave|[a-z]+)(?:=([a-z|]+))?(?::([0-9,-]+))?(?=\s|$)")
_PLAIN_FILES = ("/dev/shm/", "/dev/hugepages/")  # file systems below /dev
_ANONYMOUS_FILES = ("/dev/zero", "/anon_hugepage (deleted)")  # what the kernel calls some private memory without a file


@dataclass(frozen=True, slots=True)
class Policy:
    """A memory policy: `mode` is the kernel's word (`default`, `bind`, `prefer`, `prefer (many)`, `interleave`,
    `local`, ...)."""

    mode: str
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.mode}:{','.join(map(str, self.nodes))}" if self.nodes else self.mode


@dataclass(frozen=True, slots=True)
class Placement:
    """One line of numa_maps: `pages` present by node, in pages of `page_bytes`; `word` is `heap`, `stack` or empty."""

    policy: Policy
    pages: dict[int, int] = field(default_factory=dict)
    page_bytes: int = 4096
    word: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses from `start` up to `end`, both in bytes; `kind` is one of KINDS."""

    start: int
    end: int
    kind: str
    placement: Placement

    def away(self, nodes: Collection[int]) -> int:
        """Present pages that lie on none of `nodes`."""
        return sum(count for node, count in self.placement.pages.items() if node not in nodes)


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """All ranges of a process. `policy`: what holds where a range has none of its own."""

    ranges: tuple[Range, ...]
    policy: Policy

    def private(self) -> Iterable[Range]:
        """Ranges of the process's own memory."""
        return (part for part in self.ranges if part.kind == "private")

    def bytes_by_node(self) -> dict[int, int]:
        """Bytes of private memory by node, ascending by node."""
        found: Counter[int] = Counter()
        for part in self.private():
            for node, count in part.placement.pages.items():
                found[node] += count * part.placement.page_bytes
        return dict(sorted(found.items()))


def read_memory_map(pid: int) -> MemoryMap | None:
    """The memory of a living process; None on a kernel without NUMA.

    Raises UserError when there is no such process, HostError when this user may not look into it.
    """
    numa = _read(pid, "numa_maps")
    maps = _read(pid, "maps")
    if maps is None:
        raise UserError(f"no process {pid}", param="pid", pid=pid)
    return None if numa is None else join(parse_maps(maps), parse_numa_maps(numa))


def mems_allowed(pid: int) -> tuple[int, ...]:
    """Nodes whose memory the cpuset of a process allows; empty where the kernel does not say (proc_pid_status(5))."""
    for line in (_read(pid, "status") or "").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return parse_cpu_list(line.partition(":")[2])
    return ()


def join(maps: dict[int, tuple[int, str]], numa: dict[int, Placement]) -> MemoryMap:
    """The two files put together by start address; a range that came or went between the two readings is left out."""
    ranges = tuple(Range(start, *maps[start], placement) for start, placement in sorted(numa.items()) if start in maps)
    return MemoryMap(ranges, _process_policy(numa.values()))


def parse_maps(text: str) -> dict[int, tuple[int, str]]:
    """End and kind of every range by its start. Lines that are none of the kernel's are left out."""
    found = {}
    for line in text.splitlines():
        words = line.split(None, 5)
        first, dash, last = words[0].partition("-") if words else ("", "", "")
        start, end = _hex(first), _hex(last)
        if dash and len(words) >= 5 and len(words[1]) == 4 and start is not None and end is not None and start < end:
            found[start] = (end, kind_of(words[1], words[5].strip() if len(words) > 5 else ""))
    return found


def kind_of(permissions: str, path: str) -> str:
    """The kind of a range from its permissions (`rw-p`) and the name at the end of its line in maps."""
    if path.startswith(("/dev/", "anon_inode:", "/dmabuf")) and not path.startswith((*_PLAIN_FILES, *_ANONYMOUS_FILES)):
        return "device"
    if permissions.endswith("s"):
        return "shared"
    if path in ("", "[heap]", *_ANONYMOUS_FILES) or path.startswith(("[stack", "[anon:")):
        return "private"
    return "kernel" if path.startswith("[") else "file"


def parse_numa_maps(text: str) -> dict[int, Placement]:
    """Return what every line says, by start address. Lines that are none of the kernel's are left out."""
    found = {}
    for line in text.splitlines():
        address, _, rest = line.partition(" ")
        start, match = _hex(address), _POLICY.match(rest)
        if start is None or match is None:
            continue
        try:
            policy = Policy(match[1], parse_cpu_list(match[3] or ""))
        except UserError:
            continue
        words = rest[match.end() :].split()
        pages = {
            int(word[1:at]): int(word[at + 1 :])
            for word in words
            if (at := word.find("=")) > 1 and _counts_pages(word, at)
        }
        size = next(
            (int(word[18:]) * 1024 for word in words if word.startswith("kernelpagesize_kB=") and _number(word[18:])),
            4096,
        )
        found[start] = Placement(
            policy, pages, size or 4096, next((word for word in words if word in ("heap", "stack")), "")
        )
    return found


def _counts_pages(word: str, at: int) -> bool:
    return word[0] == "N" and _number(word[1:at]) and _number(word[at + 1 :])


def _number(text: str) -> bool:
    return 0 < len(text) <= 18 and text.isascii() and text.isdecimal()


def _hex(text: str) -> int | None:
    try:
        return int(text, 16) if 0 < len(text) <= 16 and text.isalnum() else None
    except ValueError:
        return None


def _process_policy(placements: Iterable[Placement]) -> Policy:
    """The policy of the main thread: numa_maps shows it on every range that has none of its own, so on its stack, or
    else on most."""
    lines = list(placements)
    told = [line.policy for line in lines if line.word == "stack"] or [line.policy for line in lines]
    return Counter(told).most_common(1)[0][0] if told else Policy("default")


def _read(pid: int, name: str) -> str | None:
    file = Path("/proc") / str(pid) / name
    try:
        with file.open("rb") as handle:
            return handle.read(_MOST_TEXT).decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        raise HostError(
            f"may not read {file}: the process belongs to another user, or is not to be traced; run this as root or "
            "with CAP_SYS_PTRACE",
            pid=pid,
        ) from None
