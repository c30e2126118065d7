"""Lines of code, tests, tools and pages end by column 120."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.paths import ROOT

MOST = 120
FOLDERS = ("src", "csrc", "tests", "tools", "benchmarks", "docs", "changes")
_MADE = ROOT / "docs" / "_build"  # by `make docs`, with scripts and style sheets of others
SUFFIXES = (".py", ".h", ".cpp", ".md", ".sh", ".js", ".css", ".html")
# What has lines of its own, from the root on, and why; of a file that ends with a slash all that is in the folder.
EXCEPTIONS = {
    "tools/builtin_model/corpus/": "texts that a model is trained on",
    "tests/pure/test_comparison.py": "what other programs wrote",
    "tests/pure/test_lab.py": "what pytest wrote",
    "tests/pure/topology/test_ascend.py": "what npu-smi wrote",
    "tests/host/test_vendor_tools.py": "what npu-smi wrote",
    "tests/pure/chat/test_formats.py": "what a model wrote",
    "src/homenode/model/tokenizer/vocabularies/pretokenizers.py": "patterns of tokenizers",
    "tests/pure/test_pretokenizers.py": "patterns of tokenizers",
    "tools/wheels/compilers.py": "a command that CMake wants in one string",
    **dict.fromkeys(
        (
            "tests/guests/test_quick.py",
            "tests/host/test_launch.py",
            "tests/lab/test_lab_ranks.py",
            "tests/native/test_memory.py",
            "tests/pure/test_measure_numa.py",
        ),
        "a program in a string",
    ),
}
_DIRECTIVE = re.compile(r"\s+# (?:type: ignore|noqa|fmt: skip|pragma)\b.*")  # of a tool, at the end of its line


def long_lines(path: Path) -> Iterator[tuple[int, int]]:
    """(number, columns) of lines that are too long. Addresses, and tables and blocks of code in pages, have no end."""
    in_block = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if path.suffix == ".md":
            in_block ^= line.lstrip().startswith("```")
            if in_block or line.lstrip().startswith("|"):
                continue
        if len(line) > MOST and "://" not in line and (columns := len(_DIRECTIVE.sub("", line))) > MOST:
            yield number, columns


@cache
def files() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    return sorted([*(path for path in found if not path.is_relative_to(_MADE)), *ROOT.glob("*.md")])


def is_exception(path: Path, names: Iterable[str] = EXCEPTIONS) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(name == each or (each.endswith("/") and name.startswith(each)) for each in names)


def test_lines_end_by_column_120() -> None:
    looked_at = [path for path in files() if not is_exception(path)]
    assert len(looked_at) > 1000
    found = [
        f"{path.relative_to(ROOT)}:{number} has {columns}" for path in looked_at for number, columns in long_lines(path)
    ]
    assert not found, "\n".join(found)


def test_exceptions_are_needed() -> None:
    for name in EXCEPTIONS:
        assert any(next(long_lines(path), None) for path in files() if is_exception(path, [name])), name


def test_what_counts_as_long(tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(f"{'x' * 121}\n| {'x' * 121} |\n```\n{'x' * 121}\n```\n{'y' * 120}\n")
    (code := tmp_path / "code.py").write_text(
        f"{'x' * 120}  # type: ignore[misc]\n# {'x' * 119}\n# see https://{'x' * 119}\n"
    )
    assert list(long_lines(page)) == [(1, 121)] and list(long_lines(code)) == [(2, 121)]
