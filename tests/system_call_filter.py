"""Programs under a filter that refuses system calls, as a container's seccomp profile or a unit's filter does."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

# Refuses the calls whose numbers it is given (N:A: with A as the first argument) with an errno, then becomes the rest
# (seccomp(2)).
_FILTER = """
import ctypes, os, struct, sys
LOAD, EQUAL, RETURN, ALLOW, REFUSE = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | int(sys.argv[2])
NUMBER, ARGUMENT = 0, 16  # of a call and of its first argument, in struct seccomp_data
steps = []
for call in sys.argv[1].split(","):
    number, _, argument = call.partition(":")
    refuse = [(RETURN, 0, 0, REFUSE)]
    if argument:
        refuse = [(LOAD, 0, 0, ARGUMENT), (EQUAL, 0, 1, int(argument)), *refuse]
    steps += [(LOAD, 0, 0, NUMBER), (EQUAL, 0, len(refuse), int(number)), *refuse]
steps += [(RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""
_GENERIC = {
    "sched_setaffinity": 122, "sched_getaffinity": 123, "set_mempolicy": 237, "get_mempolicy": 236, "mbind": 235,
    "move_pages": 239, "memfd_create": 279, "pidfd_open": 434, "socket": 198, "socketpair": 199, "madvise": 233,
    "prlimit64": 261,
}  # fmt: skip
NUMBERS = {
    "x86_64": {
        "sched_setaffinity": 203, "sched_getaffinity": 204, "set_mempolicy": 238, "get_mempolicy": 239, "mbind": 237,
        "move_pages": 279, "memfd_create": 319, "pidfd_open": 434, "socket": 41, "socketpair": 53, "madvise": 28,
        "prlimit64": 302,
    },
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
}  # fmt: skip


def run_without(
    calls: Sequence[str], code: int, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words where the kernel refuses `calls` with the errno `code`; skips where no filter can be
    made. `socket(AF_UNIX)` is `socket` of that family."""
    numbers = NUMBERS.get(platform.machine())
    if numbers is None:
        pytest.skip("numbers of system calls are not known for this machine")
    command = [sys.executable, "-c", _FILTER, ",".join(_in_numbers(call, numbers) for call in calls), str(code), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    if done.stderr.startswith("seccomp:"):
        pytest.skip(f"cannot make a filter here: {done.stderr}")
    return done


def _in_numbers(call: str, numbers: Mapping[str, int]) -> str:
    name, _, family = call.rstrip(")").partition("(")
    return f"{numbers[name]}:{int(getattr(socket, family))}" if family else str(numbers[name])
