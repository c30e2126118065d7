"""Types of JSON by the names that clients and models have for them."""

from __future__ import annotations

import pytest

from homenode.json_types import JSON_TYPES, standard_types


@pytest.mark.parametrize("name", JSON_TYPES)
def test_names_of_json_schema_mean_themselves_in_any_case(name: str) -> None:
    assert all(standard_types(word) == {name} for word in (name, name.upper(), name.title(), f" {name} "))


@pytest.mark.parametrize(
    ("spelling", "kinds"),
    [
        ("int", {"integer"}),
        ("int64", {"integer"}),
        ("uint8", {"integer"}),
        ("float32", {"number"}),
        ("Double", {"number"}),
        ("bool", {"boolean"}),
        ("str", {"string"}),
        ("list", {"array"}),
        ("list[str]", {"array"}),
        ("array<string>", {"array"}),
        ("Dict[str, list[int]]", {"object"}),
        ("NoneType", {"null"}),
        ("str | None", {"string", "null"}),
        ("string|null", {"string", "null"}),
        ("Optional[float]", {"number", "null"}),
        ("typing.Union[int, dict[str, int]]", {"integer", "object"}),
        ("any", None),
        ("int | Any", None),
        ("colour", {"colour"}),
        ("", {""}),
        ("[[[", {"[[["}),
    ],
)
def test_other_spellings_mean_types(spelling: str, kinds: set[str] | None) -> None:
    assert standard_types(spelling) == kinds


def test_a_long_word_is_not_taken_apart() -> None:
    word = "optional[" * 100_000
    assert standard_types(word) == {word}
