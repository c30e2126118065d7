"""Files that comments and docstrings of csrc and src name are there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

_FILE = re.compile(r"(?<![\w./-])[A-Za-z_][\w/.-]*\.(?:h|cpp|py|md|toml)\b")
# Of other projects, of the kernel and of the Ascend toolkit.
_ELSEWHERE = re.compile(r"(?:linux|asm-generic|include|hccl|acl)/[\w/.-]+\.h|llama\.cpp|sysexits\.h")


def comments_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment, and of each docstring of Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line.partition("//")[2]
        return
    if not _FILE.search(text):  # to find the comments of Python takes a hundred times as long
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield token.start[0], token.string


def missing_files(places: list[Path], there: set[str]) -> list[str]:
    """What `places` name and is not among `there`, paths from the root of the repository on, of which a name may have
    the end.
    """
    ends = {"/".join(parts[n:]) for parts in (path.split("/") for path in there) for n in range(len(parts))}
    return [
        f"{path.name}:{line} names {name}"
        for path in places
        for line, text in comments_of(path)
        for name in _FILE.findall(text)
        if name not in ends and not _ELSEWHERE.fullmatch(name)
    ]


def sources(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cpp", ".py", ".md", ".toml") and "__pycache__" not in path.parts
    ]


def test_every_file_that_a_comment_names_is_there() -> None:
    there = {str(path.relative_to(ROOT)) for path in sources("csrc", "src", "tests", "tools", "docs")}
    there |= {path.name for path in ROOT.iterdir()}
    places = [path for path in sources("csrc", "src") if path.suffix in (".h", ".cpp", ".py")]
    assert len(places) > 500
    assert missing_files(places, there) == []


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    (one := tmp_path / "one.h").write_text("#pragma once  // see host/two.h, linux/fs.h and kernels/three.h\n")
    (other := tmp_path / "four.py").write_text('"""See three.h, five.py and llama.cpp."""\n')
    there = {"csrc/host/two.h", "csrc/kernels/three.h"}
    assert missing_files([one, other], there) == ["four.py:1 names five.py"]
    assert missing_files([one], there - {"csrc/host/two.h"}) == ["one.h:1 names host/two.h"]
