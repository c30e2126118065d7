"""What a worker loads of a checkpoint is what a whole model has there: rows, columns, heads, experts, of every kind of
storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import BY_NAME
from homenode.errors import HomenodeError
from homenode.model.architectures.parameters import ExpectedTensor, expected_tensors, ranges
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec
from homenode.model.spec import Checkpoint
from homenode.model.weights.load import LoadedModel, load_model
from tests.checkpoints import make_gguf
from tests.model.conftest import make_backend
from tests.model.split import plan
from tests.model.test_split import mixed_formats


def handles(model: LoadedModel, part: ModelPart) -> Iterator[tuple[ExpectedTensor, Any]]:
    """Every tensor of a part with its handle; of a vector only the reference backend shows what it has."""
    for expected in expected_tensors(architecture_of(model.spec.architecture).parameters, model.spec, part):
        owner = (
            model.parameters.top
            if expected.layer is None
            else model.parameters.layers[expected.layer - part.layers.first]
        )
        handle = owner[expected.parameter.key]
        if expected.expert is not None and expected.layer is not None:
            handle = handle[part.experts[expected.layer - part.layers.first].index(expected.expert)]
        if expected.head is not None:
            heads = ranges(model.spec, part, expected.layer)[expected.parameter.of_several]  # or groups of them
            handle = handle[expected.head - heads.first]
        if expected.parameter.kind == "matrix" or isinstance(handle, np.ndarray):
            yield expected, handle


def values(handle: Any) -> FloatArray:
    """A matrix or a vector as it is kept."""
    if hasattr(handle, "unpack_row"):
        return np.stack([handle.unpack_row(row) for row in range(handle.rows)])
    return np.asarray(handle if isinstance(handle, np.ndarray) else handle.float().cpu())  # the last: torch's


def check_parts(checkpoint: Checkpoint, backend: Backend, how: PartitionSpec, **settings: Any) -> None:
    whole = load_model(checkpoint, backend, **settings)
    wanted = {expected.name: values(handle) for expected, handle in handles(whole, ModelPart.whole(whole.spec))}
    for part in plan(checkpoint, how, settings.get("quantize")):
        model = load_model(checkpoint, backend, part=part, **settings)
        for expected, handle in handles(model, part):
            here = wanted[expected.name][tuple(slice(span.first, span.end) for span in expected.cut)]
            assert np.array_equal(values(handle), here), (part.name, expected.name)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_kind_of_storage(tmp_path: Path, backend: Backend, threads: int) -> None:
    """Formats of the backend and of Python, blocks of 32 and 256, q and k and their biases with interleaved heads."""
    if backend.name == "native":
        from homenode.compute.native import NativeBackend

        backend = NativeBackend([-1] * threads, spin_us=0)
    check_parts(mixed_formats(tmp_path / "weights"), backend, PartitionSpec(stages=2, ranks=2))


@pytest.mark.parametrize("kept", ["Q8_0", "Q4_0", "Q5_1", "F16", "BF16", "F32"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2_moe"])
def test_gguf_files(tmp_path: Path, backend: Backend, architecture: str, kept: str) -> None:
    sizes = {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 96} if architecture == "qwen2_moe" else {}
    checkpoint = open_checkpoint(
        make_gguf(tmp_path / "model.gguf", architecture, matrix_type=kept, head_dim=32, **sizes)
    )
    check_parts(checkpoint, backend, PartitionSpec(ranks=3))
    if architecture == "qwen2_moe":
        check_parts(checkpoint, backend, PartitionSpec(stages=2, ranks=2, experts_whole=True))


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_matrices_quantised_at_load(tmp_path: Path, backend: Backend, quantize: str) -> None:
    if quantize.upper() not in backend.weight_types():
        pytest.skip(f"{backend.name} keeps no matrices as {quantize}")
    checkpoint = open_checkpoint(make_gguf(tmp_path / "model.gguf", "llama", head_dim=32))
    check_parts(checkpoint, backend, PartitionSpec(ranks=3), quantize=quantize)


def test_columns_beyond_the_end_of_the_file_are_refused(tmp_path: Path) -> None:
    """The last row of a part's columns may end where the file ends, and not a byte later."""
    backend = make_backend("native", rounding=True)
    path = tmp_path / "rows"
    table = np.arange(12 * 10, dtype="<f4").reshape(12, 10)
    path.write_bytes(table.tobytes())
    with path.open("rb") as file:
        weight = backend.weight_from_file(
            StoredMatrix(file.fileno(), 7 * 4, BY_NAME["F32"], 12, 3, row_bytes=40), "F32"
        )
        assert np.array_equal(values(weight), table[:, 7:])
        with pytest.raises((HomenodeError, ValueError), match="the file has 480 bytes"):
            backend.weight_from_file(StoredMatrix(file.fileno(), 8 * 4, BY_NAME["F32"], 12, 3, row_bytes=40), "F32")
        with pytest.raises((HomenodeError, ValueError), match="cannot begin 8 bytes after each other"):
            backend.weight_from_file(StoredMatrix(file.fileno(), 0, BY_NAME["F32"], 12, 3, row_bytes=8), "F32")
