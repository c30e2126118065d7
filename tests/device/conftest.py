"""The torch backend on the first card."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")

from homenode.compute.torch import TorchBackend, open_backend  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a card."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.path.parent.name == "device":
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))


@pytest.fixture(params=["eager", "captured"])
def card(request: pytest.FixtureRequest) -> TorchBackend:
    """The first card, with and without captured steps."""
    return open_backend("cuda:0", enforce_eager=request.param == "eager")
