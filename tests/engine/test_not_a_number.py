"""A request for which the model computes a NaN ends with an error, and those beside it say what they would have said
without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode import LLM
from homenode.engine.api.local import LocalEngine
from homenode.engine.messages import Output
from homenode.errors import CheckpointError, NotANumberError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.finite_check import check_model_finite
from homenode.sampling import SamplingParams
from tests.checkpoints import make_folder, make_gguf, toy_config, toy_tensors, write_safetensors
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


class NoText:
    """A tokenizer of prompts that are token ids already."""

    stop_token_ids: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **rest: NoText() if name == "stream" else ""


_NAN = {"F32": "0000c07f", "BF16": "c07f", "F16": "007e", "Q8_0": "007e"}  # of Q8_0 a block's scale


def _made(folder: Path, kind: str) -> Path:
    folder.mkdir()
    if kind == "Q8_0":
        return make_gguf(folder / "model.gguf", matrix_type=kind)
    return make_folder(folder, dtype=kind)


def _say(path: Path) -> None:
    tokenizer: Any = NoText()
    with LLM(str(path), tokenizer=tokenizer, kv_cache_memory="1MiB", threads=1, max_model_len=64) as llm:
        llm.generate([0, 1, 2], greedy(2))


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
def test_a_value_in_the_file_that_is_no_number_is_the_files_fault(tmp_path: Path, kind: str) -> None:
    names = [name for name in open_checkpoint(_made(tmp_path / "good", kind)).tensors if "layers.1." not in name]
    assert any("norm" in name for name in names) and len(names) > 8
    for number, name in enumerate(names):
        path = _made(tmp_path / str(number), kind)
        entry = open_checkpoint(path).tensors[name]
        with entry.file.open("r+b") as file:
            file.seek(entry.offset)
            file.write(bytes.fromhex(_NAN[entry.dtype.name]))
        with pytest.raises(CheckpointError, match=f"{entry.file}.*{name}.*no numbers"):
            _say(path)


def test_a_nan_is_a_bug_where_the_file_holds_none(tmp_path: Path) -> None:
    path = _made(tmp_path / "good", "F32")
    check_model_finite(path)
    with (
        LLM(str(path), tokenizer=NoText(), kv_cache_memory="1MiB", threads=1) as llm,  # type: ignore[arg-type]
        pytest.raises(NotANumberError, match="a NaN"),
    ):
        llm._raise_error(Output(1, finish_reason="error", error="a NaN", error_kind="NotANumberError"))
