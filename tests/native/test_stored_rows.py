"""Rows of a table that stays in its file, and operations beside them that take a parameter in another form, as the
reference has them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, Ops, Tensor
from homenode.compute.reference import ReferenceBackend
from homenode.dtypes import BY_NAME
from homenode.errors import UnsupportedError
from tests.native.steps import Part, limits, same_bits, step_of

ROWS, COLUMNS, OFFSET = 40, 96, 24
IDS = [3, 39, 0, 3, 17]


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_rows_are_read_from_the_file_when_a_step_asks_for_them(
    backend: NativeBackend, name: str, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the gguf package, which the `dev` group installs")
    table = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    stored = gguf.quants.quantize(table, gguf.GGMLQuantizationType[name])
    file = tmp_path / "table"
    file.write_bytes(b"\1" * OFFSET + np.ascontiguousarray(stored).tobytes())

    def rows(of: NativeBackend | ReferenceBackend) -> FloatArray:
        with file.open("rb") as opened:
            handle = of.stored_table(opened.fileno(), OFFSET, BY_NAME[name], ROWS, COLUMNS)
        program = of.compile(lambda ops: ops.stored_rows(handle), limits(len(IDS)))
        return np.array(np.asarray(program.run(step_of([Part(0, len(IDS))], IDS))))

    assert same_bits(rows(backend), rows(ReferenceBackend()))
    assert backend.statistics()["weight_bytes"] == 0


def test_a_row_that_the_file_no_longer_has_is_no_number(backend: NativeBackend, tmp_path: Path) -> None:
    file = tmp_path / "table"
    file.write_bytes(np.ones((ROWS, COLUMNS), np.float32).tobytes())
    with file.open("r+b") as opened:
        handle = backend.stored_table(opened.fileno(), 0, BY_NAME["F32"], ROWS, COLUMNS)
        opened.truncate(10 * COLUMNS * 4)
    program = backend.compile(lambda ops: ops.stored_rows(handle), limits(2))
    found = program.run(step_of([Part(0, 2)], [9, 10])).numpy()
    assert np.all(found[0] == 1) and np.isnan(found[1]).all()
    with pytest.raises(ValueError, match="40"):  # ids are checked as those of any table
        program.run(step_of([Part(0, 1)], [40]))
    program = backend.compile(lambda ops: ops.stored_rows(handle, 11), limits(2))
    found = program.run(step_of([Part(0, 2)], [40, 9])).numpy()  # but where they have a row, here one that is gone
    assert np.isnan(found[0]).all() and np.all(found[1] == 1)


def test_tables_that_cannot_be_are_refused(tmp_path: Path) -> None:
    backend, file = NativeBackend([-1]), tmp_path / "table"
    file.write_bytes(b"")
    with file.open("rb") as opened:
        with pytest.raises(UnsupportedError, match="rows of I32"):
            backend.stored_table(opened.fileno(), 0, BY_NAME["I32"], 1, 8)
        with pytest.raises(ValueError, match="cannot be read"):
            backend.stored_table(opened.fileno(), 0, BY_NAME["F32"], 2**62, 8)


def test_norms_without_a_weight_gates_apart_and_factors_that_are_parameters(backend: NativeBackend) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((5, 64)).astype(np.float32) for _ in range(2))

    def forward(ops: Ops, one: Tensor, other: Tensor, factor: Tensor) -> Tensor:
        normed = ops.rms_norm(one, 16, 1e-6)
        return ops.scale(ops.gelu_mul(normed, other), factor)

    handles = backend.constant(x), backend.constant(y), backend.vector(np.array([0.75], np.float32))
    found = backend.compile(lambda ops: forward(ops, *handles), limits(5)).run(step_of([Part(0, 5)])).numpy()
    eager = ReferenceBackend()
    program = eager.compile(lambda ops: forward(ops, x, y, np.array([0.75], np.float32)), limits(5))
    np.testing.assert_allclose(found, np.asarray(program.run(step_of([Part(0, 5)]))), rtol=1e-5, atol=1e-6)
    ones = backend.vector(np.ones(16))
    plain, weighted = (
        backend.compile(lambda ops, by=by: ops.rms_norm(handles[0], by, 1e-6), limits(5)).run(step_of([Part(0, 5)]))
        for by in (16, ones)
    )
    assert same_bits(plain.numpy(), weighted.numpy())
    with pytest.raises(ValueError, match="no parameter of one number"):
        backend.compile(lambda ops: ops.scale(handles[0], ones), limits(5))
    with pytest.raises(ValueError, match="64 and 16 columns"):
        backend.compile(lambda ops: ops.gelu_mul(handles[0], backend.constant(x[:, :16])), limits(5))
