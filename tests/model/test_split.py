"""Models cut into stages, ranks and experts answer as whole ones: every architecture, storage formats, and a real model's golden text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.model.checkpoint.spec import Checkpoint, ModelSpec
from homenode.model.expert_placement import ExpertUse
from homenode.model.parts import Division
from homenode.model.weights.load import load_model
from tests.model.driver import Driver
from tests.model.split import split_driver
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

PROMPTS = [[5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61], [3, 1, 4], [60, 20, 7, 7, 9]]
RELATIVE = 1e-5  # sums over ranks are added in another order
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"output_bias": True, "mlp_bias": True, "attention_bias": True},
    "mistral": {"sliding_window": 6, "tie_word_embeddings": True},
    "mixtral": {},
    "qwen2": {"sliding_window": 5, "sliding_layers": (False, True, False), "tie_word_embeddings": True},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
}
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
SPLITS = [
    Division(ranks=2),
    Division(ranks=3),
    Division(ranks=6),
    Division(stages=2),
    Division(stages=3),
    Division(stages=2, ranks=2, layers=(1, 2)),
    Division(stages=3, ranks=3),
]
EXPERT_SPLITS = [
    Division(ranks=2, experts_whole=True),
    Division(ranks=3, experts_whole=True, placement="packed"),
    Division(stages=2, ranks=2, experts_whole=True, placement="packed"),
]


def toy(path: Path, architecture: str) -> Checkpoint:
    spec = three_layers(architecture)
    return array_checkpoint(path, spec, toy_arrays(spec))


def three_layers(architecture: str) -> ModelSpec:
    return toy_spec(architecture, num_layers=3, **ARCHITECTURES[architecture])


def name(how: Division) -> str:
    whole = f"-experts-{how.placement if isinstance(how.placement, str) else 'counted'}" if how.experts_whole else ""
    return f"stages{how.stages}-ranks{how.ranks}{whole}"


def whole_driver(checkpoint: Checkpoint, **settings: Any) -> Driver:
    backend = ReferenceBackend()
    return Driver(load_model(checkpoint, backend, **settings), backend)


def check_same(checkpoint: Checkpoint, how: Division, relative: float = RELATIVE, **settings: Any) -> None:
    """The same tokens of several sequences in the same steps, and log-probabilities as close as that; of stages alone the same bits."""
    wanted = whole_driver(checkpoint, **settings).generate(PROMPTS, 6, chunk=4, stagger=2)
    found = split_driver(checkpoint, how, **settings).generate(PROMPTS, 6, chunk=4, stagger=2)
    for one, other in zip(wanted, found, strict=True):
        near(np.stack(other.logprobs), np.stack(one.logprobs), 0.0 if how.ranks == 1 else relative)
        assert one.tokens == other.tokens


def near(found: FloatArray, wanted: FloatArray, relative: float) -> None:
    error = np.abs(found - wanted).max()
    assert error <= relative * np.ptp(wanted), error / np.ptp(wanted)


@pytest.mark.parametrize("how", SPLITS, ids=name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_answers_in_parts_as_whole(tmp_path: Path, architecture: str, how: Division) -> None:
    check_same(toy(tmp_path / "weights", architecture), how)


@pytest.mark.parametrize("how", EXPERT_SPLITS, ids=name)
@pytest.mark.parametrize("architecture", MIXTURES)
def test_experts_divided_as_wholes(tmp_path: Path, architecture: str, how: Division) -> None:
    check_same(toy(tmp_path / "weights", architecture), how)


def test_experts_placed_by_how_often_they_are_used(tmp_path: Path) -> None:
    spec = three_layers("qwen3_moe")
    counts = ((), tuple(float(i * 7 % 9) for i in range(9)), tuple(float(9 - i) for i in range(9)))
    how = Division(ranks=2, experts_whole=True, placement=ExpertUse(counts), accelerators=(1,))
    check_same(array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec)), how)
