"""Which products of a forward function ask for activations that are never as coarse as bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.compute.ops import Precision
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.ops import EagerOps
from homenode.model.weights.load import load_model
from tests.model.driver import Driver, Sequence
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec


@pytest.mark.parametrize(
    ("architecture", "fine"), [("llama", 0), ("gemma2", 0), ("ernie4_5_moe", 3), ("qwen3_moe", 3), ("minimax_m3", 4)]
)
def test_before_routers_rows_are_multiplied_finely(
    architecture: str, fine: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two layers: their queries, keys and values, and what a dense layer makes of them, where one has a router;
    MiniMax M3 has one more for the choice of blocks.
    """
    asked, linear = list[str](), EagerOps.linear

    def told(ops: EagerOps, *given: Any, precision: Precision = "usual", **named: Any) -> Any:
        asked.append(precision)
        return linear(ops, *given, precision=precision, **named)

    monkeypatch.setattr(EagerOps, "linear", told)
    spec, backend = toy_spec(architecture), ReferenceBackend()
    model = load_model(array_checkpoint(tmp_path / "model", spec, toy_arrays(spec)), backend)
    Driver(model, backend).step([(Sequence([3, 4, 5]), 3)])
    assert asked.count("fine") == fine
