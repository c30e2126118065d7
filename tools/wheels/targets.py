"""What a release consists of: the machines and the Pythons that wheels are made for, and what a wheel of each must be.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST = 15_000_000  # bytes of a wheel


class WheelError(Exception):
    """What is in the way of making the packages, in a sentence for who runs the command."""


@dataclass(frozen=True)
class MachineTarget:
    """A processor architecture. `elf`: its number in the head of a library. `levels`: the instruction set levels of its
    kernels.
    """

    name: str
    elf: int
    levels: tuple[str, ...]


@dataclass(frozen=True)
class PythonTarget:
    """The Pythons that one wheel is for. `minor`: the oldest 3.N of them. `stable`: later ones load the same module."""

    minor: int
    stable: bool

    @property
    def tag(self) -> str:
        """The first two parts of the wheel's tag, such as `cp312-abi3`."""
        return f"cp3{self.minor}-abi3" if self.stable else f"cp3{self.minor}-cp3{self.minor}"

    @property
    def words(self) -> str:
        """How it is told to people."""
        return f"CPython 3.{self.minor}" + (" and later" if self.stable else "")

    def module(self, machine: MachineTarget) -> str:
        """The file name of the native core inside of the wheel."""
        return "_native.abi3.so" if self.stable else f"_native.cpython-3{self.minor}-{machine.name}-linux-gnu.so"

    def built_by(self, version: tuple[int, int]) -> bool:
        """Whether a Python of this version can build it."""
        return version[0] == 3 and (version[1] >= self.minor if self.stable else version[1] == self.minor)


MACHINES = {
    machine.name: machine
    for machine in (
        MachineTarget("x86_64", 62, ("avx2", "avx2vnni", "avx512", "avx512bf16", "amx")),
        MachineTarget("aarch64", 183, ("neon", "dotprod", "i8mm")),
    )
}
# nanobind's stable ABI begins with 3.12.
PYTHONS = (PythonTarget(11, stable=False), PythonTarget(12, stable=True))


def platform_tag(machine: MachineTarget, glibc: tuple[int, int]) -> str:
    """The last part of the wheel's tag: Linux with this version of the GNU C library or a later one."""
    return f"manylinux_{glibc[0]}_{glibc[1]}_{machine.name}"


def faults(machine: MachineTarget, module: bytes, size: int) -> Sequence[str]:
    """What is wrong with a wheel of `size` bytes whose native core is `module`: each a sentence; none, if
    nothing is.
    """
    found = []
    if module[:4] != b"\x7fELF" or int.from_bytes(module[18:20], "little") != machine.elf:
        found.append(f"its native core is not for {machine.name}")
    if missing := [level for level in machine.levels if level.encode() + b"\0" not in module]:
        found.append(f"its native core lacks the levels {', '.join(missing)}: the compiler does not know them")
    if size > LARGEST:
        found.append(f"it has {size / 1e6:.1f} MB; at most {LARGEST / 1e6:.0f} MB are wanted")
    return found
