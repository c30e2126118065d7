"""Decoding stored numbers in Python: against the gguf package for its types, against plain arithmetic for
the others.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from homenode.dtypes import BY_GGUF_ID, BY_NAME, DType
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.formats import fallback_decode
from homenode.model.formats.fallback_decode import decode_rows, iter_decoded_rows
from homenode.model.spec import TensorEntry
from tests.checkpoints import bf16_bits

OWN = ("Q8_1", "Q8_K", "Q1_0", "Q2_0")  # the package has no decoder of these
BLOCKS = [dtype for dtype in BY_GGUF_ID.values() if dtype.block > 1 and dtype.name not in OWN]


@pytest.mark.parametrize("dtype", BLOCKS, ids=lambda d: d.name)
def test_block_types_against_the_package(dtype: DType) -> None:
    gguf = pytest.importorskip("gguf")
    raw = np.random.default_rng(dtype.gguf_id).integers(0, 256, (5, dtype.row_bytes(512)), np.uint8)
    with np.errstate(all="ignore"):  # random bytes hold scales that are no numbers
        wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(dtype.gguf_id))
    found = decode_rows(raw.tobytes(), dtype, (5, 512))
    assert found.dtype == np.float32 and np.array_equal(found, wanted, equal_nan=True)
    assert np.isfinite(found).mean() > 0.5


@pytest.mark.parametrize("name", ["F32", "F16", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"])
def test_plain_types(name: str) -> None:
    layout = {
        "F32": "f",
        "F16": "e",
        "F64": "d",
        "I8": "b",
        "I16": "h",
        "I32": "i",
        "I64": "q",
        "U8": "B",
        "U16": "H",
        "U32": "I",
        "U64": "Q",
    }[name]
    values = [0, 1, 100, 3, 7, 120] if name[0] in "UI" else [0.0, -1.5, 0.25, 3.0, -7.0, 1024.0]
    if name[0] == "I":
        values[1] = -128
    found = decode_rows(struct.pack(f"<6{layout}", *values), BY_NAME[name], (2, 3))
    assert found.dtype == np.float32 and found.tolist() == [values[:3], values[3:]]


def test_booleans_and_bfloat16() -> None:
    assert decode_rows(bytes([1, 0, 1]), BY_NAME["BOOL"], (1, 3)).tolist() == [[1.0, 0.0, 1.0]]
    values = np.array([[1.0, -2.5, 3.140625]], np.float32)
    assert np.array_equal(decode_rows(bf16_bits(values).tobytes(), BY_NAME["BF16"], (1, 3)), values)


def f8(code: int, exponent_bits: int, bias: int) -> float:
    """The value of an 8-bit float by its definition, without infinities and NaN."""
    mantissa_bits = 7 - exponent_bits
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    size = (
        (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
        if exponent
        else mantissa / 2**mantissa_bits * 2.0 ** (1 - bias)
    )
    return -size if code >> 7 else size


def test_eight_bit_floats() -> None:
    every = bytes(range(256))
    e4m3 = decode_rows(every, BY_NAME["F8_E4M3"], (16, 16)).reshape(-1)
    assert (
        all(e4m3[c] == f8(c, 4, 7) for c in range(256) if c & 127 != 127)
        and np.isnan(e4m3[[127, 255]]).all()
        and e4m3[126] == 448.0
    )
    e5m2 = decode_rows(every, BY_NAME["F8_E5M2"], (16, 16)).reshape(-1)
    assert (
        all(e5m2[c] == f8(c, 5, 15) for c in range(256) if c >> 2 & 31 != 31)
        and e5m2[124] == math.inf
        and np.isnan(e5m2[[125, 126, 127]]).all()
    )


def test_blocks_the_package_leaves_out() -> None:
    q = [(i * 37) % 256 - 128 for i in range(256)]
    q8_1 = struct.pack("<ee32b", 0.5, 99.0, *q[:32]) + struct.pack("<ee32b", -0.25, 0.0, *q[32:64])
    assert decode_rows(q8_1, BY_NAME["Q8_1"], (1, 64)).tolist() == [
        [0.5 * v for v in q[:32]] + [-0.25 * v for v in q[32:64]]
    ]
    q8_k = struct.pack("<f256b16h", 0.125, *q, *range(16))
    assert decode_rows(q8_k, BY_NAME["Q8_K"], (1, 256)).tolist() == [[0.125 * v for v in q]]
    bits = bytes((i * 29) % 256 for i in range(16))
    signs = [1.0 if bits[i // 8] >> i % 8 & 1 else -1.0 for i in range(128)]
    assert decode_rows(struct.pack("<e", 0.75) + bits, BY_NAME["Q1_0"], (1, 128)).tolist() == [
        [0.75 * s for s in signs]
    ]


def test_blocks_of_two_bits() -> None:
    codes = [(i * 7 + i // 5) % 4 for i in range(128)]
    packed = [sum(code << 2 * j for j, code in enumerate(codes[i : i + 4])) for i in range(0, 128, 4)]
    blocks = struct.pack("<e16B", 0.75, *packed[:16]) + struct.pack("<e16B", -2.0, *packed[16:])
    wanted = [0.75 * (code - 1) for code in codes[:64]] + [-2.0 * (code - 1) for code in codes[64:]]
    assert decode_rows(blocks, BY_NAME["Q2_0"], (1, 128)).tolist() == [wanted]


def test_every_known_type_has_a_decoder() -> None:
    for dtype in BY_NAME.values():
        assert decode_rows(bytes(2 * dtype.row_bytes(256)), dtype, (2, 256)).shape == (2, 256), dtype.name


def entry(path: Path, dtype: DType, shape: tuple[int, ...], offset: int = 0) -> TensorEntry:
    rows = math.prod(shape[:-1])
    return TensorEntry("t", dtype, shape, path, offset, rows * dtype.row_bytes(shape[-1]) if shape else dtype.bytes)


def test_rows_come_in_bounded_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_decode, "_CHUNK_ELEMENTS", 100)
    values = np.arange(7 * 32, dtype=np.float32).reshape(7, 32)
    path = tmp_path / "data"
    path.write_bytes(b"skip" + values.tobytes())
    chunks = list(iter_decoded_rows(entry(path, BY_NAME["F32"], (7, 32), offset=4)))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1] and np.array_equal(np.concatenate(chunks), values)
    long = list(iter_decoded_rows(entry(path, BY_NAME["F32"], (224,), offset=4)))
    assert [chunk.shape for chunk in long] == [(1, 224)]
    assert [chunk.shape for chunk in iter_decoded_rows(entry(path, BY_NAME["F32"], (), offset=4))] == [(1, 1)]
    assert [chunk.shape for chunk in iter_decoded_rows(entry(path, BY_NAME["F32"], (2, 3, 4), offset=4))] == [(6, 4)]


def test_a_file_that_ends_too_early(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    with pytest.raises(CheckpointError, match="tensor t: seen 100 of 128 bytes from row 0 on"):
        list(iter_decoded_rows(entry(path, BY_NAME["F32"], (4, 8))))
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be opened"):
        list(iter_decoded_rows(entry(path, BY_NAME["F32"], (4, 8))))


def test_what_cannot_be_decoded(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="GGUF_TYPE_99"):
        decode_rows(b"", DType("GGUF_TYPE_99", 1, 0, 99), (1, 32))
    with pytest.raises(ValueError, match="2 rows of 32 Q8_0 are 68 bytes; seen 67"):
        decode_rows(bytes(67), BY_NAME["Q8_0"], (2, 32))
    with pytest.raises(CheckpointError, match="row length"):
        list(iter_decoded_rows(entry(tmp_path, BY_NAME["Q8_0"], (2**40,))))
