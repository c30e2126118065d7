"""Every test that takes `backend` runs on each backend there is."""

from __future__ import annotations

import importlib.util

import pytest

from homenode.compute.ops import Backend
from homenode.compute.reference import ReferenceBackend
from tests.model.driver import ROUNDING_LEVELS, rounds_activations

# Families whose every operation other tests run with torch and NumPy already: their cases with these are slow ones.
_FOLLOWERS = (
    "test_llama_variations", "test_layer_norm_decoders", "test_picture_texts", "test_picture_models", "test_minicpm",
    "test_muse_glimmer",
)  # fmt: skip
_SLOW = {
    **dict.fromkeys(_FOLLOWERS, frozenset(("torch", "reference"))),
    **dict.fromkeys(("test_mamba_hybrids", "test_rarer_families", "test_further_families"), frozenset(("torch",))),
}
# Of the steps of several sequences that NumPy and torch compute too, models without and with experts and windows.
_STEPS_OF = frozenset(("llama", "mixtral-window", "gemma3"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what says little about a family beside its cases with the native core."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None:
            continue
        if _SLOW.get(item.path.stem, frozenset()).intersection(callspec.id.split("-")):
            item.add_marker(pytest.mark.slow)
        if item.path.stem == "test_transformers_parity" and "greedy_tokens" in item.name:
            given = callspec.params
            if {"torch", "reference"}.intersection(given.values()) and given["name"] not in _STEPS_OF:
                item.add_marker(pytest.mark.slow)


@pytest.fixture
def reference() -> Backend:
    """The NumPy oracle."""
    return ReferenceBackend()


@pytest.fixture(params=["reference", "native", "torch"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The NumPy oracle, the native core on two unpinned threads, torch on the CPU (skipped where they are
    not there).
    """
    return make_backend(request.param, rounding=True)


@pytest.fixture(params=["reference", "native", "torch"])
def exact_backend(request: pytest.FixtureRequest) -> Backend:
    """The same, at the best level that multiplies every float matrix, BF16 ones too, with float32 activations."""
    return make_backend(request.param, rounding=False)


@pytest.fixture
def rounding_backend() -> Backend:
    """The native core at a level that rounds what BF16 matrices are multiplied with to bfloat16 (skipped where there is
    none).
    """
    backend = make_backend("native", rounding=True)
    if not rounds_activations(backend):
        pytest.skip("this machine has no dot products of bfloat16 pairs")
    return backend


def make_backend(name: str, rounding: bool) -> Backend:
    if name == "reference":
        return ReferenceBackend()
    if name == "torch":
        pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")
        from homenode.compute.torch import open_backend

        return open_backend("torch:cpu")
    if importlib.util.find_spec("homenode._native") is None:
        pytest.skip("needs the compiled core (homenode._native), which is not built here")
    from homenode.compute.native import NativeBackend, available_levels

    levels = [level for level in available_levels() if rounding or level not in ROUNDING_LEVELS]
    return NativeBackend([-1, -1], spin_us=0, level=levels[-1])
