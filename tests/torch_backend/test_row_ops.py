"""What is written once for NumPy and torch is the same in both, and every activation has a name in the native core."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from homenode.compute.activations import PAIRS, PLAIN, gated
from homenode.compute.row_ops import RowOps
from homenode.compute.torch import tensors  # noqa: F401 (the functions of tensors)
from tests.paths import ROOT


class OnlyRows(RowOps):
    """The operations alone."""


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


OPS, X, Y, GATE = OnlyRows(), 3 * random(5, 24), random(5, 24, seed=1), random(5, 1, seed=2)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "split": (lambda x: OPS.split(x, [4, 20])[1], (X,)),
    "join_heads": (lambda x, y: OPS.join_heads(x, y, 4), (X, Y)),
    "regroup": (lambda x: OPS.regroup(x, [1, 3, 2]), (X,)),
    "clamp": (lambda x: OPS.clamp(x, 1.5), (X,)),
    "scale": (lambda x: OPS.scale(x, 0.3), (X,)),
    "scale by a parameter": (OPS.scale, (X, random(1))),
    "multiply": (OPS.multiply, (X, random(24))),
    "sigmoid_mul": (OPS.sigmoid_mul, (X, 60 * Y)),
    "add_gated": (OPS.add_gated, (X, Y, GATE)),
    "gate_by_largest": (OPS.gate_by_largest, (X, Y)),
    "add_weighted": (lambda x, y, by: OPS.add_weighted(x, y, by, 8, 0.5), (X, random(5, 16), random(5, 6))),
    "match_magnitude": (lambda x, y: OPS.match_magnitude(x, y, 1e-5), (X, random(5, 8))),
    "relu_above": (lambda x: OPS.relu_above(x, 0.7), (X,)),
    "soft_cap": (lambda x: OPS.soft_cap(x, 2.0), (X,)),
    "silu_mul": (OPS.silu_mul, (X,)),
    "gelu_mul": (lambda x, y: OPS.gelu_mul(x, y, "gelu_erf"), (X, Y)),
}


@pytest.mark.parametrize("name", CALLS)
def test_operations(name: str) -> None:
    call, inputs = CALLS[name]
    wanted = call(*inputs)
    found = call(*(torch.from_numpy(x) for x in inputs))
    assert wanted.dtype == np.float32 and found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*PLAIN, *PAIRS])
def test_activations(name: Any) -> None:
    """Far from zero as well."""
    gate = np.concatenate([X, [[0, -0.0, 1, -1, 20, -20, 50, -50, 1e4, -1e4, 1e-4, -1e-4] * 2]]).astype(np.float32)
    up = random(*gate.shape, seed=3)
    wanted, found = gated(gate, up, name), gated(torch.from_numpy(gate), torch.from_numpy(up), name)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_the_native_core_has_the_same_names() -> None:
    text = (ROOT / "csrc/kernels/activation.h").read_text(encoding="utf-8")
    plain, pairs = (re.findall(r"X\((\w+)\)", line) for line in text.splitlines() if "ACTIVATIONS(X) X(" in line)
    assert plain == list(PLAIN) and pairs == list(PAIRS)
