"""What of the tests of engines is left to `make test-all`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave there steps of further kinds on NumPy and torch: the mixture is asked in those in which sequences preempt
    each other, the model without experts in batches and chunks, too; the native core is asked in all.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        if item.path.stem == "test_golden" and callspec is not None and "settings" in callspec.params:
            words = set(callspec.id.split("-"))
            further = "preempted" not in words if "qwen3_moe" in words else words & {"whole", "one_thread"}
            if words & {"torch", "reference"} and further:
                item.add_marker(pytest.mark.slow)
