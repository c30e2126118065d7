"""The C++ compilers of wheels, and how CMake is told of them.

Every module is linked by Zig, which has the symbols of any version of the GNU C library. It is compiled by the g++ of
its processor where there is one, whose kernels are faster, else by Zig's clang.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.wheels.targets import MachineTarget, WheelError

GLIBC = (2, 28)

_BOTH = """# Written by tools/wheels; not to be edited.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})
# The folder in which this was built is nobody's business.
set(CMAKE_CXX_FLAGS_INIT "-ffile-prefix-map={root}=.")
# What Zig compiles anew for the processor features of every program that is linked: the tests of compiler flags link
# none.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
"""

_CLANG = """set(CMAKE_CXX_COMPILER "{zig}")
set(CMAKE_CXX_COMPILER_ARG1 "c++ -target {target}")
set(CMAKE_AR "{zig}" CACHE FILEPATH "" FORCE)
set(CMAKE_RANLIB "{zig}" CACHE FILEPATH "" FORCE)
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib <TARGET>")
set(HOMENODE_ZIG ON CACHE BOOL "" FORCE)
"""

_GCC = """set(CMAKE_CXX_COMPILER "{gcc}")
set(CMAKE_CXX_CREATE_SHARED_MODULE "{zig} cc -target {target} <LINK_FLAGS> -Wl,--version-script={exports} -o <TARGET> <OBJECTS> -x c {lacking} -x none <LINK_LIBRARIES> {library} -lgcc_s -lpthread")
"""

# libstdc++ is compiled where glibc 2.32 says whether there is one thread; with more than one nothing else is said.
_LACKING = 'char __libc_single_threaded __attribute__((visibility("hidden"))) = 0;\n'
# The functions of libstdc++ in the module are its own, whatever else a process has loaded.
_EXPORTS = "{ global: PyInit__native; local: *; };\n"


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


def zig_compiler(zig: Path, machine: MachineTarget) -> Sequence[str]:
    """The command that compiles C++ for this machine."""
    return (str(zig), "c++", "-target", target_of(machine))


def find_gcc(machine: MachineTarget) -> Path | None:
    """The system's g++ for this machine; None where there is none with the static libstdc++ that a module takes in."""
    found = shutil.which(f"{machine.name}-linux-gnu-g++")
    return Path(found) if found and _static_library(Path(found)).is_absolute() else None


def write_toolchain(zig: Path, machine: MachineTarget, root: Path, file: Path, gcc: Path | None) -> None:
    """Write the file that tells CMake how to compile the sources at `root` for this machine: by `gcc`, else by Zig."""
    text = _BOTH.format(machine=machine.name, root=root)
    file.parent.mkdir(parents=True, exist_ok=True)
    if gcc is None:
        text += _CLANG.format(zig=zig, target=target_of(machine))
    else:
        lacking, exports = file.with_name("lacking.c"), file.with_name("exports.map")
        lacking.write_text(_LACKING, encoding="utf-8")
        exports.write_text(_EXPORTS, encoding="utf-8")
        library, target = _static_library(gcc), target_of(machine)
        text += _GCC.format(gcc=gcc, zig=zig, target=target, lacking=lacking, exports=exports, library=library)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")  # what is built with it is built anew when it changes


def _static_library(gcc: Path) -> Path:
    """Where this g++ has its static libstdc++: no absolute path where it has none."""
    asked = subprocess.run([gcc, "-print-file-name=libstdc++.a"], capture_output=True, text=True, timeout=60)
    return Path(asked.stdout.strip())
