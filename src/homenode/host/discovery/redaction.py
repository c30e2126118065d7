"""The part that a recording keeps of what was read: the facts, and nothing that is private or never rests.

Only files on the list below are kept at all. Of the kept ones go: names of control groups (they hold container ids and
users), counters and free memory, serial numbers, hardware addresses, UUIDs and the names of programs. What replaces
them is the same everywhere in one recording.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_CGROUP = "/sys/fs/cgroup"
_KFD = "/sys/class/kfd/"
_KEPT_FILES = frozenset(
    [
        "/proc/cpuinfo",
        "/proc/interrupts",
        "/proc/meminfo",
        "/proc/self/cgroup",
        "/proc/self/status",
        "/proc/sys/kernel/numa_balancing",
        "/proc/sys/kernel/osrelease",
    ]
)
_KEPT_FOLDERS = (
    "/proc/driver/nvidia/",
    "/sys/bus/pci/devices/",
    _KFD,
    "/sys/devices/cpu_atom/",
    "/sys/devices/cpu_core/",
    "/sys/devices/cpu_lowpower/",
    "/sys/devices/system/cpu/",
    "/sys/devices/system/node/",
    "/sys/kernel/mm/",
    _CGROUP + "/",
)
_RESTLESS = frozenset(["memory.current", "memory.stat", "memory.usage_in_bytes"])
_V1_MOUNT = re.compile(r"(?:cpu|cpuacct|cpuset|memory|unified|systemd)(?:,\w+)*")
_STATUS_FIELDS = ("Cpus_allowed_list", "Mems_allowed_list", "CapEff")
_MODEL_LINE = re.compile(r"(?:model name|cpu model|cpu)\s*:")
_MEMORY_FIELDS = ("MemTotal", "HugePages_Total", "Hugepagesize")
_SERIAL_OF_GPU = re.compile(r"^(\s*unique_id\s+)([0-9]{1,20})\b", re.MULTILINE)
_GPU_FIELDS = ("Model", "UUID", "Location")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_HARDWARE_ADDRESS = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_NAMED_BY_ADDRESS = re.compile(r"\benx[0-9a-f]{12}\b")
_GPU_PREFIX = re.compile(r"((?:GPU|MIG)-)([0-9a-fA-F][0-9a-fA-F-]{3,34})")


@dataclass
class Redaction:
    """The replacements of one recording: every private name gets one stand-in, whatever file, output or variable it
    comes up in."""

    groups: dict[str, str] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)

    def files(self, files: Mapping[str, str]) -> dict[str, str]:
        """The files to keep, under the paths to keep them at."""
        members = _group_paths(files.get("/proc/self/cgroup", ""))
        kept: dict[str, str] = {}
        for path, text in files.items():
            if path.startswith(_CGROUP + "/"):
                place = self._group_file(path, members)
                if place is not None:
                    kept[place] = text
            elif path in _KEPT_FILES or path.startswith(_KEPT_FOLDERS):
                kept[path] = self._file(path, text)
        return kept

    def output(self, words: str, text: str) -> str:
        """Return what a vendor's tool printed, without what identifies the machine or its users."""
        lines = [line for line in text.splitlines() if "serial" not in line.lower()]
        if words == "npu-smi info":
            lines = _without_program_names(lines)
        anonymous = _UUID.sub(self._uuid, "\n".join(lines))
        return _HARDWARE_ADDRESS.sub("00:00:00:00:00:00", anonymous)

    def variable(self, text: str) -> str:
        """A variable's value; call it last, so that the UUIDs in a list of devices become those of the files and the
        tools' outputs."""
        whole = _UUID.sub(self._uuid, text)
        return _GPU_PREFIX.sub(self._uuid_prefix, whole)

    def _file(self, path: str, text: str) -> str:
        if path == "/proc/self/cgroup":
            return "\n".join(self._group_line(line) for line in text.splitlines())
        if path.startswith(_KFD):
            return _some(text) if "/proc/" in path else _SERIAL_OF_GPU.sub(self._gpu_serial, text)
        rule = _RULES.get(path) or next((rule for end, rule in _RULES_BY_END.items() if path.endswith(end)), None)
        return _UUID.sub(self._uuid, rule(text) if rule else text)

    def _group_line(self, line: str) -> str:
        number, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        return f"{number}{first}{controllers}{second}{self._group_path(path)}"

    def _group_path(self, path: str) -> str:
        return "/".join(self._group(part) for part in path.split("/"))

    def _group(self, name: str) -> str:
        if name in ("", ".", ".."):
            return name
        return self.groups.setdefault(name, f"g{len(self.groups) + 1}")

    def _group_file(self, path: str, members: list[list[str]]) -> str | None:
        """Return where a file of a control group goes: its folders are renamed as in /proc/self/cgroup; None for groups
        that are not this process's.
        """
        *folders, name = path[len(_CGROUP) + 1 :].split("/")
        if name in _RESTLESS:
            return None
        mount = folders[:1] if folders and _V1_MOUNT.fullmatch(folders[0]) else []
        for top in (mount, []):
            inner = folders[len(top) :]
            if not inner or any(member[: len(inner)] == inner for member in members):
                return "/".join([_CGROUP, *top, *(self._group(part) for part in inner), name])
        return None

    def _uuid(self, match: re.Match[str]) -> str:
        return self.uuids.setdefault(match[0].lower(), f"00000000-0000-0000-0000-{len(self.uuids):012x}")

    def _gpu_serial(self, match: re.Match[str]) -> str:
        """AMD's number of a GPU, of which ROCm makes the UUID GPU-<16 hexadecimal digits>; 0 says that there is
        none."""
        if not int(match[2]):
            return match[0]
        stand_in = self.uuids.setdefault(f"{int(match[2]):016x}", f"{len(self.uuids) + 1:016x}")
        return f"{match[1]}{int(stand_in, 16)}"

    def _uuid_prefix(self, match: re.Match[str]) -> str:
        """CUDA takes the beginning of a UUID where it is the only one that begins so; the stand-in is written out."""
        if match[2].startswith("00000000-0000-"):
            return match[0]
        whole = [stand_in for uuid, stand_in in self.uuids.items() if uuid.startswith(match[2].lower())]
        return match[1] + (whole[0] if len(whole) == 1 else "ffffffff-ffff-ffff-ffff-ffffffffffff")


