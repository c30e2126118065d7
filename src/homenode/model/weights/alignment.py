"""The places where a checkpoint's matrices may be cut: at the blocks in which they are stored, and better at those in
which they will be kept.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.dtypes import BY_NAME
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import architecture_for
from homenode.model.partition import Alignment
from homenode.model.spec import Checkpoint


def alignments_of(checkpoint: Checkpoint, quantize: str | None = None) -> dict[str, Alignment]:
    """Return for each dimension that is the columns of some matrix the alignment at which all of these can be cut, by
    its name in the parameter table.

    `quantize`: as `load_model` is told. Rows can be cut anywhere. Raises UnsupportedError for an unknown architecture.
    """
    kept = BY_NAME[quantize.upper()].block if quantize and quantize.upper() in BY_NAME else 1
    found: dict[str, Alignment] = {}
    for expected in expected_tensors(architecture_for(checkpoint.spec).parameters, checkpoint.spec):
        entry, shape = checkpoint.tensors.get(expected.name), expected.parameter.shape
        before = found.get(shape[-1], Alignment())
        if expected.parameter.kind == "matrix" and entry is not None and entry.dtype.block:
            needed, wanted = math.lcm(before.needed, entry.dtype.block), math.lcm(before.wanted, kept)
            found[shape[-1]] = replace(before, needed=needed, wanted=wanted)
    return found
