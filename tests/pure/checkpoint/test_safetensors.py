"""The safetensors parser: what is valid is read, what is not is refused by name and before memory is spent on it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.formats.safetensors import read_safetensors
from tests.checkpoints import safetensors_bytes
from tests.memory import memory_headroom


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (JSON value, text or bytes) and data."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changes: Any) -> bytes:
    """A file with one F32 tensor of 4 values; `changes` replace parts of its entry."""
    return raw({"t": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes}, bytes(16))


def test_reads_names_types_shapes_and_places(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    tensors = {
        "b": ("F32", [2, 3], values.tobytes()),
        "a.weight": ("BF16", [4], bytes(8)),
        "scalar": ("I64", [], bytes(8)),
        "empty": ("F16", [0, 7], b""),
    }
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    entries = read_safetensors(path)
    assert {n: (e.dtype.name, e.shape, e.nbytes) for n, e in entries.items()} == {
        "b": ("F32", (2, 3), 24), "a.weight": ("BF16", (4,), 8), "scalar": ("I64", (), 8), "empty": ("F16", (0, 7), 0),
    }  # fmt: skip
    with path.open("rb") as file:
        file.seek(entries["b"].offset)
        assert np.array_equal(np.frombuffer(file.read(24), np.float32), values)
    assert list(iter_decoded_rows(entries["empty"])) == []


def test_agrees_with_the_reference_writer(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    tensors = {
        "x": np.arange(12, dtype=np.float16).reshape(3, 4),
        "y": np.ones((5,), np.int8),
        "z": np.zeros((2, 1, 2), np.float64),
    }
    path = tmp_path / "m.safetensors"
    reference.save_file(tensors, path, metadata={"note": "äöü"})
    for name, entry in read_safetensors(path).items():
        rows = np.concatenate(list(iter_decoded_rows(entry))).reshape(tensors[name].shape)
        assert np.array_equal(rows, tensors[name].astype(np.float32))


def test_an_unknown_type_is_an_error_only_for_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("F6_E2M3", [4], bytes(3)), "b": ("F32", [1], bytes(4))}))
    entries = read_safetensors(path)
    assert entries["a"].dtype.name == "F6_E2M3" and entries["a"].nbytes == 3
    assert np.concatenate(list(iter_decoded_rows(entries["b"]))).tolist() == [[0.0]]
    with pytest.raises(UnsupportedError, match="tensor a is stored as F6_E2M3"):
        list(iter_decoded_rows(entries["a"]))


def test_a_block_format_is_no_safetensors_type(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw({"t": {"dtype": "Q4_0", "shape": [32], "data_offsets": [0, 18]}}, bytes(18)))
    assert read_safetensors(path)["t"].dtype.bytes == 0


HOSTILE = {
    "empty file": (b"", "size"),
    "header length beyond the file": (raw("{}", length=1000), "header length"),
    "header length of 2**64 - 1": (raw("{}", length=2**64 - 1), "header length"),
    "header length 0": (raw("{}  ", length=0), "header length"),
    "no JSON object": (raw("[]"), "first byte"),
    "space before the brace": (raw(" {}"), "first byte"),
    "broken JSON": (raw('{"a":'), "no valid JSON"),
    "bytes that are no UTF-8": (raw(b'{"\xff":1}'), "no valid JSON"),
    "duplicate names": (raw(
        '{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,'
        '0]}}'
    ), "duplicate key"),
    "duplicate keys in an entry": (raw('{"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        "duplicate key"),
    "deep nesting": (raw('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), "nested too deeply"),
    "NaN": (raw('{"t":{"dtype":"U8","shape":[NaN],"data_offsets":[0,0]}}'), "NaN"),
    "a number of 10000 digits": (raw('{"t":{"dtype":"U8","shape":[' + "9" * 10_000 + '],"data_offsets":[0,0]}}'),
        "no valid JSON"),
    "metadata of numbers": (raw({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata that is a list": (raw({"__metadata__": []}), "__metadata__"),
    "an entry that is a number": (raw({"t": 3}), "tensor t"),
    "an entry without offsets": (raw({"t": {"dtype": "F32", "shape": []}}), "data_offsets"),
    "an empty name": (raw({"": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}), "tensor name"),
    "a name with a line break": (raw({"a\nb": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}), "tensor name"),
    "a type that is a number": (one(dtype=3), "dtype of tensor t"),
    "a shape with a negative size": (one(shape=[-2, -2]), "shape of tensor t"),
    "a shape with a truth value": (one(shape=[True, 4]), "shape of tensor t"),
    "a shape with a string": (one(shape=["2", 2]), "shape of tensor t"),
    "a shape with a fraction": (one(shape=[2.0, 2]), "shape of tensor t"),
    "too many dimensions": (one(shape=[1] * 17), "shape of tensor t"),
    "sizes whose product overflows": (one(shape=[2**62, 2**62]), "bytes of tensor t"),
    "a shape that does not fit the bytes": (one(shape=[2, 3]), "bytes of tensor t"),
    "offsets outside the file": (one(data_offsets=[0, 32], shape=[8]), "data_offsets"),
    "offsets backwards": (one(data_offsets=[16, 0]), "data_offsets"),
    "negative offsets": (one(data_offsets=[-16, 0]), "data_offsets"),
    "three offsets": (one(data_offsets=[0, 8, 16]), "data_offsets"),
    "bytes nobody owns": (one() + b"more", "data"),
    "a hole": (raw({"t": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, bytes(8)), "a hole before it"),
    "an overlap": (
        raw({"a": {"dtype": "U8", "shape": [6], "data_offsets": [0, 6]},
            "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, bytes(8)),
        "an overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_refuses(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors(path)
    assert "bad.safetensors" in caught.value.message and len(caught.value.message) < 1000


def test_a_header_of_absurdly_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw(b'{"a":[' + b"[]," * 6_000_000 + b"0]}"))
    with memory_headroom(128 * 2**20), pytest.raises(CheckpointError, match="JSON values"):
        read_safetensors(path)


def test_a_huge_sparse_file_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw("{}", length=2**33))
    os.truncate(path, 2**34)
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match="2 to 100000000"):
        read_safetensors(path)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_pipe, "regular file"),
        (_loop, "cannot be opened"),
        (Path.mkdir, "regular file"),
        (lambda p: None, "cannot be opened"),
    ],
)
def test_what_is_no_regular_file(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    make(path)
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = safetensors_bytes({"a": ("F32", [4], bytes(16)), "b": ("F16", [2, 2], bytes(8))})
    path = tmp_path / "m.safetensors"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            read_safetensors(path)
