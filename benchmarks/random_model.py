"""A random model that behaves as trained ones do where rounding is concerned: some columns of what is multiplied are
much larger than the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from homenode.dtypes import BY_NAME
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import architecture_of
from homenode.model.files_read import FilesRead
from homenode.model.spec import ModelSpec, RopeSpec, TensorEntry

_LARGE_ONE_IN, _LARGE = 64, 8.0

SPEC = ModelSpec(
    architecture="llama", hidden_size=512, intermediate_size=1024, num_layers=2, num_heads=8, num_kv_heads=2,
    head_dim=64, vocab_size=512,
    max_position=512, norm_eps=1e-5, rope=RopeSpec(), tie_word_embeddings=False, attention_bias=False, moe=None,
)  # fmt: skip


@dataclass
class ArrayCheckpoint:
    """A `Checkpoint` of float32 arrays in one plain file."""

    path: Path
    spec: ModelSpec
    tensors: dict[str, TensorEntry]
    metadata: dict[str, object]
    files: FilesRead = field(default_factory=FilesRead)


def random_checkpoint(file: Path, spec: ModelSpec = SPEC, seed: int = 0) -> ArrayCheckpoint:
    """Normally distributed matrices; one in 64 of the weights of norms, always the same columns, is 8, the others are
    1. Written to `file`."""
    random = np.random.default_rng(seed)
    large = random.random(spec.hidden_size) < 1 / _LARGE_ONE_IN
    tensors: dict[str, TensorEntry] = {}
    with file.open("wb") as opened:
        for expected in expected_tensors(architecture_of(spec.architecture).parameters, spec):
            values = random.standard_normal(expected.shape)
            if len(expected.shape) == 1:
                values = np.where(large, _LARGE, 1.0)
            elif expected.parameter.key != "embed":
                values /= np.sqrt(expected.shape[1])
            stored = values.astype("<f4").tobytes()
            tensors[expected.name] = TensorEntry(
                expected.name, BY_NAME["F32"], expected.shape, file, opened.tell(), len(stored), 0
            )
            opened.write(stored)
    return ArrayCheckpoint(file, spec, tensors, {})
