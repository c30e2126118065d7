"""Several adapters of one model in the same steps: each sequence as a model with its pairs merged into the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend, StepLimits
from homenode.engine.worker.row_programs import RowsAndLogits
from homenode.model.weights.load import load_model
from tests.model.driver import Driver, Sequence
from tests.model.low_rank import adapted, merged, random_adapter
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

PROMPTS = [[(7 + 13 * n + 5 * k) % 80 for k in range(length)] for n, length in enumerate((30, 12, 30, 5, 21))]
ADAPTERS = [0, -1, 1, 0, 1]
EVERYWHERE = ("_proj.weight", "lm_head.weight")
SOME = ("v_proj.weight", "gate_proj.weight", "down_proj.weight")


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen2_moe"])
def test_each_sequence_has_its_own(exact_backend: Backend, tmp_path: Path, architecture: str) -> None:
    """Projections that are one product, biases, norms between, products of experts beside, and the output matrix."""
    spec, backend = toy_spec(architecture), exact_backend
    arrays = toy_arrays(spec)
    not_experts = {name: array for name, array in arrays.items() if ".experts." not in name and array.ndim == 2}
    adapters = [random_adapter(not_experts, EVERYWHERE, 4, 1), random_adapter(not_experts, SOME, 4, 2)]
    plain = load_model(array_checkpoint(tmp_path / "weights", spec, arrays), backend, dtype="float32")
    driver = Driver(adapted(plain, backend, adapters), backend)
    found = driver.generate(PROMPTS, 8, chunk=16, stagger=2, adapters=ADAPTERS)
    models = {-1: plain} | {
        number: load_model(
            array_checkpoint(tmp_path / f"merged{number}", spec, merged(arrays, adapter)), backend, dtype="float32"
        )
        for number, adapter in enumerate(adapters)
    }
    wanted = {number: Driver(model, backend).generate(PROMPTS, 8) for number, model in models.items()}
    for number, (sequence, adapter) in enumerate(zip(found, ADAPTERS, strict=True)):
        of_it = wanted[adapter][number]
        assert sequence.tokens == of_it.tokens
        np.testing.assert_allclose(sequence.logprobs, of_it.logprobs, atol=2e-3)
        others = [each[number] for of, each in wanted.items() if of != adapter]
        assert all(np.abs(sequence.logprobs[0] - other.logprobs[0]).max() > 0.05 for other in others)


def test_what_is_beside_a_sequence_changes_nothing_of_it(backend: Backend, tmp_path: Path) -> None:
    """Alone, with others of other adapters, and cut in another way: the same bits. Without an adapter, those of the
    model without any.
    """
    spec = toy_spec("llama")
    arrays = toy_arrays(spec)
    adapters = [random_adapter(arrays, ending, 4, seed) for seed, ending in enumerate((EVERYWHERE, SOME))]
    plain = load_model(array_checkpoint(tmp_path / "weights", spec, arrays), backend)
    driver = Driver(adapted(plain, backend, adapters), backend)
    together = driver.generate(PROMPTS, 6, chunk=16, adapters=ADAPTERS)
    for number, adapter in enumerate(ADAPTERS):
        (alone,) = driver.generate([PROMPTS[number]], 6, chunk=7, adapters=[adapter])
        assert np.array_equal(alone.logprobs, together[number].logprobs)
    (without,) = Driver(plain, backend).generate([PROMPTS[1]], 6)
    assert np.array_equal(without.logprobs, together[1].logprobs)


def test_scores_of_all_rows_are_those_of_selected_ones(backend: Backend, tmp_path: Path) -> None:
    spec = toy_spec("llama")
    arrays = toy_arrays(spec)
    plain = load_model(array_checkpoint(tmp_path / "weights", spec, arrays), backend)
    driver = Driver(adapted(plain, backend, [random_adapter(arrays, EVERYWHERE, 4, 3)]), backend)
    every, last = (Sequence(PROMPTS[0].copy(), adapter=0) for _ in range(2))
    rows = driver.step([(every, len(PROMPTS[0]))], every_row=True)
    assert np.array_equal(driver.step([(last, len(PROMPTS[0]))])[0], rows[-1])


def test_rows_that_are_kept_for_drafts_have_the_logits_of_their_sequence(backend: Backend, tmp_path: Path) -> None:
    """The head is a program of its own there, whose rows come from sequences of several adapters."""
    spec = toy_spec("llama")
    arrays = toy_arrays(spec)
    plain = load_model(array_checkpoint(tmp_path / "weights", spec, arrays), backend)
    adapters = [random_adapter(arrays, ending, 4, seed) for seed, ending in enumerate((EVERYWHERE, SOME))]
    model = adapted(plain, backend, adapters)
    cache, limits = backend.kv_cache(model.kv_geometry(32), 64), StepLimits(64, 16, 64, 64)
    layers = backend.compile(model.forward(cache, keeps_rows="all"), limits)
    head = backend.compile(model.head_of_rows("all"), StepLimits(64, 64, 64, 1))
    kept = Driver(model, backend, program=RowsAndLogits(layers, head))
    found = kept.generate(PROMPTS, 4, chunk=12, adapters=ADAPTERS)
    wanted = Driver(model, backend).generate(PROMPTS, 4, chunk=12, adapters=ADAPTERS)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one.logprobs, other.logprobs)
