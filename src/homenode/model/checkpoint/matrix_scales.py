"""Numbers beside the matrices of GGUF files that were made of NVFP4 or 8-bit floats: `X.scale`, which the product with
`X.weight` is multiplied by, one or one for each expert; and `X.input_scale`, for rounding activations, which is left
unread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from homenode.model.checkpoint.gguf_names import GgufNames
from homenode.model.formats.bounded_files import damaged, read_at
from homenode.model.formats.gguf import GgufTensor
from homenode.model.formats.limits import MOST_EXPERTS

Stored = Mapping[str, tuple[Path, GgufTensor]]


def read_matrix_scales(stored: Stored, names: GgufNames) -> dict[str, tuple[float, ...]]:
    """The numbers of each matrix that has some, by its tensor's name. A `.scale` that is a parameter of the
    architecture is none of them.

    CheckpointError for one that is no list of finite F32 numbers.
    """
    found = {}
    for name, (file, tensor) in stored.items():
        matrix = f"{name.removesuffix('.scale')}.weight"
        if not name.endswith(".scale") or matrix not in stored or names.names_of(name) != (name,):
            continue
        count = math.prod(tensor.shape)
        if tensor.dtype.name != "F32" or count > MOST_EXPERTS:
            seen = f"{tensor.dtype.name} {list(tensor.shape)}"
            raise damaged(file, f"tensor {name}", seen=seen, wanted=f"at most {MOST_EXPERTS} F32 numbers")
        values = np.frombuffer(read_at(file, tensor.offset, tensor.nbytes), "<f4")
        if not np.isfinite(values).all():
            raise damaged(file, f"tensor {name}", seen="what is no number", wanted="finite numbers")
        found[matrix] = tuple(float(value) for value in values)
    return found


def without_scales(stored: Stored, scales: Mapping[str, object]) -> dict[str, tuple[Path, GgufTensor]]:
    """The tensors but for those that `read_matrix_scales` read, and those for rounding activations."""
    read = {f"{matrix.removesuffix('.weight')}.scale" for matrix in scales}
    return {name: each for name, each in stored.items() if name not in read and not name.endswith(".input_scale")}
