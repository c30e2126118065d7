"""The system calls of NUMA binding, called directly: affinity, memory policy, page moves. Neither libnuma nor a
compiled extension is needed.

Sources: set_mempolicy(2), get_mempolicy(2), mbind(2), move_pages(2), sched_setaffinity(2); the kernel's mm/mempolicy.c
for the length of node masks; its syscall tables for the numbers. Failures raise OSError with the kernel's errno and the
call's name; who calls says what that means.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from homenode.cpuset import parse_cpu_list
from homenode.errors import HostError
from homenode.host.refused_errors import REFUSALS
from homenode.units import format_count

MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL, MPOL_PREFERRED_MANY, MPOL_WEIGHTED_INTERLEAVE = (
    range(7)
)
# As /proc/PID/numa_maps says.
MODE_NAMES = ("default", "prefer", "bind", "interleave", "local", "prefer (many)", "weighted interleave")
MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES, MPOL_F_NUMA_BALANCING = 1 << 15, 1 << 14, 1 << 13  # modifiers of a mode
MPOL_F_NODE, MPOL_F_ADDR, MPOL_F_MEMS_ALLOWED = 1, 2, 4  # questions to get_mempolicy
MPOL_MF_STRICT, MPOL_MF_MOVE, MPOL_MF_MOVE_ALL = 1, 2, 4  # what mbind and move_pages do with pages that exist

NOT_TRIED = -errno.EAGAIN  # status of a page that move_pages did not come to

_GENERIC = {"mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "move_pages": 239}
NUMBERS = {
    "x86_64": {"mbind": 237, "get_mempolicy": 239, "set_mempolicy": 238, "move_pages": 279},
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64": {"mbind": 259, "get_mempolicy": 260, "set_mempolicy": 261, "move_pages": 301},
    "ppc64le": {"mbind": 259, "get_mempolicy": 260, "set_mempolicy": 261, "move_pages": 301},
    "s390x": {"mbind": 268, "get_mempolicy": 269, "set_mempolicy": 270, "move_pages": 310},
}
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)  # bits of an unsigned long, the unit of node masks
# Bits of a mask that get_mempolicy fills: it wants room for every possible node, and refuses more than a page.
_SHORTEST_ANSWER, _LONGEST_ANSWER = 1024, 32768


def thread_cpus(tid: int = 0, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """CPUs that thread `tid` may run on, ascending; 0 is the calling thread. Where sched_getaffinity is refused, as
    /proc/TID/status tells. OSError where neither does."""
    try:
        return tuple(sorted(os.sched_getaffinity(tid)))
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        cpus = _told_cpus(proc / (str(tid) if tid else "thread-self") / "status")
        if cpus is None:
            raise
    return cpus


def _told_cpus(status: Path) -> tuple[int, ...] | None:
    for line in status.read_text().splitlines():
        name, _, text = line.partition(":")
        if name == "Cpus_allowed_list":
            return parse_cpu_list(text.strip())
    return None


class Syscalls:
    """The calls, as methods so that tests can put a kernel that refuses in their place. Keeps nothing between calls."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine`: as `uname -m` says; this one when None."""
        self._machine = machine or platform.machine()

    def affinity(self, tid: int) -> tuple[int, ...]:
        """CPUs that thread `tid` may run on, ascending; 0 is the calling thread. Machines beyond 1024 CPUs are read
        whole."""
        return thread_cpus(tid)

    def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
        """Let thread `tid` run on `cpus` only. The kernel silently drops those its cpuset forbids: read back with
        `affinity`."""
        os.sched_setaffinity(tid, cpus)

    def set_mempolicy(self, mode: int, nodes: Iterable[int] = ()) -> None:
        """Memory policy of the calling thread, of all it will start and of the program it becomes (it survives
        execve)."""
        mask, bits = node_mask(nodes)
        self._call("set_mempolicy", mode, mask, bits)

    def get_mempolicy(self) -> tuple[int, tuple[int, ...]]:
        """Mode (with its modifier flags) and nodes of the calling thread's memory policy."""
        return self._read_policy(0)

    def get_mems_allowed(self) -> tuple[int, ...]:
        """Nodes whose memory the calling thread's cpuset allows."""
        return self._read_policy(MPOL_F_MEMS_ALLOWED)[1]

    def mbind(self, address: int, length: int, mode: int, nodes: Iterable[int], flags: int = 0) -> None:
        """Memory policy of the `length` bytes at `address` (page aligned) of the calling process; `flags` as
        MPOL_MF_*."""
        mask, bits = node_mask(nodes)
        self._call("mbind", ctypes.c_void_p(address), ctypes.c_ulong(length), mode, mask, bits, flags)

    def move_pages(
        self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = MPOL_MF_MOVE
    ) -> tuple[int, ...]:
        """Move the page at each address of process `pid` to the node of the same position; with `nodes` None only ask
        where they are.

        Returns one status per page: the node it is on, a negative errno, or NOT_TRIED.
        """
        count = len(addresses)
        if nodes is not None and len(nodes) != count:
            raise ValueError(f"{format_count(count, 'page')} and {format_count(len(nodes), 'node')}")
        pages = (ctypes.c_void_p * count)(*addresses)
        wanted = None if nodes is None else (ctypes.c_int * count)(*nodes)
        status = (ctypes.c_int * count)(*[NOT_TRIED] * count)
        self._call("move_pages", pid, ctypes.c_ulong(count), pages, wanted, status, flags)
        return tuple(status)

    def _read_policy(self, flags: int) -> tuple[int, tuple[int, ...]]:
        bits = _SHORTEST_ANSWER
        while True:
            mode, mask = ctypes.c_int(0), (ctypes.c_ulong * (bits // _WORD))()
            try:
                self._call("get_mempolicy", ctypes.byref(mode), mask, ctypes.c_ulong(bits + 1), None, flags)
            except OSError as error:
                if error.errno != errno.EINVAL or bits >= _LONGEST_ANSWER:
                    raise
                bits *= 2
            else:
                return mode.value, tuple(node for node in range(bits) if mask[node // _WORD] >> node % _WORD & 1)

    def _call(self, name: str, *arguments: object) -> int:
        numbers = NUMBERS.get(self._machine, {}) if sys.maxsize > 2**32 else {}
        if name not in numbers:
            raise HostError(
                f"{name}: its system call number is not known for machine {self._machine!r} "
                f"({8 * ctypes.sizeof(ctypes.c_void_p)}-bit Python); "
                f"known are {', '.join(NUMBERS)}, 64-bit. Bind CPUs only there.",
                machine=self._machine,
            )
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        syscall.restype = ctypes.c_long
        result: int = syscall(ctypes.c_long(numbers[name]), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")
        return result


def node_mask(nodes: Iterable[int]) -> tuple[ctypes.Array[ctypes.c_ulong] | None, ctypes.c_ulong]:
    """A mask and the `maxnode` that goes with it: the kernel takes one off the number it is given, so it is told one
    bit more."""
    wanted = sorted(set(nodes))
    if not wanted:
        return None, ctypes.c_ulong(0)
    words = wanted[-1] // _WORD + 1
    mask = (ctypes.c_ulong * words)()
    for node in wanted:
        mask[node // _WORD] |= 1 << node % _WORD
    return mask, ctypes.c_ulong(words * _WORD + 1)
