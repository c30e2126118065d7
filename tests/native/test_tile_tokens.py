"""Tokens of a tile at each level, by which pieces of prompts are cut."""

from __future__ import annotations

import pytest

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.native.capability import available_levels

KNOWN = {"scalar": 1, "avx2": 2, "avx2vnni": 2, "avx512": 6, "avx512bf16": 6, "amx": 12}


@pytest.mark.parametrize("name", available_levels())
def test_every_level_says_how_many_tokens_its_tiles_take(name: str) -> None:
    tokens = _native.tile_tokens(_native.Level[name])
    assert tokens == KNOWN.get(name, tokens) and 1 <= tokens <= 32


def test_a_backend_says_those_of_its_level() -> None:
    assert NativeBackend([-1], level="scalar").tile_tokens == 1
