"""`make stubs`: what is written from something else, and compared by `make check` (--check).

src/homenode/_native.pyi      from the compiled core, by nanobind's stub generator
csrc/sampling/settings.h, the table of docs/sampling.md      from the table in src/homenode/sampling.py
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from homenode.sampling import SETTINGS, setting_type

ROOT = Path(__file__).parents[1]
# The versions that write the stub: others write the same types in other words.
NANOBIND, PYTHON = "3.1.0", (3, 11)
_STUB = "src/homenode/_native.pyi"
_HEADER = "csrc/sampling/settings.h"
_PAGE = "docs/sampling.md"
_ARRAY = re.compile(r"Annotated\[(NDArray\[numpy\.\w+\]), dict\([^=]+=.*?\)\]")
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of the table -->)", re.DOTALL)


class NotHereError(Exception):
    """A file that this installation cannot write, and why."""


def native_stub() -> str:
    """Types of the compiled core. NotHereError where it is not compiled, or other versions would write
    something else.
    """
    if sys.version_info[:2] != PYTHON:
        raise NotHereError(f"Python {PYTHON[0]}.{PYTHON[1]} writes it")
    try:
        version = importlib.metadata.version("nanobind")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != NANOBIND:
        raise NotHereError(f"nanobind {NANOBIND} writes it, {version} is installed")
    try:
        from homenode import _native
    except ImportError as error:
        raise NotHereError(f"the native core is not compiled ({error})") from error
    from nanobind.stubgen import StubGen

    generator = StubGen(_native)
    generator.put(_native)
    head = (
        '"""The compiled core (csrc/bind). ValueError for wrong arguments, OSError when the machine refuses.\n\n'
        'Written by `make stubs`; not to be edited.\n"""\n\n'
    )
    # The shapes of arrays are checked when a function is called; `np` is no method of any class.
    types = _ARRAY.sub(r"\1", generator.get())
    types = re.sub(r"^import numpy$", "import numpy as np", types, flags=re.MULTILINE)
    text = head + re.sub(r"(?<!from )\bnumpy\.(?=\w)", "np.", types)
    for command in (("check", "--fix-only", "--quiet"), ("format", "--quiet")):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", _STUB, "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def sampling_header() -> str:
    """The settings of a row for the native core."""
    lines = [
        "// Written by `make stubs` from src/homenode/sampling.py; not to be edited.",
        "//",
        "// X(type, name, least, most): the settings that each row of a SamplingInput has, and their ranges, bounds",
        "// included.",
        "#pragma once",
        "#include <cstdint>",
        "",
        "#define HOMENODE_SAMPLING_SETTINGS(X) \\",
    ]
    rows = []
    for name, setting in SETTINGS.items():
        whole = setting_type(name) is int
        bounds = ", ".join(f"{bound:.0f}" if whole else f"{float(bound)!r}f" for bound in (setting.low, setting.high))
        rows.append(f"  X({'int32_t' if whole else 'float'}, {name}, {bounds})")
    return "\n".join([*lines, " \\\n".join(rows)]) + "\n"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def sampling_page() -> str:
    """The page of sampling parameters with its table."""
    lines = ["| parameter | from Python | in HTTP | changes nothing | what it does |", "|---|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        python, http = (
            f"{_number(low)} to {_number(high)}" for low, high in ((setting.low, setting.high), setting.api_range)
        )
        if setting.above:
            python = f"above {python}"
        lines.append(f"| `{name}` | {python} | {http} | {_number(setting.off)} | {setting.doc} |")
    page = (ROOT / _PAGE).read_text(encoding="utf-8")
    return _TABLE.sub("\n".join(lines) + "\n", page)


WRITTEN: dict[str, Callable[[], str]] = {_STUB: native_stub, _HEADER: sampling_header, _PAGE: sampling_page}


def stale() -> list[str]:
    """The files that differ from what would be written. Says what cannot be compared here."""
    found = []
    for name, write in WRITTEN.items():
        try:
            if (ROOT / name).read_text(encoding="utf-8") != write():
                found.append(name)
        except NotHereError as why:
            print(f"{name} was not compared: {why}")
    return found


def main() -> None:
    """Write all files, or with --check end with 1 where one is not what would be written."""
    if sys.argv[1:] == ["--check"]:
        if found := stale():
            sys.exit(f"{', '.join(found)}: not what would be written; run make stubs")
        return
    for name, write in WRITTEN.items():
        try:
            (ROOT / name).write_text(write(), encoding="utf-8")
            print(f"{name}: written")
        except NotHereError as why:
            print(f"{name} was not written: {why}")


if __name__ == "__main__":
    main()
