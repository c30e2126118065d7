"""Blocks that predict further tokens, beside a computation of the same in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homenode.compute.ops import Backend, StepArrays, StepLimits
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.weights.load import load_model
from tests.checkpoints import toy_config, toy_tensors
from tests.model.prediction_toys import (
    HIDDEN,
    STYLES,
    VOCAB,
    block_tensors,
    make_predicting_folder,
    make_predicting_gguf,
    predicted_rows,
)

LIMITS = StepLimits(32, 4, 32, 4)
OUTPUT_NORM = "model.norm.weight"


def block_of(checkpoint: OpenedCheckpoint) -> OpenedCheckpoint:
    assert checkpoint.prediction is not None
    return checkpoint.prediction


@pytest.mark.parametrize("style", [*STYLES, "gguf"])
def test_a_block_of_every_style_computes_what_it_is_said_to(style: str, tmp_path: Path, backend: Backend) -> None:
    made = (
        make_predicting_gguf(tmp_path / "m.gguf") if style == "gguf" else make_predicting_folder(tmp_path / "m", style)
    )
    checkpoint = open_checkpoint(made)
    model = load_model(checkpoint, backend, dtype="float32")
    block = load_model(block_of(checkpoint), backend, dtype="float32").with_tables_of(model)
    cache = backend.kv_cache(block.kv_geometry(32, "f32"), 4)
    program = backend.compile(block.forward(cache, keeps_rows="normed"), LIMITS)
    rng = np.random.default_rng(1)
    ids, rows = rng.integers(0, VOCAB, 20).astype(np.int32), rng.standard_normal((20, HIDDEN)).astype(np.float32)
    positions = np.arange(20, dtype=np.int32)
    ends, table = np.array([20], np.int32), np.array([[2]], np.int32)
    arrays = StepArrays(ids, positions, np.array([0, 20], np.int32), ends, table, positions, hidden=rows)
    found = np.asarray(program.run(arrays))
    plain = toy_tensors(toy_config("qwen3"))
    plain_rows, normed = predicted_rows(plain["model.embed_tokens.weight"][ids], rows, row_first=style == "mimo")
    if style == "ernie":  # its last norm is the model's
        normed = plain_rows / np.sqrt((plain_rows**2).mean(axis=1, keepdims=True) + 1e-5) * plain[OUTPUT_NORM]
    assert np.abs(found - normed).max() < 2e-2 * np.abs(normed).max()
    head = backend.compile(block.head_of_rows("normed"), LIMITS)
    logits = np.asarray(head.run(StepArrays(ids, positions, arrays.query_start, ends, table, positions, hidden=found)))
    expected = found @ plain["lm_head.weight"].T
    assert np.abs(logits - expected).max() < 2e-2 * np.abs(expected).max()


@pytest.mark.parametrize("style", STYLES)
def test_the_model_beside_a_block_is_the_model_without(style: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_predicting_folder(tmp_path / "m", style))
    assert checkpoint.tensors.keys() == toy_tensors(toy_config("qwen3")).keys()
    assert all(entry.name == name for name, entry in block_of(checkpoint).tensors.items() if name != OUTPUT_NORM)
    spec = block_of(checkpoint).spec
    assert (spec.num_layers, spec.hidden_size, checkpoint.spec.prediction) == (1, HIDDEN, None)
    assert spec.prediction is not None and not spec.prediction.own


def test_tables_that_repeat_those_of_the_model_are_not_kept_twice(tmp_path: Path) -> None:
    plain = toy_tensors(toy_config("qwen3"))
    names = {"model.layers.2.embed_tokens.weight": plain["model.embed_tokens.weight"]}
    alike = {"model.layers.2.shared_head.head.weight": plain["lm_head.weight"]}
    unlike = {name: values + 1 for name, values in alike.items()}
    for number, (more, own) in enumerate([(alike, set()), (unlike, {"lm_head"})]):
        folder = make_predicting_folder(tmp_path / str(number), "deepseek", names | more)
        prediction = block_of(open_checkpoint(folder)).spec.prediction
        assert prediction is not None and prediction.own == own


def test_a_block_of_another_kind_is_left_unread(tmp_path: Path) -> None:
    layer, _ = block_tensors()
    change = {f"mtp.layers.0.{name}": values for name, values in layer.items()}
    folder = make_predicting_folder(
        tmp_path / "m", "deepseek", change | {"mtp.other.weight": np.ones((4, 4), np.float32)}
    )
    (folder / "config.json").write_text((folder / "config.json").read_text())
    assert block_of(open_checkpoint(folder)).spec.num_layers == 1