def _group_paths(text: str) -> list[list[str]]:
    return [
        [part for part in line.split(":", 2)[2].split("/") if part]
        for line in text.splitlines()
        if line.count(":") >= 2
    ]


def _fields(names: tuple[str, ...]) -> Callable[[str], str]:
    """Keep the lines `Name: value` (or `Node 0 Name: value`) of these names."""
    wanted = [[name] for name in names]

    def reduced(text: str) -> str:
        return "\n".join(line for line in text.splitlines() if line.partition(":")[0].split()[-1:] in wanted)

    return reduced


def _without_counters(text: str) -> str:
    """/proc/interrupts with one column of noughts: numbered lines only, chips and names as they were."""
    lines = text.splitlines()
    columns = len(lines[0].split()) if lines else 0
    kept = ["CPU0"]
    for line in lines[1:]:
        number, _, rest = line.partition(":")
        if not number.strip().isdecimal():
            continue
        counters = 0
        for word in rest.split(maxsplit=columns)[:columns]:
            if not word.isdecimal():
                break
            counters += 1
        if counters < columns:
            continue  # too few to know where the counters end
        tail = rest.split(maxsplit=counters)[counters:]
        kept.append(f"{number.strip()}: 0 {''.join(tail)}".rstrip())
    return _NAMED_BY_ADDRESS.sub("enx000000000000", "\n".join(kept))


def _first_model(text: str) -> str:
    """The line of /proc/cpuinfo that names the processor; the others have counters, frequencies and serial numbers."""
    return next((line for line in text.splitlines() if _MODEL_LINE.match(line)), "")


def _without_program_names(lines: list[str]) -> list[str]:
    """The process table of npu-smi with every program called `process`; the columns stay where they are."""
    name_cell = 0
    done = []
    for line in lines:
        cells = line.split("|")
        if "Process id" in line and "Process name" in line:
            name_cell = next(place for place, cell in enumerate(cells) if "Process name" in cell)
        elif name_cell and len(cells) > name_cell + 1:
            cells[name_cell] = f" {'process':<{max(0, len(cells[name_cell]) - 1)}}"
            line = "|".join(cells)
        done.append(line)
    return done


def _some(text: str) -> str:
    """Bytes of GPU memory that a process holds: whether there are any is the fact, how many never rests."""
    return "0" if text.strip() in ("", "0") else "1"


def _first_word(text: str) -> str:
    return text.partition(" ")[0]


_RULES: Mapping[str, Callable[[str], str]] = {
    "/proc/driver/nvidia/version": _first_word,  # that the file is there is the fact; it names who built the driver
    "/proc/cpuinfo": _first_model,
    "/proc/interrupts": _without_counters,
    "/proc/meminfo": _fields(_MEMORY_FIELDS),
    "/proc/self/status": _fields(_STATUS_FIELDS),
}
_RULES_BY_END: Mapping[str, Callable[[str], str]] = {
    "/information": _fields(_GPU_FIELDS),
    "/meminfo": _fields(_MEMORY_FIELDS),
}
