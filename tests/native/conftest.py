"""Backends at every level this machine has."""

from __future__ import annotations

import pytest

pytest.importorskip("homenode._native", reason="the compiled core is not built; `make build` builds it")

from homenode.compute.native import NativeBackend, available_levels


@pytest.fixture(params=available_levels())
def level(request: pytest.FixtureRequest) -> str:
    """An instruction set level; results of one level are compared bit by bit, those of two by a bound."""
    name: str = request.param
    return name


@pytest.fixture
def backend(level: str) -> NativeBackend:
    """Two unpinned threads at `level`."""
    return NativeBackend([-1, -1], spin_us=20, level=level)
