"""The table of families in docs/models.md is what the code and the tests say now."""

from __future__ import annotations

from homenode.model.architectures.registry import ARCHITECTURES
from tools.models_table import LIMITS, NOTES, PAGE, SIZES, page


def test_the_page_has_the_table_of_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.models_table"


def test_every_family_has_its_line_and_is_compared() -> None:
    assert SIZES.keys() >= ARCHITECTURES.keys(), "tools/models_table.py: say which sizes people run"
    lines = [line for line in page().splitlines() if line.startswith("| ")]
    for architecture in ARCHITECTURES.values():
        (line,) = (each for each in lines if each.startswith(f"| {architecture.folder.class_name}"))
        assert "| folder" in line, f"no test under tests/model compares {architecture.name} with transformers"


def test_notes_are_of_families_that_are_told_of() -> None:
    assert SIZES.keys() >= {*NOTES, *LIMITS}
