"""GGUF files, versions 2 and 3, little-endian: a header of key-value pairs and tensor descriptions, padding, then the
tensors' bytes.

"GGUF" | u32 version | u64 tensors | u64 pairs | pairs: string key, u32 kind, value | tensors: string name, u32
dimensions, u64 sizes (row length first), u32 type, u64 offset in the data | padding to general.alignment | data

Source: the GGUF specification of the ggml project. A string is a 64-bit length and bytes. Every count and length is
checked against the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from homenode.dtypes import BY_GGUF_ID, DType
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.formats.bounded_files import HeaderReader, damaged, file_size, open_file, quoted
from homenode.units import format_count

# Far above any real file (the largest vocabularies make headers of 20 MB); they bound the Python objects a hostile file
# can turn into.
_MOST_HEADER_BYTES = 2**28
_MOST_ELEMENTS = 2**24
_MOST_TENSORS = 2**17
_MOST_PAIRS = 2**16
_MOST_NESTING = 8
_MOST_NAME_BYTES = 1024  # the specification allows keys of 65535 and tensor names of 64

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_LEAST_BYTES = {kind: np.dtype(name).itemsize for kind, name in _NUMBERS.items()} | {_STRING: 8, _ARRAY: 12}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. `shape` is row-major ([rows, columns]: the file's own order reversed); `nbytes` is 0 when the type is
    unknown.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """The header of one file. Arrays are lists; strings that are no UTF-8 hold lone surrogates (`surrogateescape`)."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read and check the header of one GGUF file, of any architecture; no tensor is read.

    Raises CheckpointError for a damaged file and UnsupportedError for version 1, an unknown version, or big-endian
    order.
    """
    size = file_size(path)
    with open_file(path) as file:
        reader = HeaderReader(file, path, size, _MOST_HEADER_BYTES)
        version = _read_magic(reader)
        tensors = _count(reader, "tensors", _MOST_TENSORS, 24)
        pairs = _count(reader, "key-value pairs", _MOST_PAIRS, 13)
        metadata = _read_metadata(reader, pairs)
        raw = [_read_tensor(reader) for _ in range(tensors)]
        reader.keep_digest()
    alignment = _alignment(path, metadata)
    start = -(-reader.position // alignment) * alignment
    return GgufFile(path, version, metadata, _place(path, raw, start, alignment, size))


def read_gguf_beginning(data: bytes, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the first bytes of a file tell: the key-value pairs that lie whole in `data`, and how many elements
    each array has, one that is cut short among them.

    CheckpointError where they are not the beginning of a GGUF file; UnsupportedError as in `read_gguf`.
    """
    reader = HeaderReader(io.BytesIO(data), path, len(data), _MOST_HEADER_BYTES)
    _read_magic(reader)
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    reader.unpack(_U64, "number of tensors")
    pairs = min(reader.unpack(_U64, "number of key-value pairs"), _MOST_PAIRS)
    try:
        for _ in range(pairs):
            key = _read_name(reader, "metadata key")
            kind: int = reader.unpack(_U32, key)
            if kind == _ARRAY and reader.remaining >= 12:
                lengths[key] = _U64.unpack_from(data, reader.position + 4)[0]
            metadata[key] = _read_value(reader, kind, key)
    except CheckpointError:
        pass  # the end of what is here; a file that is damaged there is refused when it is read
    return metadata, lengths


def _read_magic(reader: HeaderReader) -> int:
    magic = reader.take(4, "magic number")
    if magic != b"GGUF":
        raise damaged(
            reader.path, "magic number", seen=quoted(magic), wanted="b'GGUF'", do="check that this is a GGUF file"
        )
    version: int = reader.unpack(_U32, "version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(
            f"{reader.path}: big-endian GGUF (version {version:#010x}); homenode reads little-endian files: convert it"
        )
    raise UnsupportedError(
        f"{reader.path}: GGUF version {version}; homenode reads versions 2 and 3: convert the model again"
    )


def _count(reader: HeaderReader, what: str, most: int, least_bytes: int) -> int:
    count: int = reader.unpack(_U64, f"number of {what}")
    if count > most:
        raise damaged(reader.path, f"number of {what}", seen=count, wanted=f"at most {most}")
    reader.need(count * least_bytes, f"{count} {what}")
    return count


def _read_name(reader: HeaderReader, what: str) -> str:
    length: int = reader.unpack(_U64, what)
    if not 0 < length <= _MOST_NAME_BYTES:
        raise damaged(reader.path, f"length of a {what}", seen=length, wanted=f"1 to {_MOST_NAME_BYTES} bytes")
    raw = reader.take(length, what)
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise damaged(reader.path, what, seen=quoted(raw), wanted="UTF-8") from error
    if not name.isprintable():
        raise damaged(reader.path, what, seen=quoted(name), wanted="printable characters")
    return name


