"""Zig's C++ compiler (clang, with the headers of any version of the GNU C library) as CMake's compiler for another machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from tools.wheels.targets import MachineTarget, WheelError

GLIBC = (2, 28)

_TOOLCHAIN = """# Written by tools/wheels; not to be edited.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})
set(CMAKE_CXX_COMPILER "{zig}")
set(CMAKE_CXX_COMPILER_ARG1 "c++ -target {target}")
set(CMAKE_AR "{zig}" CACHE FILEPATH "" FORCE)
set(CMAKE_RANLIB "{zig}" CACHE FILEPATH "" FORCE)
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib <TARGET>")
# Zig compiles its C++ library anew for the processor features of every program that is linked: the tests of compiler flags link none.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
# The folder in which this was built is nobody's business.
set(CMAKE_CXX_FLAGS_INIT "-ffile-prefix-map={root}=.")
set(HOMENODE_ZIG ON CACHE BOOL "" FORCE)
"""


def find_zig() -> Path:
    """Zig's program, out of the package ziglang. WheelError without it."""
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise WheelError(
            "the package ziglang, whose compiler wheels are made with, is not installed: run `make wheels`"
        )
    return Path(found.origin).with_name("zig")


def target_of(machine: MachineTarget) -> str:
    """What Zig calls Linux on this machine with the oldest C library that wheels are for."""
    return f"{machine.name}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"


def compiler(zig: Path, machine: MachineTarget) -> Sequence[str]:
    """The command that compiles C++ for this machine."""
    return (str(zig), "c++", "-target", target_of(machine))


def write_toolchain(zig: Path, machine: MachineTarget, root: Path, file: Path) -> None:
    """Write the file that tells CMake how to compile the sources at `root` for this machine."""
    text = _TOOLCHAIN.format(machine=machine.name, zig=zig, target=target_of(machine), root=root)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")  # what is built with it is built anew when it changes
