"""A whole model over several homes: the same bits as on one thread, whatever the policy, alone and beside others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.thread_memory import ThreadMemory
from homenode.model.weights.load import load_model
from homenode.numa_policy import MATRIX_POLICIES, NumaPolicy
from tests.model.driver import Driver
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

PROMPTS = [[t % 79 for t in range(3, 90)], [7, 1, 5], [t * 7 % 80 for t in range(300)]]


def over(homes: tuple[int, ...], interleaved: bool = False) -> NativeBackend:
    memory = ThreadMemory(homes, tuple(0 for _ in set(homes)), bound=False, interleaved=interleaved)
    return NativeBackend([-1] * len(homes), spin_us=20, groups=[(home,) for home in homes], memory=memory)


def answers(path: Path, architecture: str, backend: NativeBackend, policy: NumaPolicy) -> list[np.ndarray]:
    """Log-probabilities of prompts, one by one and then of a step with all of them."""
    spec = toy_spec(architecture, num_heads=8, num_kv_heads=4, max_position=512)
    model = load_model(
        array_checkpoint(path, spec, toy_arrays(spec)), backend, quantize="q8_0", matrix_policy_of=lambda name: policy
    )
    driver = Driver(model, backend)
    prefilled = [driver.prefill(prompt) for prompt in PROMPTS]
    sequences = [sequence for sequence, _ in prefilled]
    for sequence in sequences:
        sequence.tokens.append(11)
    return [*(found for _, found in prefilled), driver.step([(sequence, 1) for sequence in sequences])]


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "qwen3_next"])
@pytest.mark.parametrize("homes", [(0, 1), (0, 0, 1, 1), (0, 1, 2, 3, 4, 5), (0, 0, 0, 1), (1, 0)])
def test_homes_change_no_bit(tmp_path: Path, architecture: str, homes: tuple[int, ...]) -> None:
    wanted = answers(tmp_path / "alone", architecture, NativeBackend([-1], spin_us=20), NumaPolicy.SHARD)
    for policy in MATRIX_POLICIES:
        found = answers(tmp_path / policy, architecture, over(homes, policy == "interleave"), policy)
        for seen, expected in zip(found, wanted, strict=True):
            assert np.array_equal(seen, expected), policy
