"""Programs to bind: a Python child that starts and renames threads, moves itself and maps memory on command, and says
when it is done.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list

CPUS = tuple(sorted(os.sched_getaffinity(0)))
ONE, OTHER = CPUS[0], CPUS[-1]
two_cpus = pytest.mark.skipif(
    len(CPUS) < 2, reason=f"needs two CPUs to move threads between, this process may use {CPUS}"
)
numa = pytest.mark.skipif(
    not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA support: no /proc/self/numa_maps"
)

_PROGRAM = """
import ctypes, mmap, os, queue, signal, sys, threading
from homenode.host.bind.base.syscalls import MPOL_BIND, Syscalls
libc = ctypes.CDLL(None)
kept = []
def named(name, go):
    libc.prctl(15, name.encode(), 0, 0, 0)
    print(threading.get_native_id(), flush=True)
    for line in iter(go.get, None):
        libc.prctl(15, line.encode(), 0, 0, 0)
        print("renamed", flush=True)
    print("ended", flush=True)
queues = {}
print("ready", flush=True)
for line in sys.stdin:
    verb, *words = line.split()
    if verb == "thread":
        queues[words[0]] = go = queue.Queue()
        threading.Thread(target=named, args=(words[0], go), daemon=True).start()
    elif verb == "rename":
        queues[words[0]].put(words[1])
    elif verb == "end":
        queues[words[0]].put(None)
    elif verb == "move":
        os.sched_setaffinity(int(words[0]), {int(cpu) for cpu in words[1].split(",")})
        print("moved", flush=True)
    elif verb == "private":
        block = mmap.mmap(-1, int(words[0]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        kept.append(block)
        block[:] = b"x" * len(block)
        print(ctypes.addressof(ctypes.c_char.from_buffer(block)), flush=True)
    elif verb == "huge":
        block = mmap.mmap(-1, int(words[0]) + (4 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_HUGEPAGE)
        address = -ctypes.addressof(ctypes.c_char.from_buffer(block)) // (2 << 20) * -(2 << 20)
        ctypes.memset(address, 1, int(words[0]))
        kept.append(block)
        print(address, flush=True)
    elif verb == "placed":
        block = mmap.mmap(-1, int(words[0]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        Syscalls().mbind(address, len(block), MPOL_BIND, [int(words[1])])
        ctypes.memset(address, 1, len(block))
        kept.append(block)
        print(address, flush=True)
    elif verb == "fork":
        if os.fork() == 0:
            libc.prctl(1, 9, 0, 0, 0)  # ends with its parent
            os.close(0)
            while True:
                signal.pause()
        print("forked", flush=True)
    elif verb == "fill":
        block = mmap.mmap(-1, int(words[0]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        kept.append(block)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        ctypes.memset(address, 1, len(block))
        print(address, flush=True)
    elif verb == "memfd":
        handle = os.memfd_create("table")
        os.ftruncate(handle, int(words[0]))
        block = mmap.mmap(handle, int(words[0]))
        kept.append(block)
        block[:] = b"y" * len(block)
        print(ctypes.addressof(ctypes.c_char.from_buffer(block)), flush=True)
    elif verb == "file":
        with open(words[0], "r+b") as file:
            block = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        kept.append(block)
        sum(block[::4096])
        print(ctypes.addressof(ctypes.c_char.from_buffer(block)), flush=True)
    elif verb == "device":
        # io_uring_setup: rings of the kernel's, mapped as a driver's memory is
        handle = libc.syscall(425, 4, (ctypes.c_char * 120)())
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        address = libc.mmap(None, 4096, 3, 1, handle, 0) if handle >= 0 else 0
        if address:
            ctypes.string_at(address, 1)
        print(address, flush=True)
"""


class Child:
    """The running program. `tell` gives a command and returns the child's answer, which comes when it is done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def tell(self, *words: object) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def thread(self, name: str) -> int:
        """Start a thread called `name`; its number."""
        return int(self.tell("thread", name))

    def end(self) -> None:
        """End it and wait until its number is free."""
        with contextlib.suppress(BrokenPipeError):
            self._process.kill()
        self._process.wait(10)


@contextlib.contextmanager
def child(*before: str) -> Iterator[Child]:
    """A child on all CPUs that this process may use, or as the command `before` starts it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [*before, sys.executable, "-S", "-c", _PROGRAM]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        running = Child(process)
        assert running.answer() == "ready"
        yield running
    finally:
        process.kill()
        process.communicate(timeout=60)  # what it has to give back may be most of an emulated machine


@contextlib.contextmanager
def cpuset(cpus: str, nodes: str) -> Iterator[Path]:
    """The file that takes a process into a cgroup, version 1 or 2, with these CPUs and memory nodes; the group is gone
    afterwards.
    """
    root = Path("/sys/fs/cgroup")
    with contextlib.ExitStack() as undone:
        if os.access(root / "cpuset" / "cpuset.cpus", os.W_OK):
            root /= "cpuset"
        else:
            _enable_cpusets(root / "cgroup.subtree_control", undone)
        group = root / f"homenode-test-{os.getpid()}"
        group.mkdir()
        undone.callback(group.rmdir)
        (group / "cpuset.mems").write_text(nodes)
        (group / "cpuset.cpus").write_text(cpus)
        yield group / "cgroup.procs"


def _enable_cpusets(control: Path, undone: contextlib.ExitStack) -> None:
    try:
        if "cpuset" not in control.read_text().split():
            control.write_text("+cpuset")
            undone.callback(control.write_text, "-cpuset")
    except OSError as error:
        pytest.skip(f"no cpusets can be made here: {error}")


def masks(pid: int) -> dict[int, tuple[int, ...]]:
    """CPUs of every thread, straight from /proc."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            line = next(
                line for line in (task / "status").read_text().splitlines() if line.startswith("Cpus_allowed_list")
            )
            found[int(task.name)] = parse_cpu_list(line.partition(":")[2])
    return found