def _read_metadata(reader: HeaderReader, pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = _read_name(reader, "metadata key")
        if key in metadata:
            raise damaged(reader.path, f"metadata key {key}", seen="it twice", wanted="every key once")
        metadata[key] = _read_value(reader, reader.unpack(_U32, key), key)
    return metadata


def _read_value(reader: HeaderReader, kind: int, key: str, depth: int = 0) -> Any:
    if kind == _STRING:
        return reader.strings(1, key)[0]
    if kind == _ARRAY:
        return _read_array(reader, key, depth + 1)
    return _read_numbers(reader, kind, 1, key)[0]


def _read_array(reader: HeaderReader, key: str, depth: int) -> list[Any]:
    kind: int = reader.unpack(_U32, key)
    count: int = reader.unpack(_U64, key)
    if depth > _MOST_NESTING:
        raise damaged(reader.path, key, seen=f"arrays nested {depth} deep", wanted=f"at most {_MOST_NESTING}")
    if kind not in _LEAST_BYTES:
        raise damaged(reader.path, key, seen=f"array elements of kind {kind}", wanted="a kind from 0 to 12")
    if count > _MOST_ELEMENTS:
        raise damaged(reader.path, key, seen=f"{count} array elements", wanted=f"at most {_MOST_ELEMENTS}")
    reader.need(count * _LEAST_BYTES[kind], f"{key} ({count} array elements)")
    if kind == _STRING:
        return reader.strings(count, key)
    if kind == _ARRAY:
        return [_read_array(reader, key, depth + 1) for _ in range(count)]
    return _read_numbers(reader, kind, count, key)


def _read_numbers(reader: HeaderReader, kind: int, count: int, key: str) -> list[Any]:
    if kind not in _NUMBERS:
        raise damaged(reader.path, key, seen=f"a value of kind {kind}", wanted="a kind from 0 to 12")
    dtype = np.dtype(_NUMBERS[kind])
    values = np.frombuffer(reader.take(count * dtype.itemsize, key), dtype)
    if kind == _BOOL:
        if values.size and int(values.max()) > 1:
            raise damaged(reader.path, key, seen=f"a truth value of {int(values.max())}", wanted="0 or 1")
        values = values.astype(np.bool_)
    return list(values.tolist())


def _read_tensor(reader: HeaderReader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, row-major shape, type number and offset in the data."""
    name = _read_name(reader, "tensor name")
    dimensions: int = reader.unpack(_U32, name)
    if dimensions > 4:
        raise damaged(reader.path, f"dimensions of tensor {name}", seen=dimensions, wanted="at most 4")
    sizes = [reader.unpack(_U64, name) for _ in range(dimensions)]
    if not all(sizes) or math.prod(sizes) >= 2**62:
        raise damaged(
            reader.path, f"sizes of tensor {name}", seen=sizes, wanted="positive sizes with a product below 2**62"
        )
    return name, tuple(reversed(sizes)), reader.unpack(_U32, name), reader.unpack(_U64, name)


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 2**30 or value & (value - 1):
        raise damaged(path, "general.alignment", seen=quoted(value), wanted="a power of two")
    return value


def _place(
    path: Path, raw: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int, size: int
) -> dict[str, GgufTensor]:
    """Check types, offsets and extents, and that no two tensors share bytes."""
    tensors: dict[str, GgufTensor] = {}
    for name, shape, type_id, offset in raw:
        if name in tensors:
            raise damaged(path, f"tensor {name}", seen="it twice", wanted="every name once")
        if offset % alignment:
            raise damaged(
                path, f"offset of tensor {name}", seen=offset, wanted=f"a multiple of the alignment {alignment}"
            )
        dtype = BY_GGUF_ID.get(type_id) or DType(f"GGUF_TYPE_{type_id}", 1, 0, type_id)
        nbytes = _nbytes(path, name, dtype, shape)
        if start + offset + nbytes > size:
            wanted = f"its end within the file of {size} bytes"
            raise damaged(
                path, f"tensor {name}", seen=f"bytes {start + offset} to {start + offset + nbytes}", wanted=wanted
            )
        tensors[name] = GgufTensor(name, dtype, shape, start + offset, nbytes)
    end, last = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset < end:
            raise damaged(
                path, f"tensor {tensor.name}", seen=f"bytes it shares with {last}", wanted="tensors that do not overlap"
            )
        end, last = tensor.offset + tensor.nbytes, tensor.name
    return tensors


def _nbytes(path: Path, name: str, dtype: DType, shape: tuple[int, ...]) -> int:
    columns = shape[-1] if shape else 1
    if columns % dtype.block:
        wanted = f"a multiple of the {format_count(dtype.block, 'element')} in a block of {dtype.name}"
        raise damaged(path, f"row length of tensor {name}", seen=columns, wanted=wanted)
    return math.prod(shape[:-1]) * dtype.row_bytes(columns)
