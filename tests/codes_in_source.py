"""Every code that an error or a finding of the source can have, read from the source itself: what the page of failures
must list.

A code is the argument `code` of PlacementError or Finding. Where that is a parameter of a function, or a field of a
class, whoever gives that parameter gives the code, and is looked for in turn.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


@dataclass(frozen=True)
class Giver:
    """A function or class that takes a code: its `position` among the arguments and its keyword. `module`: the only
    file that can call it, if so.
    """

    name: str
    position: int
    keyword: str = "code"
    module: str = ""


@dataclass
class Found:
    """`computed`: where a code is put together while the program runs, as file and line."""

    codes: set[str] = field(default_factory=set)
    computed: set[str] = field(default_factory=set)


def codes_in(root: Path, folders: tuple[str, ...] = (".",)) -> Found:
    """All codes in the Python files of these folders below `root`."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    trees = {str(path.relative_to(root)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    found = Found()
    waiting = [Giver("PlacementError", 0), Giver("Finding", 1)]
    done: set[Giver] = set()
    while waiting:
        giver = waiting.pop()
        if giver in done:
            continue
        done.add(giver)
        for module, tree in trees.items():
            if giver.module in ("", module):
                waiting.extend(_look_for(giver, module, tree, found))
    return found


def severities_in(root: Path, folders: tuple[str, ...] = (".",)) -> dict[str, set[str]]:
    """Severities by code, of findings that are made with both written out."""
    found: dict[str, set[str]] = {}
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        for call, _ in _calls(ast.parse(path.read_text(encoding="utf-8")), ()):
            if isinstance(call.func, ast.Name) and call.func.id == "Finding" and len(call.args) > 1:
                for code in _texts(call.args[1]):
                    found.setdefault(code, set()).update(_texts(call.args[0]))
    return found


def _texts(given: ast.expr) -> set[str]:
    parts = (part.value for part in _alternatives(given) if isinstance(part, ast.Constant))
    return {part for part in parts if isinstance(part, str)}


def _look_for(giver: Giver, module: str, tree: ast.Module, found: Found) -> Iterator[Giver]:
    for call, around in _calls(tree, ()):
        name = (
            call.func.attr
            if isinstance(call.func, ast.Attribute)
            else call.func.id
            if isinstance(call.func, ast.Name)
            else ""
        )
        if name != giver.name or len(call.args) + len(call.keywords) < 2:  # set.add("...") is none of ours
            continue
        given = next((one.value for one in call.keywords if one.arg == giver.keyword), None)
        if given is None and len(call.args) > giver.position:
            given = call.args[giver.position]
        for part in _alternatives(given):
            yield from _one(part, module, around, found)


def _one(part: ast.expr, module: str, around: tuple[ast.AST, ...], found: Found) -> Iterator[Giver]:
    """A constant is a code; a name may be a parameter; an attribute of self a field; any other attribute hands on a
    code that has been given.
    """
    if isinstance(part, ast.Constant):
        if isinstance(part.value, str) and _CODE.fullmatch(part.value):
            found.codes.add(part.value)
    elif isinstance(part, ast.Name):
        yield from _parameter(part.id, module, around)
    elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
        owner = next(one for one in reversed(around) if isinstance(one, ast.ClassDef))
        fields = [
            one.target.id for one in owner.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
        if part.attr in fields:
            yield Giver(owner.name, fields.index(part.attr), part.attr, module if owner.name.startswith("_") else "")
    elif not isinstance(part, ast.Attribute | ast.Subscript):
        found.computed.add(f"{module}:{part.lineno}")


def _parameter(name: str, module: str, around: tuple[ast.AST, ...]) -> Iterator[Giver]:
    for at, owner in reversed(list(enumerate(around))):
        if isinstance(owner, ast.FunctionDef):
            names = [one.arg for one in (*owner.args.posonlyargs, *owner.args.args)]
            if name in (*names, *(one.arg for one in owner.args.kwonlyargs)):
                method = at > 0 and isinstance(around[at - 1], ast.ClassDef)
                position = names.index(name) - method if name in names else 1 << 10
                yield Giver(owner.name, position, name, module if owner.name.startswith("_") else "")
                return


def _alternatives(given: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(given, ast.IfExp):
        yield from _alternatives(given.body)
        yield from _alternatives(given.orelse)
    elif given is not None:
        yield given


def _calls(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[tuple[ast.Call, tuple[ast.AST, ...]]]:
    inside = (*around, node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else around
    if isinstance(node, ast.Call):
        yield node, inside
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, inside)
