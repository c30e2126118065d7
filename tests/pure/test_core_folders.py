"""The folders of the C++ core stand one upon another: CMakeLists.txt has their order, and no include goes up.

Folders of one line do not include each other. Those of an instruction set level (`kernels/avx2`) may include whatever
is below the users of `linear`, as their kernels fill the loops that `linear` has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tests.paths import ROOT

CORE = ROOT / "csrc"
LARGEST = 40  # files in a folder
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def read_floors(text: str) -> list[list[str]]:
    """The folders as CMakeLists.txt has them, line by line from the bottom up."""
    match = re.search(r"set\(HOMENODE_FOLDERS\n(.*?)\)", text, re.DOTALL)
    assert match is not None
    return [line.split() for line in match[1].splitlines()]


def includes(files: Iterable[Path]) -> list[tuple[str, str]]:
    """(file, included file) of all includes of files of the core, from csrc on."""
    return [
        (path.relative_to(CORE).as_posix(), name)
        for path in files
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8"))
    ]


def find_wrong(found: Iterable[tuple[str, str]], floors: list[list[str]]) -> list[str]:
    """The includes that go up, or to another folder of the same line; a level's folder stands on that of `linear`."""
    height = {folder: number for number, folders in enumerate(floors) for folder in folders}
    wrong = []
    for source, target in found:
        here, there = PurePosixPath(source).parent, PurePosixPath(target).parent
        if here.parts[0] == there.parts[0] or here.parts[0] not in height:
            continue
        own = height["linear"] + 1 if len(here.parts) > 1 else height[here.parts[0]]
        if height[there.parts[0]] >= own:
            wrong.append(f"{source} includes {target}")
    return wrong


def all_files() -> list[Path]:
    return sorted(path for path in CORE.rglob("*") if path.suffix in (".h", ".cpp"))


FLOORS = read_floors((ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))


def test_no_include_goes_up() -> None:
    found = includes(all_files())
    assert len(found) > 250
    assert find_wrong(found, FLOORS) == []


def test_an_include_that_goes_up_is_found() -> None:
    planted = [
        ("kv/cache.h", "graph/step.h"),
        ("graph/step.cpp", "kv/cache.h"),
        ("linear/share.h", "kv/cache.h"),
        ("kernels/avx2/linear.cpp", "linear/tiles.h"),
        ("kernels/kernels_scalar.cpp", "linear/tiles.h"),
    ]
    assert find_wrong(planted, FLOORS) == [
        "graph/step.cpp includes kv/cache.h",
        "linear/share.h includes kv/cache.h",
        "kernels/kernels_scalar.cpp includes linear/tiles.h",
    ]


def test_every_folder_is_compiled() -> None:
    compiled = {folder for folders in FLOORS for folder in folders}
    with_sources = {path.relative_to(CORE).parts[0] for path in all_files()}
    assert with_sources - {"bind", "tests"} == compiled


def test_no_folder_has_too_many_files() -> None:
    counts = {
        str(folder): sum(path.is_file() for path in folder.iterdir()) for folder in CORE.rglob("*") if folder.is_dir()
    }
    assert {folder: count for folder, count in counts.items() if count > LARGEST} == {}
