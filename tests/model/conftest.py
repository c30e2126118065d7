"""Every test that takes `backend` runs on each backend there is."""

from __future__ import annotations

import importlib.util

import pytest

from homenode.compute.ops import Backend
from homenode.compute.reference import ReferenceBackend


@pytest.fixture
def reference() -> Backend:
    """The NumPy oracle."""
    return ReferenceBackend()


@pytest.fixture(params=["reference", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The NumPy oracle, then the native core on two unpinned threads (skipped where it is not built)."""
    if request.param == "reference":
        return ReferenceBackend()
    if importlib.util.find_spec("homenode._native") is None:
        pytest.skip("needs the compiled core (homenode._native), which is not built here")
    from homenode.compute.native import NativeBackend

    return NativeBackend([-1, -1])
