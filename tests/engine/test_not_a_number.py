"""A request for which the model computes a NaN ends with an error, and those beside it say what they would have said without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.engine.local import LocalEngine
from homenode.engine.messages import Output
from homenode.engine.request import SamplingParams
from tests.checkpoints import toy_config, toy_tensors, write_safetensors
from tests.engine.engines import BACKENDS, config_for, greedy, run_all, tokens_of

_BAD_TOKEN = 7
SHAPES: list[dict[str, Any]] = [{}, {"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which one token has no numbers; its logit is as good as any."""
    folder = tmp_path_factory.mktemp("broken")
    config = toy_config()
    tensors = toy_tensors(config)
    tensors["model.embed_tokens.weight"][_BAD_TOKEN] = np.nan
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _ended(outputs: list[Output]) -> str | None:
    return outputs[-1].finish_reason


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: next(iter(shape), "one"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_without_numbers_ends_alone(model: Path, backend: str, shape: dict[str, Any]) -> None:
    if shape and backend != "native":
        pytest.skip("workers are tested with the native backend")
    good = [[3, 4, 5], [20, 21, 22, 23], [40] * 40]
    params = [
        greedy(12),
        greedy(12, logprobs=2),
        SamplingParams(max_tokens=12, temperature=0.8, seed=5, ignore_eos=True),
    ]
    engine = LocalEngine(
        config_for(model, backend=backend, kv_cache_memory="1MiB", block_size=32, max_num_batched_tokens=24, **shape)
    )
    try:
        wanted = [tokens_of(outputs) for outputs in run_all(engine, good, params)]
        bad = [[9, _BAD_TOKEN, 9], [9, 9, _BAD_TOKEN], [_BAD_TOKEN] * 40]
        bad_params = [greedy(12, logprobs=1), greedy(12, repetition_penalty=1.5), greedy(12, prompt_logprobs=0)]
        mixed = run_all(
            engine, [p for pair in zip(good, bad, strict=True) for p in pair], _mixed(params, bad_params), first_id=100
        )
        assert [tokens_of(outputs) for outputs in mixed[::2]] == wanted
        for outputs in mixed[1::2]:
            assert _ended(outputs) == "error" and "NaN" in (outputs[-1].error or "") and not tokens_of(outputs)
        assert [tokens_of(outputs) for outputs in run_all(engine, good, params, first_id=200)] == wanted
    finally:
        engine.close()


def _mixed(params: list[SamplingParams], others: list[SamplingParams]) -> list[SamplingParams]:
    return [one for pair in zip(params, others, strict=True) for one in pair]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_that_loses_its_numbers_on_the_way_keeps_what_it_said(model: Path, backend: str) -> None:
    engine = LocalEngine(config_for(model, backend=backend, kv_cache_memory="1MiB", block_size=32))
    try:
        (outputs,) = run_all(engine, [[3, 4, 5]], [greedy(6, logit_bias={_BAD_TOKEN: 100.0})])
        assert tokens_of(outputs) == [_BAD_TOKEN] and _ended(outputs) == "error"
    finally:
        engine.close()
