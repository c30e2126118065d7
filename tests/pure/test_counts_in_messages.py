"""No message says `1 threads`: a number in front of a plural goes through `format_count`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import homenode
from homenode.units import format_count

SOURCES = sorted(Path(homenode.__file__).parent.rglob("*.py"))
NOUNS = (
    "threads nodes cores sockets CPUs devices workers functions engines processes fronts stages layers ranks files "
    "servers requests tokens accelerators commands options sequences prompts interrupts GPUs NPUs chips blocks pages "
    "experts neighbours hosts clients shards parts lists"
).split()
ADJECTIVES = (
    "allowed API attention compute CPU decode free GGUF KV live logical memory more NUMA output PCI physical prefill "
    "processor prompt query sampled visible waiting"
).split()
# A plural behind a value, at once or behind adjectives; rates such as tokens/s are no counts.
_COUNTED = re.compile(rf" (?:(?:{'|'.join(ADJECTIVES)}) )*(?:{'|'.join(NOUNS)})\b(?!/)")
# Where a file has none of these, not even over several parts of a text, it need not be parsed.
_PERHAPS = re.compile(r"""\}(?:["'\s()fFrR\\]|#.*)*""" + _COUNTED.pattern)
# Values that are no numbers.
ALLOWED = {"architecture", "name", "told"}


def plurals(source: str) -> Iterator[tuple[int, str]]:
    """(line, `{value} noun`) of each f-string in which a plural stands behind a value."""
    for node in ast.walk(ast.parse(source)) if _PERHAPS.search(source) else ():
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            found = _COUNTED.match(str(text.value))
            expression = ast.unparse(value.value)
            constant = re.fullmatch(r"(?:\w+\.)*[A-Z_][A-Z0-9_]+", expression)
            if found and not constant and expression not in ALLOWED:
                yield value.lineno, f"{{{expression}}}{found[0]}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{n} threads"', ["{n} threads"]),
        ('f"{len(a)} NUMA nodes of"', ["{len(a)} NUMA nodes"]),
        ('f"with {a.b} physical cores" f"{c} x"', ["{a.b} physical cores"]),
        ("f\"{format_count(n, 'thread')} run\"", []),
        ('f"{_MOST_CPUS} CPUs are taken"', []),
        ('f"{rate:.1f} tokens/s"', []),
        ('(f"{a:>{width}}"\n f" more threads")', ["{a} more threads"]),
        ('(f"{n}"  # of it\n " threads")', ["{n} threads"]),
        ("f'{n}' rf' CPUs'", ["{n} CPUs"]),
        ('f"{n} of the threads"', []),
        ('f"{threads}: CPUs"', []),
    ],
)
def test_the_scan_finds_what_it_is_for(source: str, found: list[str]) -> None:
    assert [text for _, text in plurals(source)] == found


def test_numbers_in_front_of_plurals_are_counted() -> None:
    found = [f"{path}:{line}: {text}" for path in SOURCES for line, text in plurals(path.read_text(encoding="utf-8"))]
    assert found == [], "use format_count of homenode.units"


@pytest.mark.parametrize(
    ("counted", "text"),
    [
        (format_count(1, "thread"), "1 thread"),
        (format_count(0, "thread"), "0 threads"),
        (format_count(2, "loss", "losses"), "2 losses"),
        (format_count(1, "core is", "cores are"), "1 core is"),
        (format_count(1.0, "CPU"), "1 CPU"),
        (format_count(0.5, "CPU"), "0.5 CPUs"),
    ],
)
def test_counts(counted: str, text: str) -> None:
    assert counted == text


@given(st.integers(0, 1_000_000))
def test_one_alone_is_singular(number: int) -> None:
    assert format_count(number, "node").endswith("s") == (number != 1)
