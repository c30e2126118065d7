"""Several adapters of one model in whole engines: each request has its own, whatever runs beside it and whatever KV was
kept of others. The adapters are pairs of low rank (`tests/model/low_rank.py`); the models that they are compared with
have them merged into their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig
from homenode.engine.messages import Output
from homenode.engine.plan.opened_model import open_engine_model
from homenode.engine.request import AdapterChoice, Request
from homenode.engine.runtime import build
from homenode.engine.worker import load
from homenode.model.checkpoint.index import OpenedAdapter, OpenedCheckpoint, open_checkpoint
from homenode.model.weights.load import LoadedModel, load_model
from homenode.sampling import SamplingParams
from tests.engine.engines import config_for, greedy, outputs_of, tokens_of
from tests.engine.live import BUILTIN
from tests.model.low_rank import Adapter, adapted, merged, random_adapter

FOLDER = BUILTIN.parent
BEGINNING = [(7 + 5 * k) % 900 for k in range(64)]
PROMPTS = [[*BEGINNING, *((n + 11 * k) % 900 for k in range(length))] for n, length in enumerate((30, 5, 17))]
PARAMS = greedy(8, logprobs=0)
CHOICES: dict[int, AdapterChoice | None] = {-1: None} | {n: AdapterChoice(n, f"{n:032x}") for n in range(2)}
ENDINGS = (("_proj.weight",), ("q_proj.weight", "down_proj.weight"))


@cache
def arrays() -> dict[str, FloatArray]:
    model = load_model(open_checkpoint(FOLDER), ReferenceBackend(), dtype="float32")
    return {name: array for name, array in model.parameters.by_name.items() if array.ndim == 2}


@cache
def adapters() -> list[Adapter]:
    return [random_adapter(arrays(), ending, 4, seed) for seed, ending in enumerate(ENDINGS)]


def with_merged(model: LoadedModel, backend: Backend, adapter: Adapter) -> LoadedModel:
    """The model with other weights in the places of those that the adapter changes."""
    changed = merged({name: arrays()[name] for name in adapter}, adapter)
    made = {id(model.parameters.by_name[name]): backend.weight_from_array(array, "F32")
            for name, array in changed.items()}  # fmt: skip
    layers = tuple(
        {key: made.get(id(handle), handle) for key, handle in layer.items()} for layer in model.parameters.layers
    )
    return replace(model, parameters=replace(model.parameters, layers=layers))


def opened_with_adapters(config: EngineConfig) -> OpenedCheckpoint:
    named = tuple(OpenedAdapter(f"tuned-{choice.number}", choice.digest) for choice in CHOICES.values() if choice)
    return replace(open_engine_model(config), adapters=named)


def engine_of(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[LoadedModel, Backend], LoadedModel], **settings: Any
) -> LocalEngine:
    """An engine whose model is changed when it was loaded."""

    def loaded(checkpoint: Any, backend: Backend, **more: Any) -> LoadedModel:
        return change(load_model(checkpoint, backend, **more), backend)

    chosen = {"threads": 1, "block_size": 32, "kv_cache_memory": "4MiB", "max_model_len": 192, "dtype": "float32"}
    with monkeypatch.context() as patched:
        patched.setattr(load, "load_model", loaded)
        patched.setattr(build, "open_engine_model", opened_with_adapters)
        return LocalEngine(config_for(FOLDER, **chosen | settings))


def run(
    engine: LocalEngine, asked: Sequence[tuple[list[int], AdapterChoice | None]], params: SamplingParams = PARAMS
) -> list[list[Output]]:
    requests = [Request(id=n, prompt_ids=ids, params=params, adapter=of) for n, (ids, of) in enumerate(asked, 1)]
    return outputs_of(engine, requests)


def logprobs_of(outputs: Sequence[Output]) -> list[float]:
    assert outputs[-1].error is None, outputs[-1].error
    return [logprob.logprob for output in outputs for logprob in output.logprobs]


BACKENDS = ("reference", "native")


def with_adapters(model: LoadedModel, backend: Backend) -> LoadedModel:
    return adapted(model, backend, adapters())


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_with_adapters_and_without_share_steps_and_no_kv(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Their prompts begin alike: what one has computed is found by who has the same adapter, and by nobody else."""
    engine = engine_of(monkeypatch, with_adapters, backend=backend, max_num_batched_tokens=48)
    asked = [(prompt, choice) for prompt in PROMPTS for choice in CHOICES.values()]
    try:
        found, again = run(engine, asked), run(engine, asked)
    finally:
        engine.close()
    assert all(outputs[0].cached_tokens >= 64 for outputs in again)
    assert [tokens_of(each) for each in again] == [tokens_of(each) for each in found]
    assert [logprobs_of(each) for each in again] == [logprobs_of(each) for each in found]
    for number, choice in CHOICES.items():
        mine = [each for each, (_, of) in zip(found, asked, strict=True) if of == choice]
        alone = engine_of(
            monkeypatch,
            (lambda model, backend, n=number: model if n < 0 else with_merged(model, backend, adapters()[n])),
            backend=backend,
        )
        try:
            wanted = run(alone, [(prompt, None) for prompt in PROMPTS])
        finally:
            alone.close()
        assert [tokens_of(each) for each in mine] == [tokens_of(each) for each in wanted]
        for one, other in zip(mine, wanted, strict=True):
            np.testing.assert_allclose(logprobs_of(one), logprobs_of(other), atol=2e-3)
    told = {tuple(tokens_of(each)) for each in found}
    assert len(told) > len(PROMPTS)  # the adapters change what is said


def test_an_adapter_is_kept_over_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {"kv_cache_memory": "768KiB", "max_num_seqs": 4, "max_num_batched_tokens": 48}
    engine = engine_of(monkeypatch, with_adapters, **narrow)
    alone = engine_of(monkeypatch, with_adapters, enable_prefix_caching=False)
    asked = [(prompt, choice) for choice in CHOICES.values() for prompt in PROMPTS]
    params = greedy(50, logprobs=0)
    try:
        wanted = [run(alone, [one], params)[0] for one in asked]
        found = run(engine, asked, params)
        assert [tokens_of(each) for each in found] == [tokens_of(each) for each in wanted]
        assert engine.statistics.preemptions > 0
    finally:
        engine.close()
        alone.close()


def test_an_adapter_that_the_engine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(monkeypatch, with_adapters, backend="reference")
    try:
        assert engine.ready.adapters == {"tuned-0": CHOICES[0], "tuned-1": CHOICES[1]}
        (outputs,) = run(engine, [(PROMPTS[0], AdapterChoice(2, "c"))])
    finally:
        engine.close()
    assert "2 adapters and none of the number 2" in str(outputs[-1].error)
