"""The tests of the placement toolkit need no engine: what they import, they and their helpers, has none in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

ENGINE = ("engine", "transfer", "model", "compute", "server", "bench", "simulate", "grammars", "chat", "_native")
PURE = ROOT / "tests" / "pure"
OF_TOOLKIT = ("topology/test_*.py", "plan/test_*.py", "test_binding_*.py")
# These hold the toolkit and the engine to each other.
BOTH = {PURE / "plan/test_matrix.py", PURE / "plan/test_requirements.py"}


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules that a file imports when it is imported itself, of homenode and of the tests."""
    found = set()
    for node in _at_import(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(name for name in found if name.split(".")[0] in ("homenode", "tests"))


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
            yield from _at_import(child)


def file_of(module: str) -> Path | None:
    """The file of a dotted name, with its package's where it is a name in one."""
    base = (ROOT / "src" if module.startswith("homenode") else ROOT) / module.replace(".", "/")
    found = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in found if path.is_file()), None)


def reached(path: Path) -> set[str]:
    """Modules that an import of the file leads to, over any number of others."""
    seen: set[str] = set()
    waiting = list(imported(path))
    while waiting:
        module = waiting.pop()
        file = file_of(module)
        if module not in seen and file is not None:
            seen.add(module)
            waiting += imported(file)
    return seen


FILES = sorted(path for pattern in OF_TOOLKIT for path in PURE.glob(pattern))
LIVE = ("apply", "follow", "irq", "launch", "live_facts", "pages", "state", "syscalls", "threads", "verify", "watch")
FILES += [ROOT / "tests" / "host" / f"test_{name}.py" for name in LIVE]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_test_of_the_toolkit_leads_to_no_engine_unless_it_is_about_both(path: Path) -> None:
    modules = {name.removeprefix("homenode.") for name in reached(path) if name.startswith("homenode.")}
    assert modules
    engine = {name for name in modules if name.split(".")[0] in ENGINE}
    assert bool(engine) == (path in BOTH), f"{path.relative_to(ROOT)} needs {', '.join(sorted(engine))}"


def test_the_toolkit_itself_leads_to_no_engine() -> None:
    for part in ("host", "testing/hosts"):
        for path in (ROOT / "src" / "homenode" / part).rglob("*.py"):
            first = {name.split(".")[1] for name in reached(path) if name.startswith("homenode.")}
            assert not first & set(ENGINE), path
