"""The tables in docs/models.md are what the code, the tests and the lists say now."""

from __future__ import annotations

import pytest

from homenode.model.architectures.registry import ARCHITECTURES
from tools.model_lists import read_lists
from tools.models_table import LIMITS, NOTES, PAGE, SIZES, page


@pytest.fixture(scope="module")
def written() -> str:
    """The page with the tables of now: every file of tests/model is searched for every architecture."""
    return page()


def test_the_page_has_the_table_of_now(written: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == written, "run: python -m tools.models_table"


def test_every_family_has_its_line_and_is_compared(written: str) -> None:
    assert SIZES.keys() >= ARCHITECTURES.keys(), "tools/models_table.py: say which sizes people run"
    lines = [line for line in written.splitlines() if line.startswith("| ")]
    for architecture in ARCHITECTURES.values():
        (line,) = (each for each in lines if each.startswith(f"| {architecture.folder.class_name}"))
        assert "| folder" in line, f"no test under tests/model compares {architecture.name} with transformers"


def test_notes_are_of_families_that_are_told_of() -> None:
    assert SIZES.keys() >= {*NOTES, *LIMITS}


def test_the_lists_tell_of_every_model_once_and_by_the_registry(written: str) -> None:
    lists = read_lists()
    cells = "\n".join(line for line in written.splitlines() if line.startswith("| "))
    for title, models in lists.items():
        assert len({model.name for model in models}) == len(models), title
        assert all(model.name in cells for model in models), title
    curated = lists["Lemonade's curated GGUF models (August 2026)"]
    assert len(curated) == 90
    by_name = {model.name: model.loads for model in curated}
    assert by_name["Qwen3-8B"] and by_name["Qwen2.5-VL-7B-Instruct"]  # the text of one that sees pictures
    (whisper,) = (model for models in lists.values() for model in models if model.gguf == "whisper")
    assert not whisper.loads
