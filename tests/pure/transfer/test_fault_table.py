"""The table of faults names every one, and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.paths import ROOT

ROWS = 52
MOST_EXCUSED = 3
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
_UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "multiprocessing"}
_PERHAPS = re.compile(rf"\b(?:{'|'.join(_UNPICKLES)})\b")  # where a file has none of these, it need not be parsed


def table() -> dict[int, str]:
    lines = (ROOT / "docs" / "kv-transfer-faults.md").read_text().splitlines()
    rows = [found for line in lines if (found := _ROW.match(line))]
    numbers = [int(row[1]) for row in rows]
    assert len(set(numbers)) == len(numbers), "a row is there twice"
    return {int(row[1]): row[3] for row in rows}


@cache
def functions(file: str) -> frozenset[str]:
    """The tests of a file, which are functions at its top or of a class there."""
    return frozenset(re.findall(r"^(?:    )?def (test_\w+)\(", (ROOT / "tests" / file).read_text(), re.M))


def test_every_row_is_there() -> None:
    assert list(table()) == list(range(1, ROWS + 1))


def test_at_most_three_are_excused_and_say_why() -> None:
    excused = {number: tests for number, tests in table().items() if not _TEST.search(tests)}
    assert len(excused) <= MOST_EXCUSED
    assert all(re.match(r"\*excused\*: .{20,}", tests) for tests in excused.values())


@pytest.mark.parametrize("number", range(1, ROWS + 1))
def test_its_tests_exist(number: int) -> None:
    for file, name in _TEST.findall(table()[number]):
        assert (ROOT / "tests" / file).is_file(), file
        assert name.startswith("test_") and name in functions(file), f"{file} has no {name}"


@pytest.mark.parametrize("package", ["transfer", "engine", "server"])
def test_nothing_here_unpickles(package: str) -> None:
    for file in (ROOT / "src" / "homenode" / package).rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if _PERHAPS.search(text) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & _UNPICKLES, f"{file}, line {getattr(node, 'lineno', 0)}"
