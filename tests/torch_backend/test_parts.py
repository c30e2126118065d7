"""Stages, ranks and experts on torch, alone and beside the native core and the NumPy backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, StepArrays, StepLimits
from homenode.compute.reference import ReferenceBackend
from homenode.compute.torch import open_backend
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.model.conftest import make_backend
from tests.model.driver import Driver
from tests.model.split import split_driver
from tests.model.test_split import (
    ARCHITECTURES,
    EXPERT_SPLITS,
    MIXTURES,
    MORE_EXPERT_SPLITS,
    check_golden,
    cuts,
    generated,
    name,
    toy,
)
from tests.paths import STORIES, STORIES_MIXTURE, needs_data

BOUND = 2e-5  # other orders of float32 sums, as a share of the spread
SPLITS = [PartitionSpec(ranks=3), PartitionSpec(stages=2, ranks=2, layers=(1, 2))]


def on_torch() -> Backend:
    return open_backend("torch:cpu")


# Families that differ in no such way are divided by the reference in test_split.
@pytest.mark.parametrize(("architecture", "how"), cuts(ARCHITECTURES, [], SPLITS))
def test_parts_answer_as_the_reference_does_whole(tmp_path: Path, architecture: str, how: PartitionSpec) -> None:
    check(toy(tmp_path / "weights", architecture), how)


@pytest.mark.parametrize(("architecture", "how"), cuts(MIXTURES, [], EXPERT_SPLITS + MORE_EXPERT_SPLITS))
def test_experts_divided_as_wholes(tmp_path: Path, architecture: str, how: PartitionSpec) -> None:
    check(toy(tmp_path / "weights", architecture), how)


def check(checkpoint: Any, how: PartitionSpec) -> None:
    reference = ReferenceBackend()
    wanted = generated(Driver(load_model(checkpoint, reference), reference, kv_dtype="f32"))
    found = generated(split_driver(checkpoint, how, on_torch, kv_dtype="f32"))
    for one, other in zip(found, wanted, strict=True):
        expected = np.stack(other.logprobs)
        assert one.tokens == other.tokens
        assert np.abs(np.stack(one.logprobs) - expected).max() < BOUND * np.ptp(expected)


def test_stages_change_no_bit(tmp_path: Path) -> None:
    checkpoint, backend = toy(tmp_path / "weights", "qwen3_moe"), on_torch()
    whole = generated(Driver(load_model(checkpoint, backend), backend))
    cut = generated(split_driver(checkpoint, PartitionSpec(stages=3), on_torch))
    assert all(
        np.array_equal(np.stack(one.logprobs), np.stack(other.logprobs)) for one, other in zip(whole, cut, strict=True)
    )


@needs_data
@pytest.mark.parametrize("order", [("native", "torch"), ("torch", "native"), ("reference", "torch")], ids="-".join)
def test_golden_texts_of_two_stages_on_two_backends(order: tuple[str, str]) -> None:
    from homenode.model.checkpoint.index import open_checkpoint

    turn: Iterator[str] = iter(order)
    check_golden(
        open_checkpoint(STORIES),
        PartitionSpec(stages=2, layers=(2, 3)),
        lambda: make_backend(next(turn), rounding=True),
    )


@needs_data
@pytest.mark.parametrize(
    "how", [PartitionSpec(ranks=2, experts_whole=True), PartitionSpec(stages=2, ranks=2)], ids=name
)
def test_golden_texts_of_experts_on_ranks(how: PartitionSpec) -> None:
    from homenode.model.checkpoint.index import open_checkpoint

    check_golden(open_checkpoint(STORIES_MIXTURE), how, on_torch)


def test_rows_of_another_width_are_refused() -> None:
    backend = on_torch()
    program = backend.compile(lambda ops: ops.received(8), StepLimits(4, 1, 4, 1))
    numbers = np.zeros(1, np.int32)
    starts, context = np.array([0, 1], np.int32), np.ones(1, np.int32)
    with pytest.raises(ValueError, match="of 8 columns were expected"):
        program.run(
            StepArrays(numbers, numbers, starts, context, numbers.reshape(1, 1), numbers, np.zeros((1, 7), np.float32))
        )
    with pytest.raises(ValueError, match="rows of the stage before are None"):
        program.run(StepArrays(numbers, numbers, starts, context, numbers.reshape(1, 1), numbers))
