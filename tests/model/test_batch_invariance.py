"""A row's value depends on its own sequence only: bit for bit the same alone, in chunks, in company, and in other
blocks of the cache.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend, StepArrays, StepLimits
from homenode.compute.reference import ReferenceBackend
from homenode.model.weights.load import LoadedModel, load_model
from tests.model.driver import Driver, Sequence
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

LENGTHS = (130, 1, 33, 64)


def prompts() -> list[list[int]]:
    random = np.random.default_rng(11)
    return [random.integers(0, 80, n).tolist() for n in LENGTHS]


@pytest.fixture(params=["llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"])
def model(request: pytest.FixtureRequest, backend: Backend, tmp_path: Path) -> LoadedModel:
    spec = toy_spec(request.param)
    if request.param == "mistral":
        spec = replace(spec, sliding_window=40)
    return load_model(array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec)), backend)


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
def test_chunks_change_no_bit(model: LoadedModel, backend: Backend, kv_dtype: str) -> None:
    """The last tokens one by one, behind a part that ends with its block."""
    prompt = prompts()[0]
    _, whole = Driver(model, backend, kv_dtype=kv_dtype).prefill(prompt)
    for chunk in (7, 32, 65):
        _, cut = Driver(model, backend, kv_dtype=kv_dtype).prefill(prompt, chunk=chunk)
        assert np.array_equal(whole, cut)
    driver, sequence = Driver(model, backend, kv_dtype=kv_dtype), Sequence(list(prompt))
    rows = [driver.step([(sequence, count)], every_row=True) for count in (96, *[1] * 34)]
    assert np.array_equal(whole, np.concatenate(rows))


def test_company_changes_no_bit(model: LoadedModel, backend: Backend) -> None:
    alone = [Driver(model, backend).prefill(p)[1] for p in prompts()]
    driver = Driver(model, backend)
    together = [Sequence(p) for p in prompts()]
    rows = driver.step([(s, len(s.tokens)) for s in together], every_row=True)
    assert np.array_equal(np.concatenate(alone), rows)


@pytest.mark.parametrize("architecture", ["llama", "qwen2_moe", "qwen3_moe", "gemma2"])
def test_quantised_weights_change_no_bit(backend: Backend, tmp_path: Path, architecture: str) -> None:
    if "Q8_0" not in backend.weight_types():
        pytest.skip("this backend keeps no matrix quantised")
    spec = toy_spec(architecture)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    for quantize in ("q8_0", "q4_0"):
        model = load_model(checkpoint, backend, quantize=quantize)
        found = [Driver(model, backend).generate(prompts(), 12, chunk=c, stagger=g) for c, g in ((512, 0), (16, 3))]
        for one, other in zip(*found, strict=True):
            assert one.tokens == other.tokens
            assert np.array_equal(np.array(one.logprobs), np.array(other.logprobs))


def test_selected_rows_are_those_of_the_step(model: LoadedModel, backend: Backend) -> None:
    prompt = prompts()[2]
    _, every = Driver(model, backend).prefill(prompt)
    last = Driver(model, backend).step([(Sequence(prompt), len(prompt))])
    assert np.array_equal(every[-1:], last)


@pytest.mark.parametrize("window", [None, 600])
def test_long_contexts(backend: Backend, tmp_path: Path, window: int | None) -> None:
    """Beyond what a kernel may hold at once: against the oracle, and bit for bit however it is cut."""
    spec = replace(toy_spec("mistral"), sliding_window=window, max_position=2048)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    prompt = np.random.default_rng(2).integers(0, 80, 1300).tolist()
    model = load_model(checkpoint, backend)
    found, cut = (Driver(model, backend).prefill(prompt, chunk=chunk)[1] for chunk in (512, 93))
    assert np.array_equal(found, cut)
    oracle = ReferenceBackend()
    _, wanted = Driver(load_model(checkpoint, oracle), oracle).prefill(prompt)
    assert np.abs(found - wanted).max() < 5e-6 * np.ptp(wanted)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("ids", [80, 1, 2]), ("ids", [-1, 1, 2]), ("positions", [0, 1, 3]), ("query_start", [0, 2]),
        ("context_len", [9]),
        ("sample_rows", [3]), ("sample_rows", [-1]), ("block_table", [[64]]), ("block_table", [[-1]]),
    ],
)  # fmt: skip
def test_inconsistent_steps_are_refused(model: LoadedModel, backend: Backend, change: str, value: list[int]) -> None:
    cache = backend.kv_cache(model.kv_geometry(32), 64)
    program = backend.compile(model.forward(cache), StepLimits(8, 2, 8, 4))
    arrays = {
        "ids": [0, 1, 2],
        "positions": [0, 1, 2],
        "query_start": [0, 3],
        "context_len": [3],
        "block_table": [[5]],
        "sample_rows": [2],
    }
    good = StepArrays(**{k: np.array(v, np.int32) for k, v in arrays.items()})
    program.run(good)
    with pytest.raises(ValueError):
        program.run(StepArrays(**{k: np.array(v, np.int32) for k, v in (arrays | {change: value}).items()}))
