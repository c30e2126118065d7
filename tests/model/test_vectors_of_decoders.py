"""Vectors of decoders are the rows behind the last norm: whatever logits go through leaves them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.reference import ReferenceBackend
from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.pooling import PoolingSpec
from homenode.model.weights.load import load_model
from tests.model.driver import Driver, Sequence
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

DECODERS = [name for name in ARCHITECTURES if any(each.key == "lm_head" for each in ARCHITECTURES[name].parameters)]


@pytest.mark.parametrize("architecture", DECODERS)
def test_vectors_are_as_long_as_the_norm_makes_them(architecture: str, tmp_path: Path) -> None:
    spec = toy_spec(architecture)
    spec = replace(spec, pooling=PoolingSpec("last", spec.hidden_size))
    arrays = toy_arrays(spec)
    backend = ReferenceBackend()
    driver = Driver(load_model(array_checkpoint(tmp_path / "toy", spec, arrays), backend), backend, kv_dtype="f32")
    (row,) = driver.rows([(Sequence([5, 6, 7, 8]), 4)])
    norm = {each.key: each.name for each in ARCHITECTURES[architecture].parameters}.get("norm", "")
    row = (row - arrays.get(norm.removesuffix("weight") + "bias", 0.0)) / arrays.get(norm, 1.0)
    assert row.shape == (spec.hidden_size,) and np.sqrt(np.mean(row**2)) == pytest.approx(1, abs=1e-3)
