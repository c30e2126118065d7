"""Errors that crossed a process come back as what they were, whatever they were made of."""

from __future__ import annotations

import pytest

from homenode import errors
from homenode.engine.errors import named_error
from homenode.errors import HomenodeError, PlacementError, UserError

KINDS = sorted(
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, HomenodeError)
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_with_its_message(kind: str) -> None:
    found = named_error(kind, "what was wrong")
    assert "what was wrong" in str(found)
    assert isinstance(found, UserError if kind == PlacementError.__name__ else getattr(errors, kind))


@pytest.mark.parametrize("kind", [None, "", "OSError", "annotations"])
def test_any_other_kind_is_ours(kind: str | None) -> None:
    assert type(named_error(kind, "text")) is errors.InternalError
