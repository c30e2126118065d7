"""Packed weights say what the file says: every format against the gguf package, conversions, permuted rows, damaged
requests.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import BY_GGUF_ID, BY_NAME
from homenode.errors import UnsupportedError
from tests.native.steps import same_bits
from tests.native.weights import ENCODED, FORMATS, Stored, decoded, load, stored, stored_values, unpacked


@pytest.fixture(params=[1, 3])
def pool(request: pytest.FixtureRequest) -> NativeBackend:
    """Packing is the same code at all levels; what varies is who packs which rows."""
    return NativeBackend([-1] * request.param, spin_us=20)


def test_what_has_a_kernel_can_be_decoded_and_nothing_else_is_promised(pool: NativeBackend) -> None:
    assert pool.weight_types() == set(FORMATS)
    for number in (*BY_GGUF_ID, -1, 4, 5, 1000, 2**31 - 1):
        known = number in BY_GGUF_ID and BY_GGUF_ID[number].name in FORMATS
        assert _native.has_kernel(number) == known and _native.can_decode(number) == known


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (33, 768), (97, 512)])
def test_rows_come_back_as_the_file_has_them(
    pool: NativeBackend, tmp_path: Path, format: str, rows: int, columns: int
) -> None:
    matrix = stored(format, rows, columns)
    weight = load(pool, tmp_path / "w", matrix)
    assert (weight.rows, weight.columns, weight.format) == (rows, columns, BY_NAME[format].gguf_id)
    assert np.array_equal(unpacked(weight), matrix.values)


@pytest.mark.parametrize("format", [f for f in FORMATS if f not in ("F32", "F16", "BF16")])
def test_any_bytes_at_all_decode_as_the_gguf_package_decodes_them(
    pool: NativeBackend, tmp_path: Path, format: str
) -> None:
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[format]]
    data = np.random.default_rng(7).integers(0, 256, (64, 2048 // block * size), dtype=np.uint8)
    with np.errstate(all="ignore"):  # infinite and NaN scales among them
        values = decoded(format, data)
    found = unpacked(load(pool, tmp_path / "w", Stored(format, data, values)))
    assert np.array_equal(found, values, equal_nan=True)


def test_every_half_and_every_bfloat16(pool: NativeBackend, tmp_path: Path) -> None:
    data = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(32, -1)
    for format in ("F16", "BF16"):
        with np.errstate(all="ignore"):
            matrix = Stored(format, data, decoded(format, data))
        assert np.array_equal(unpacked(load(pool, tmp_path / "w", matrix)), matrix.values, equal_nan=True)


@pytest.mark.parametrize("target", ENCODED)
@pytest.mark.parametrize("columns", [512, 172, 31])
def test_float32_rows_are_encoded_as_the_gguf_package_does(pool: NativeBackend, target: str, columns: int) -> None:
    random = np.random.default_rng(1)
    values = (random.standard_normal((70, columns)) * np.exp(3 * random.standard_normal((70, 1)))).astype(np.float32)
    values[3], values[4], values[5] = 0, np.round(values[4]), 1e-7 * values[5]
    padded = np.zeros((70, -(-columns // 32) * 32), np.float32)
    padded[:, :columns] = values
    assert np.array_equal(
        unpacked(pool.weight_from_array(values, target)), stored_values(target, padded).values[:, :columns]
    )


@pytest.mark.parametrize("target", ["Q8_0", "Q4_0"])
def test_ties_and_equal_extremes_are_encoded_as_the_gguf_package_does(pool: NativeBackend, target: str) -> None:
    random = np.random.default_rng(3)
    # Many lie halfway between two codes, many have the largest magnitude.
    steps = random.integers(-32, 33, (400, 96)).astype(np.float32) / 4
    steps[:, ::32] = np.where(random.random((400, 3)) < 0.5, 8, -8) * (127 / 128 if target == "Q8_0" else 1)
    values = (steps * np.exp2(random.integers(-30, 12, (400, 1)))).astype(np.float32)
    assert np.array_equal(unpacked(pool.weight_from_array(values, target)), stored_values(target, values).values)


def test_rounding_to_sixteen_bits_at_every_edge(pool: NativeBackend) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    bits = np.random.default_rng(2).integers(0, 2**32, 65536, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        values = np.stack([halves, np.nextafter(halves, np.float32(np.inf)), halves * np.float32(1 + 2**-11), bits])
        wanted = {
            "F16": values.astype(np.float16).astype(np.float32),
            "BF16": decoded("BF16", quants.quantize(values, GGMLQuantizationType.BF16)),
        }
    for target, rounded in wanted.items():
        assert np.array_equal(unpacked(pool.weight_from_array(values, target)), rounded, equal_nan=True), target


@pytest.mark.parametrize("target", ["Q8_0", "Q4_0"])
def test_a_block_that_is_not_finite_stays_visible(pool: NativeBackend, target: str) -> None:
    values = np.ones((2, 64), np.float32)
    values[0, 3], values[1, 40] = np.nan, np.inf
    found = unpacked(pool.weight_from_array(values, target))
    assert np.isnan(found[0, :32]).all() and np.isnan(found[1, 32:]).all() and np.isfinite(found[0, 32:]).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("target", ENCODED)
def test_conversion_is_decoding_then_encoding(pool: NativeBackend, tmp_path: Path, format: str, target: str) -> None:
    matrix = stored(format, 40, 256)
    wanted = matrix.values if format == target else stored_values(target, matrix.values).values
    assert np.array_equal(unpacked(load(pool, tmp_path / "w", matrix, target)), wanted)


@pytest.mark.parametrize(
    ("format", "heads", "head_dim"), [("F32", 2, 8), ("Q4_0", 3, 64), ("Q6_K", 5, 6), ("F16", 1, 2)]
)
def test_rows_of_interleaved_heads_are_put_in_order(
    pool: NativeBackend, tmp_path: Path, format: str, heads: int, head_dim: int
) -> None:
    matrix = stored(format, heads * head_dim, 256)
    found = unpacked(load(pool, tmp_path / "w", matrix, permuted_heads=heads))
    wanted = matrix.values.reshape(heads, head_dim // 2, 2, 256).swapaxes(1, 2).reshape(-1, 256)
    assert same_bits(found, np.ascontiguousarray(wanted))


def test_a_file_that_ends_early_is_refused_before_memory_is_taken(pool: NativeBackend, tmp_path: Path) -> None:
    file = tmp_path / "w"
    file.write_bytes(bytes(1000))
    with file.open("rb") as opened, pytest.raises(ValueError, match=r"file has 1000 bytes.*ends at"):
        pool.weight_from_file(StoredMatrix(opened.fileno(), 0, BY_NAME["F32"], 2**20, 2**19), "F32")
    with file.open("rb") as opened, pytest.raises(ValueError, match="ends beyond any file"):
        pool.weight_from_file(StoredMatrix(opened.fileno(), 2**63 - 1, BY_NAME["F32"], 2**16, 2**16), "F32")


def test_a_file_that_cannot_be_read_names_the_call(tmp_path: Path) -> None:
    # Open for writing only: reading fails.
    with (tmp_path / "w").open("wb") as opened, pytest.raises(OSError, match="pread"):
        opened.write(bytes(4096))
        opened.flush()
        _native.weight_from_file(
            _native.ThreadPool([-1], 0, False),
            _native.WeightFile(fd=opened.fileno(), offset=0, format=0),
            _native.WeightShape(format=0, rows=4, columns=256),
        )


@pytest.mark.parametrize(
    ("rows", "columns", "target", "heads", "message"),
    [
        (4, 40, "Q8_0", 0, "end inside a block of 32"),
        (4, 64, "Q4_1", 0, "cannot be kept as Q4_1"),
        (6, 64, "Q8_0", 2, "heads"),
        (6, 64, "Q8_0", -1, "heads"),
        (0, 64, "Q8_0", 0, "0 x 64"),
        (-3, 64, "Q8_0", 0, "-3 x 64"),
        (1, 2**25, "Q8_0", 0, "out of bounds"),
    ],
)
def test_impossible_requests_name_what_is_wrong(
    pool: NativeBackend, tmp_path: Path, rows: int, columns: int, target: str, heads: int, message: str
) -> None:
    file = tmp_path / "w"
    file.write_bytes(bytes(100_000))
    with file.open("rb") as opened, pytest.raises(ValueError, match=message):
        pool.weight_from_file(
            StoredMatrix(opened.fileno(), 0, BY_NAME["Q8_0"], rows, columns, permuted_heads=heads), target
        )


def test_formats_without_a_decoder_are_refused_by_name(pool: NativeBackend) -> None:
    with pytest.raises(UnsupportedError, match="TQ1_0"):
        pool.weight_from_file(StoredMatrix(0, 0, BY_NAME["TQ1_0"], 1, 256), "F32")
    with pytest.raises(UnsupportedError, match="NVFP4"):
        pool.weight_from_array(np.zeros((1, 64)), "NVFP4")
