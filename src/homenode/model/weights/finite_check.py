"""A check whether the numbers in a model's files are numbers: asked when a model has computed a NaN, to say whose fault
that is.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.fallback_decode import FloatArray, iter_decoded_rows
from homenode.model.spec import TensorEntry

_LONGEST_S = 30.0  # of a search: some gigabytes of plain numbers
_PLAIN = frozenset({"F32", "F16", "BF16", "F64"})


def check_finite(values: FloatArray, entry: TensorEntry) -> FloatArray:
    """`values` of a tensor. Raises CheckpointError naming file and tensor where one is a NaN or infinite."""
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{entry.file}: tensor {entry.name} holds values that are no numbers (NaN or infinite), so nothing can be "
            "computed with it; fetch or convert the model again"
        )
    return values


def check_model_finite(path: Path, longest_s: float = _LONGEST_S) -> None:
    """Look through the tensors of a model for a while, those of plain numbers first, as they are read fastest.

    Raises CheckpointError for the first that holds a NaN or an infinite value, and what `open_checkpoint` does.
    """
    end = time.monotonic() + longest_s
    entries = [part for entry in open_checkpoint(path).tensors.values() for part in entry.stored]
    for entry in sorted(entries, key=lambda entry: entry.dtype.name not in _PLAIN):
        try:
            for rows in iter_decoded_rows(entry):
                check_finite(rows, entry)
                if time.monotonic() > end:
                    return
        except (
            UnsupportedError
        ):  # codes of a quantised matrix are no numbers by themselves; its scales are a tensor of their own
            continue
