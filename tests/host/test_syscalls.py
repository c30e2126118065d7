"""The raw system calls against what /proc says. Every test that changes itself does so in a process of its own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from homenode.errors import HostError
from homenode.host.bind.base import syscalls
from homenode.host.bind.base.syscalls import MPOL_BIND, NOT_TRIED, Syscalls
from tests.paths import ROOT

KERNEL = Syscalls()
CPUS = sorted(os.sched_getaffinity(0))


def _mempolicy_works() -> bool:
    try:
        KERNEL.get_mempolicy()
    except (OSError, HostError):
        return False
    return True


needs_mempolicy = pytest.mark.skipif(
    not _mempolicy_works(), reason="this kernel or container does not let us ask for memory policies"
)


def _python(code: str) -> str:
    """Standard output of `code`, run in a fresh interpreter that knows homenode."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _allowed_nodes() -> tuple[int, ...]:
    from homenode.cpuset import parse_cpu_list

    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Mems_allowed_list:")
    )
    return parse_cpu_list(line.partition(":")[2])


def test_affinity_is_set_and_read_as_proc_says() -> None:
    out = _python(
        "import re; from homenode.host.bind.base.syscalls import Syscalls\n"
        f"kernel = Syscalls(); kernel.set_affinity(0, [{CPUS[-1]}])\n"
        "print(kernel.affinity(0), re.search('Cpus_allowed_list:\\t(.*)', open('/proc/self/status').read())[1])"
    )
    assert out == f"({CPUS[-1]},) {CPUS[-1]}\n"


def test_affinity_of_a_thread_that_is_gone() -> None:
    with pytest.raises(ProcessLookupError):
        KERNEL.affinity(2**22 - 1)


@needs_mempolicy
def test_memory_policy_is_what_numa_maps_says() -> None:
    node = _allowed_nodes()[0]
    out = _python(
        "from homenode.host.bind.base.syscalls import *\n"
        f"kernel = Syscalls(); kernel.set_mempolicy(MPOL_BIND, [{node}]); print(kernel.get_mempolicy())\n"
        "print({line.split()[1] for line in open('/proc/self/numa_maps') if '[stack]' not in line and 'vdso' "
        "not in line})"
    )
    policy, shown = out.splitlines()
    assert policy == f"({MPOL_BIND}, ({node},))"
    assert f"'bind:{node}'" in shown


@needs_mempolicy
def test_memory_policy_survives_the_execution_of_another_program() -> None:
    node = _allowed_nodes()[0]
    out = _python(
        "import os; from homenode.host.bind.base.syscalls import *\n"
        f"Syscalls().set_mempolicy(MPOL_PREFERRED, [{node}]); os.execvp('cat', ['cat', '/proc/self/numa_maps'])"
    )
    assert f" prefer:{node} " in out


@needs_mempolicy
def test_allowed_nodes_are_those_of_proc() -> None:
    assert KERNEL.get_mems_allowed() == _allowed_nodes()


@needs_mempolicy
def test_nodes_that_are_not_there_are_dropped_silently_or_refused() -> None:
    """Why every policy is read back: a set with one usable node is accepted and cut, one without any is EINVAL."""
    node = _allowed_nodes()[0]
    absent = max(int(folder.name[4:]) for folder in Path("/sys/devices/system/node").glob("node[0-9]*")) + 1
    out = _python(
        f"from homenode.host.bind.base.syscalls import *\nkernel = Syscalls(); kernel.set_mempolicy(MPOL_BIND, "
        f"[{node}, {absent}])\n"
        "print(kernel.get_mempolicy()[1])\n"
        f"try: kernel.set_mempolicy(MPOL_BIND, [{absent}])\n"
        "except OSError as error: print(error.errno, error.strerror)"
    )
    assert out == f"({node},)\n{errno.EINVAL} set_mempolicy: Invalid argument\n"


@needs_mempolicy
def test_a_range_gets_a_policy_of_its_own() -> None:
    node = _allowed_nodes()[0]
    with mmap.mmap(-1, 4 * mmap.PAGESIZE) as memory:
        pages = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(pages)
        KERNEL.mbind(address, len(memory), MPOL_BIND, [node])
        line = next(
            line
            for line in Path("/proc/self/numa_maps").read_text().splitlines()
            if int(line.split()[0], 16) == address
        )
        del pages
    assert line.split()[1] == f"bind:{node}"


@needs_mempolicy
def test_pages_are_located_moved_and_missing_ones_said() -> None:
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as memory:
        memory[0] = 1
        pages = ctypes.c_char.from_buffer(memory)
        first = ctypes.addressof(pages)
        asked = KERNEL.move_pages(0, [first, first + 2 * mmap.PAGESIZE], None)
        home = asked[0]
        moved = KERNEL.move_pages(os.getpid(), [first], [home])
        del pages
    assert home in _allowed_nodes()
    assert asked[1] in (-errno.ENOENT, -errno.EFAULT), "never touched: 6.12 and later say ENOENT, 6.1 says EFAULT"
    assert moved == (home,)


def test_moving_pages_wants_a_node_for_each() -> None:
    with pytest.raises(ValueError, match="2 pages and 1 node"):
        KERNEL.move_pages(0, [0, 4096], [0])


def test_pages_of_a_process_that_is_gone() -> None:
    with pytest.raises(OSError) as refused:
        KERNEL.move_pages(2**22 - 1, [4096], None)
    assert refused.value.errno in (errno.ESRCH, errno.EPERM, errno.ENOSYS)
    assert NOT_TRIED == -errno.EAGAIN


def test_an_unknown_machine_is_a_clear_error_and_affinity_still_works() -> None:
    vax = Syscalls("vax")
    with pytest.raises(HostError, match="get_mempolicy: its system call number is not known for machine 'vax'"):
        vax.get_mempolicy()
    assert vax.affinity(0) == tuple(CPUS)


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "asm-generic/unistd.h"),
        ("riscv64", "asm-generic/unistd.h"),
    ],
)
def test_numbers_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    file = Path("/usr/include") / header
    if not file.is_file():
        pytest.skip(f"the kernel's headers are not installed: {file}")
    told = dict(
        line.split()[1:3]
        for line in file.read_text().splitlines()
        if line.startswith("#define __NR") and len(line.split()) == 3
    )
    for name, number in syscalls.NUMBERS[machine].items():
        assert told.get(f"__NR_{name}") == str(number)


@pytest.mark.parametrize("nodes", [(0,), (63,), (64,), (0, 63, 64, 71), (1023,), (250, 255), (4095,)])
def test_node_masks_of_any_length(nodes: tuple[int, ...]) -> None:
    """Rebuild the set from the words as the kernel does: `maxnode` less one bits, little end first."""
    mask, maxnode = syscalls.node_mask(nodes)
    assert mask is not None
    bits = maxnode.value - 1
    word = 8 * ctypes.sizeof(ctypes.c_ulong)
    assert bits == len(mask) * word
    assert tuple(node for node in range(bits) if mask[node // word] >> node % word & 1) == nodes
