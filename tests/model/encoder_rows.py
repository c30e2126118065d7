"""Rows of encoders after their last layer, and how near they have to be to others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from homenode.compute.ops import Backend, FloatArray, StepArrays, StepLimits
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model

BOUND = 2e-5  # of the spread of rows


def rows_of(
    path: Path, backend: Backend, texts: list[list[int]], types: list[list[int]] | None = None
) -> list[FloatArray]:
    """Rows after the last layer, of texts computed in one step. `types`: of their tokens."""
    model = load_model(open_checkpoint(path), backend)
    blocks = [-(-len(text) // 32) for text in texts]
    cache = backend.kv_cache(model.kv_geometry(32, "f32"), sum(blocks))
    total = sum(map(len, texts))
    program = backend.compile(model.forward(cache), StepLimits(total, len(texts), total, max(blocks)))
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    table = np.zeros((len(texts), max(blocks)), np.int32)
    for row, (count, first) in enumerate(zip(blocks, np.cumsum([0, *blocks]), strict=False)):
        table[row, :count] = np.arange(first, first + count)
    ids = np.array([token for text in texts for token in text], np.int32)
    positions = np.concatenate([np.arange(len(text), dtype=np.int32) for text in texts])
    lengths = np.array([len(text) for text in texts], np.int32)
    step = StepArrays(ids, positions, starts, lengths, table, np.arange(total, dtype=np.int32))
    if types is not None:
        step.token_types = np.array([each for text in types for each in text], np.int32)
    rows = np.array(program.run(step))
    return np.split(rows, starts[1:-1])


def near(found: FloatArray, wanted: FloatArray) -> None:
    assert np.abs(found - wanted).max() <= BOUND * np.ptp(wanted)
