"""safetensors files: 8 bytes of header length, a JSON header, then the tensors' bytes.

Source: the format page of the safetensors project. Its rules are all checked: header length, no duplicate keys, shapes
that agree with the offsets, and data without holes or overlap. Data is little-endian and row-major; nothing promises
more than byte alignment of a tensor.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from homenode.dtypes import BY_NAME, DType
from homenode.model.formats.bounded_files import damaged, file_size, parse_json, quoted, read_at
from homenode.model.spec import TensorEntry
from homenode.units import format_bytes

MOST_HEADER_BYTES = 100_000_000  # the limit of the reference parser
_DTYPES = (
    "F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3", "F8_E5M2",
    "F8_E8M0",
)  # fmt: skip
_MOST_DIMENSIONS = 16


def read_safetensors(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one safetensors file by name; only the header is read.

    A tensor of an unknown type keeps its type's name in a DType of 0 bytes: it is an error only for who reads that
    tensor. Raises CheckpointError naming the file, what was seen and what was wanted.
    """
    size = file_size(path)
    if size < 10:
        raise damaged(path, "size", seen=f"{size} bytes", wanted="a safetensors file of at least 10 bytes")
    length = int.from_bytes(read_at(path, 0, 8), "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
        wanted = f"2 to {min(MOST_HEADER_BYTES, size - 8)} in a file of {format_bytes(size)}"
        raise damaged(path, "header length", seen=length, wanted=wanted)
    return tensors_of(path, read_at(path, 8, length), size)


def tensors_of(path: Path, text: bytes, size: int) -> dict[str, TensorEntry]:
    """The tensors by the header `text` of a file of `size` bytes. `path`: what it is called. Raises as
    `read_safetensors`.
    """
    length = len(text)
    if text[:1] != b"{":
        raise damaged(path, "header", seen=f"first byte {text[0]:#04x}", wanted="a JSON object")
    header = parse_json(path, text, "header", strict=True)
    _check_metadata(path, header.pop("__metadata__", {}))
    entries = {name: _entry(path, name, value, 8 + length, size) for name, value in header.items()}
    _check_layout(path, entries, 8 + length, size)
    return entries


def _check_metadata(path: Path, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, "__metadata__", seen=type(metadata).__name__, wanted="an object of strings")


def _entry(path: Path, name: str, value: object, data_start: int, size: int) -> TensorEntry:
    if not name or len(name) > 1024 or not name.isprintable():
        raise damaged(path, "tensor name", seen=quoted(name), wanted="1 to 1024 printable characters")
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise damaged(path, f"tensor {name}", seen=quoted(value), wanted="an object with dtype, shape and data_offsets")
    dtype, shape = _dtype(path, name, value["dtype"]), value["shape"]
    if not _sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise damaged(
            path,
            f"shape of tensor {name}",
            seen=quoted(shape),
            wanted=f"at most {_MOST_DIMENSIONS} whole numbers, none negative",
        )
    offsets = value["data_offsets"]
    if not _sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size - data_start:
        wanted = f"[begin, end] within the {size - data_start} bytes of data"
        raise damaged(path, f"data_offsets of tensor {name}", seen=quoted(offsets), wanted=wanted)
    nbytes = offsets[1] - offsets[0]
    if dtype.bytes and math.prod(shape) * dtype.bytes != nbytes:
        wanted = f"{math.prod(shape) * dtype.bytes} for {dtype.name} {shape}"
        raise damaged(path, f"bytes of tensor {name}", seen=nbytes, wanted=wanted)
    return TensorEntry(name, dtype, tuple(shape), path, data_start + offsets[0], nbytes)


def _dtype(path: Path, name: str, value: object) -> DType:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 32:
        raise damaged(path, f"dtype of tensor {name}", seen=quoted(value), wanted="the name of a type, such as BF16")
    return BY_NAME[value] if value in _DTYPES else DType(value, 1, 0, -1)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63 for v in value
    )


def _check_layout(path: Path, entries: dict[str, TensorEntry], data_start: int, size: int) -> None:
    """The tensors must cover the data exactly, one after the other."""
    at = data_start
    for entry in sorted(entries.values(), key=lambda e: (e.offset, e.nbytes)):
        if entry.offset != at:
            kind = "an overlap with the tensor before it" if entry.offset < at else "a hole before it"
            seen = f"{kind} (it begins at {entry.offset - data_start})"
            raise damaged(path, f"tensor {entry.name}", seen=seen, wanted=f"its data to begin at {at - data_start}")
        at += entry.nbytes
    if at != size:
        raise damaged(
            path, "data", seen=f"{size - data_start} bytes", wanted=f"the {at - data_start} bytes its tensors add up to"
        )
