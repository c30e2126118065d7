"""Rows in place of embeddings: those of the table give what their tokens give, to the last bit, in whole models and in
parts of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray, StepArrays, StepLimits
from homenode.model.architectures.input_rows import rows_refusal
from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.parts import PartitionSpec
from homenode.model.spec import ModelSpec
from homenode.model.state import state_geometry_of
from homenode.model.weights.load import load_model
from tests.model.split import split_program
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

LENGTH, BLOCKS, BLOCK_SIZE = 40, 4, 32
LIMITS = StepLimits(LENGTH, 1, LENGTH, BLOCKS)
IDS = np.random.default_rng(5).integers(1, 80, LENGTH).astype(np.int32)


def step_of(ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> StepArrays:
    count = np.array([LENGTH], np.int32)
    positions, start = np.arange(LENGTH, dtype=np.int32), np.array([0, LENGTH], np.int32)
    arrays = StepArrays(ids, positions, start, count, np.array([[2, 1]], np.int32), positions)
    arrays.state_slot, arrays.state_fresh = np.zeros(1, np.int32), np.ones(1, np.int32)
    return arrays


def with_rows(spec: ModelSpec, table: FloatArray, places: list[int]) -> StepArrays:
    """The step in which rows of the table stand for the tokens at `places`, whose ids are others."""
    at = np.array(places, np.int32)
    ids = IDS.copy()
    ids[at] = 0
    scale = np.float32(1.0 if spec.scales_rows else spec.embedding_scale)
    arrays = step_of(ids)
    arrays.row_places, arrays.input_rows = at, np.ascontiguousarray(table[IDS[at]] * scale, np.float32)
    return arrays


PLACES = ([0], [LENGTH - 1], list(range(LENGTH)), [3, 4, 5, 20, 39])


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "granite", "afmoe", "gpt2", "qwen3_next", "phimoe"])
def test_rows_of_the_table_are_its_tokens(backend: Backend, tmp_path: Path, architecture: str) -> None:
    spec = toy_spec(architecture)
    if architecture in ("gemma2", "granite", "afmoe"):
        spec = replace(spec, embedding_scale=3.7, scales_rows=architecture != "gemma2")
    arrays = toy_arrays(spec)
    model = load_model(array_checkpoint(tmp_path / "weights", spec, arrays), backend)
    geometry = model.kv_geometry(BLOCK_SIZE)
    state = state_geometry_of(spec, model.part)
    memory = None if state is None else backend.state_memory(state, 2)
    program = backend.compile(model.forward(backend.kv_cache(geometry, BLOCKS), memory, takes_rows=True), LIMITS)
    wanted = np.array(program.run(step_of(IDS)))
    table = arrays["model.embed_tokens.weight"]
    for places in PLACES:
        assert np.array_equal(np.array(program.run(with_rows(spec, table, places))), wanted)
    other = with_rows(spec, table, PLACES[-1])
    assert other.input_rows is not None
    other.input_rows[0] += 1
    assert not np.array_equal(np.array(program.run(other)), wanted)


@pytest.mark.parametrize("how", [PartitionSpec(stages=2), PartitionSpec(ranks=2), PartitionSpec(2, 2)])
def test_parts_of_a_model_take_rows(tmp_path: Path, how: PartitionSpec) -> None:
    spec = toy_spec("llama", num_layers=4)
    arrays = toy_arrays(spec)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, arrays)
    program, _ = split_program(checkpoint, how, takes_rows=True)
    wanted = np.array(program.run(step_of(IDS)))
    table = arrays["model.embed_tokens.weight"]
    for places in PLACES:
        assert np.array_equal(np.array(program.run(with_rows(spec, table, places))), wanted)


def test_rows_of_another_width_or_place_are_refused(backend: Backend, tmp_path: Path) -> None:
    spec = toy_spec("llama")
    arrays = toy_arrays(spec)
    model = load_model(array_checkpoint(tmp_path / "weights", spec, arrays), backend)
    cache = backend.kv_cache(model.kv_geometry(BLOCK_SIZE), BLOCKS)
    program = backend.compile(model.forward(cache, takes_rows=True), LIMITS)
    step = with_rows(spec, arrays["model.embed_tokens.weight"], [3, 4])
    assert step.input_rows is not None
    narrow = np.ascontiguousarray(step.input_rows[:, 1:])
    for change in ({"input_rows": narrow}, {"input_rows": step.input_rows[:1]}):
        with pytest.raises(ValueError, match="rows"):
            program.run(replace(step, **change))


def test_who_takes_no_rows_says_why() -> None:
    """Models that look something up by token ids besides embeddings, and no others."""
    refused = {name for name in ARCHITECTURES if rows_refusal(toy_spec(name)) is not None}
    assert {"gemma3n", "deepseek_v4"} <= refused
    assert not refused & {"llama", "gemma2", "gemma3", "qwen3_next", "granite", "mixtral"}
