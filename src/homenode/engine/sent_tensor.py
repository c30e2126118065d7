"""A tensor in bytes that a client sent: a safetensors file with one, or the file that `torch.save` writes of one.

The latter is a zip file with a pickle that says what the tensor is. It is not unpickled: the few instructions that such
a pickle has are followed by hand, on values that can do nothing, and any other one is refused. All sizes are compared
with what is there before anything is made of it.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from homenode.errors import CheckpointError
from homenode.model.formats.safetensors import tensors_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64"}
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
_MOST_PICKLE = 4096  # bytes; that of a tensor has some 300
_MOST_ENTRIES = 16  # files in the zip file
_MOST_DEPTH = 256  # values that a pickle may have at hand
_MOST_HEADER = 65536  # bytes of the header of a safetensors file


class TensorFormatError(ValueError):
    """Bytes that are no tensor of these formats; the text says what was seen and what is wanted."""


class _Callable(NamedTuple):
    """A name in a pickle, which is never called."""

    name: str


@dataclass(frozen=True)
class SentTensor:
    """A tensor, its numbers not looked at yet: `data` in the order of rows, of type `dtype` (F32, F16, BF16, F64)."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def array(self) -> npt.NDArray[np.float32]:
        """Its numbers as float32."""
        import numpy as np  # not before somebody sends one: servers start without it

        if self.dtype == "BF16":
            wide = np.frombuffer(self.data, "<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(self.shape)
        kind = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[self.dtype]
        return np.frombuffer(self.data, kind).astype(np.float32).reshape(self.shape)


def read_sent_tensor(data: bytes) -> SentTensor:
    """The one tensor in `data`. Raises TensorFormatError."""
    if data[:4] == b"PK\x03\x04":
        return _read_zip(data)
    if len(data) >= 10 and data[8:9] == b"{":
        return _read_safetensors(data)
    raise TensorFormatError("neither a safetensors file nor what torch.save writes")


def _read_safetensors(data: bytes) -> SentTensor:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, _MOST_HEADER):
        raise TensorFormatError(f"a safetensors header of {length} bytes in {len(data)}")
    try:
        found = list(tensors_of(Path("safetensors"), data[8 : 8 + length], len(data)).values())
    except CheckpointError as error:
        raise TensorFormatError(error.message) from None
    if len(found) != 1:
        raise TensorFormatError(f"{len(found)} tensors; wanted one")
    entry = found[0]
    if entry.dtype.name not in _WIDTHS:
        raise TensorFormatError(f"numbers of type {entry.dtype.name[:32]}; wanted one of {', '.join(_WIDTHS)}")
    view = memoryview(data)[entry.offset : entry.offset + entry.nbytes]
    return SentTensor(entry.dtype.name, entry.shape, view)


def _read_zip(data: bytes) -> SentTensor:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            names = {info.filename.partition("/")[2]: info for info in file.infolist()}
            if len(file.infolist()) > _MOST_ENTRIES or "data.pkl" not in names:
                raise TensorFormatError("a zip file that is not what torch.save writes of one tensor")
            if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in names.values()):
                raise TensorFormatError("a zip file with compressed entries; torch.save writes none")
            if sum(info.file_size for info in names.values()) > len(data):
                raise TensorFormatError("a zip file whose entries are larger than itself")
            if names["data.pkl"].file_size > _MOST_PICKLE:
                raise TensorFormatError("a description of more than one plain tensor")
            if "byteorder" in names and file.read(names["byteorder"]) != b"little":
                raise TensorFormatError("numbers that are not little-endian")
            told = _described(file.read(names["data.pkl"]))
            storage = names.get(f"data/{told.key}")
            if storage is None:
                raise TensorFormatError(f"no storage {told.key[:32]!r}, which the tensor is said to be in")
            return told.within(file.read(storage))
    except TensorFormatError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, RuntimeError, OSError, struct.error) as error:
        raise TensorFormatError(f"a damaged zip file ({str(error)[:100]})") from None


class _Described(NamedTuple):
    """The description of a tensor in a pickle."""

    dtype: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def within(self, storage: bytes) -> SentTensor:
        """The tensor in the bytes of its storage. Raises TensorFormatError."""
        width, count = _WIDTHS[self.dtype], math.prod(self.shape)
        expected = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        wrong = [stride != along for stride, along, size in zip(self.strides, expected, self.shape, strict=True)]
        if any(bad and size > 1 for bad, size in zip(wrong, self.shape, strict=True)):
            raise TensorFormatError("a tensor that is a view with gaps; send tensor.contiguous()")
        if (self.offset + count) * width > len(storage):
            raise TensorFormatError(f"{len(storage)} bytes for {self.offset + count} numbers of {width} bytes")
        return SentTensor(
            self.dtype, self.shape, memoryview(storage)[self.offset * width : (self.offset + count) * width]
        )


def _described(pickled: bytes) -> _Described:
    made = _followed(pickled)
    try:
        function, (storage, offset, shape, strides, *_rest) = made
        kind, storage_type, key, _device, _count = storage
        sizes = (offset, *shape, *strides)
        if (function, kind) == (_Callable("torch._utils _rebuild_tensor_v2"), "storage") and len(shape) == len(strides):
            dtype = _STORAGES.get(storage_type.name.removeprefix("torch "))
            if dtype is not None and isinstance(key, str) and all(type(n) is int and 0 <= n < 2**40 for n in sizes):
                return _Described(dtype, key, offset, tuple(shape), tuple(strides))
    except (TypeError, ValueError, AttributeError):
        pass
    raise TensorFormatError("what torch.save wrote is no plain tensor of floating point numbers; send tensor.detach()")


def _followed(pickled: bytes) -> Any:
    """Return what the instructions of a pickle leave, with (name, arguments) for what would be called."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    mark = object()
    try:
        for opcode, value, _at in pickletools.genops(pickled):
            match opcode.name:
                case "PROTO" | "FRAME":
                    pass
                case "STOP":
                    return stack.pop()
                case "GLOBAL":
                    stack.append(_Callable(str(value)))
                case "MARK":
                    stack.append(mark)
                case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                    stack.append(value)
                case "NEWTRUE" | "NEWFALSE" | "NONE" | "EMPTY_TUPLE" | "EMPTY_DICT":
                    stack.append(() if opcode.name == "EMPTY_TUPLE" else None)
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    count = int(opcode.name[-1])
                    stack[-count:] = [tuple(stack[-count:])]
                case "TUPLE":
                    begin = len(stack) - 1 - stack[::-1].index(mark)
                    stack[begin:] = [tuple(stack[begin + 1 :])]
                case "REDUCE":
                    stack[-2:] = [tuple(stack[-2:])]
                case "BINPERSID":
                    pass  # the tuple that names a storage stays as it is
                case "BINPUT" | "LONG_BINPUT":
                    memo[value] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[value])
                case _:
                    raise TensorFormatError(f"a pickle with the instruction {opcode.name}, which no tensor needs")
            if len(stack) > _MOST_DEPTH:
                break
    except TensorFormatError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise TensorFormatError(f"a damaged pickle ({str(error)[:100]})") from None
    raise TensorFormatError("a pickle without an end")
