"""The headers of a Python for another machine than the one it runs on.

They are the same files but one: pyconfig.h says how the interpreter was configured. Between Debian's Python for x86-64
and the one for aarch64 that differs in the names of DIFFERENCES and in nothing else, none of which changes what an
extension is compiled to. Sizes and alignments are the same on both, which the target's own compiler is asked before
anything is built with these headers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.wheels.pythons import Python
from tools.wheels.targets import MachineTarget, WheelError

# Name -> its value on each machine; None: not defined there.
DIFFERENCES: Mapping[str, Mapping[str, str | None]] = {
    "HAVE_GCC_ASM_FOR_X64": {"x86_64": "1", "aarch64": None},
    "HAVE_GCC_ASM_FOR_X87": {"x86_64": "1", "aarch64": None},
    "HAVE_USABLE_WCHAR_T": {"x86_64": None, "aarch64": "1"},
    "PY_SUPPORT_TIER": {"x86_64": "1", "aarch64": "2"},
}
# What the sizes and alignments in pyconfig.h are of.
TYPES = {
    "INT": "int", "SHORT": "short", "LONG": "long", "LONG_LONG": "long long", "FLOAT": "float", "DOUBLE": "double",
    "LONG_DOUBLE": "long double",
    "VOID_P": "void*", "SIZE_T": "size_t", "WCHAR_T": "wchar_t", "TIME_T": "time_t", "OFF_T": "off_t",
    "FPOS_T": "fpos_t", "PID_T": "pid_t",
    "UINTPTR_T": "uintptr_t", "PTHREAD_T": "pthread_t", "PTHREAD_KEY_T": "pthread_key_t", "_BOOL": "bool",
    "MAX_ALIGN_T": "max_align_t",
}  # fmt: skip
_INCLUDES = "cstddef cstdint cstdio ctime pthread.h sys/types.h"
_DEFINED = re.compile(
    r"^[ \t]*(?:#[ \t]*define[ \t]+(\w+)(?:[ \t]+(.*?))?|/\*[ \t]*#[ \t]*undef[ \t]+(\w+)[ \t]*\*/)[ \t]*$", re.M
)


def config_for(machine: MachineTarget, config: str) -> str:
    """The text of pyconfig.h as this machine's configure would have written it, from that of another machine."""

    def line(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name not in DIFFERENCES:
            return match[0]
        value = DIFFERENCES[name][machine.name]
        return f"/* #undef {name} */" if value is None else f"#define {name} {value}"

    return _DEFINED.sub(line, config)


def assertions(config: str) -> str:
    """A C++ program that compiles only where every size and alignment that this pyconfig.h names is true."""
    lines = [f"#include <{name}>" for name in _INCLUDES.split()]
    for name, value, _ in _DEFINED.findall(config):
        kind, _, of = name.partition("OF_")
        if kind in ("SIZE", "ALIGN") and of in TYPES and value:
            lines.append(f'static_assert({kind.lower()}of({TYPES[of]}) == {value}, "{name}");')
    return "\n".join([*lines, "int main() {}", ""])


def write_headers(python: Python, machine: MachineTarget, folder: Path, compiler: Sequence[str]) -> Path:
    """Copy the headers of `python` into `folder`, with the pyconfig.h of `machine`, and have `compiler`, which compiles
    for it, confirm them. WheelError where it does not. Returns the folder with Python.h.
    """
    include = folder / "include"
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(python.headers, include)
    config = config_for(machine, python.config.read_text(encoding="utf-8"))
    (include / "pyconfig.h").write_text(config, encoding="utf-8")
    program = folder / "sizes.cpp"
    program.write_text(assertions(config), encoding="utf-8")
    asked = subprocess.run(
        [*compiler, "-std=c++20", "-c", str(program), "-o", str(folder / "sizes.o")], capture_output=True, text=True
    )
    if asked.returncode:
        raise WheelError(
            f"{python.config} is not true of {machine.name}: {asked.stderr.strip()[-600:]}; take a Python "
            f"whose headers are"
        )
    return include
