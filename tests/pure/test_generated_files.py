"""What is written from the table of sampling parameters and from the compiled core is what is checked in."""

from __future__ import annotations

import dataclasses

import pytest

from homenode.sampling import SETTINGS
from tools import stubs


def test_files_are_what_would_be_written() -> None:
    assert stubs.stale() == [], "run make stubs"


@pytest.mark.parametrize("name", ["csrc/sampling/settings.h", "docs/sampling.md"])
def test_another_table_makes_a_file_stale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "min_p", dataclasses.replace(SETTINGS["min_p"], high=0.5))
    assert name in stubs.stale()
