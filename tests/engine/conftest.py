"""What of the tests of engines is left to `make test-all`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave there the mixture on torch in steps of all kinds: it is asked in those in which sequences preempt each
    other, and the model without experts in all.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        if item.path.stem == "test_golden" and callspec is not None:
            words = set(callspec.id.split("-"))
            if {"torch", "qwen3_moe"} <= words and "settings" in callspec.params and "preempted" not in words:
                item.add_marker(pytest.mark.slow)
