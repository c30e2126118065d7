"""Tensors that clients send: read without unpickling, bounded by what is there, refused by name."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from homenode.engine.sent_tensor import TensorFormatError, read_sent_tensor

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def stored(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], dtype: str) -> bytes:
    """The values as bytes of a type of safetensors."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def safetensors_of(dtype: str = "F32", names: tuple[str, ...] = ("x",), shape: tuple[int, ...] = (3, 4)) -> bytes:
    data = stored(VALUES, dtype)
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [at * len(data), (at + 1) * len(data)]}
        for at, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data * len(names)


def text(said: str) -> bytes:
    return b"X" + struct.pack("<I", len(said)) + said.encode()


def pickled(
    storage: str = "FloatStorage",
    key: str = "0",
    shape: tuple[int, int] = (3, 4),
    strides: tuple[int, int] = (4, 1),
    offset: int = 0,
    function: str = "torch._utils\n_rebuild_tensor_v2",
) -> bytes:
    """What torch writes beside the numbers of a tensor."""

    def pair(numbers: tuple[int, int]) -> bytes:
        return b"".join(b"J" + struct.pack("<i", number) for number in numbers) + b"\x86q\x07"

    return b"".join(
        (
            b"\x80\x02c", function.encode(), b"\nq\x00((", text("storage"), b"q\x01ctorch\n", storage.encode(),
            b"\nq\x02", text(key), b"q\x03", text("cpu"), b"q\x04K\x0ctq\x05QJ", struct.pack("<i", offset), pair(shape),
            pair(strides), b"\x89ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b.",
        )
    )  # fmt: skip


def zipped(
    told: bytes, data: bytes, *, how: int = zipfile.ZIP_STORED, byteorder: bytes = b"little", key: str = "0"
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as entries:
        for name, content in (("data.pkl", told), ("byteorder", byteorder), (f"data/{key}", data), ("version", b"3\n")):
            entries.writestr(f"archive/{name}", content)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_both_formats_of_all_types(dtype: str) -> None:
    storage = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "F64": "DoubleStorage"}[dtype]
    for data in (safetensors_of(dtype), zipped(pickled(storage), stored(VALUES, dtype))):
        tensor = read_sent_tensor(data)
        assert tensor.shape == (3, 4) and np.array_equal(tensor.array(), VALUES)


def test_a_part_of_a_storage() -> None:
    tensor = read_sent_tensor(zipped(pickled(shape=(2, 4), offset=4), stored(VALUES, "F32")))
    assert np.array_equal(tensor.array(), VALUES[1:])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "neither"),
        (b"\x80\x04N.", "neither"),
        (safetensors_of(names=("a", "b")), "2 tensors"),
        (safetensors_of(shape=(3, 5)), "wanted 60"),
        (safetensors_of()[:-1], "data_offsets"),
        (safetensors_of().replace(b'"F32"', b'"I32"'), "type I32"),
        (struct.pack("<Q", 2**62) + b"{}", "header of"),
        (zipped(pickled(), stored(VALUES, "F32"))[:-30], "damaged zip file"),
        (zipped(pickled(), stored(VALUES, "F32"), how=zipfile.ZIP_DEFLATED), "compressed"),
        (zipped(pickled(), stored(VALUES, "F32"), byteorder=b"big"), "little-endian"),
        (zipped(pickled(key="1"), stored(VALUES, "F32")), "no storage '1'"),
        (zipped(pickled(strides=(1, 3)), stored(VALUES, "F32")), "contiguous"),
        (zipped(pickled(shape=(2**20, 2**20), strides=(2**20, 1)), b""), "0 bytes for"),
        (zipped(pickled(offset=1), stored(VALUES, "F32")), "48 bytes for 13 numbers"),
        (zipped(pickled(offset=-4), stored(VALUES, "F32")), "no plain tensor"),
        (zipped(pickled("LongStorage"), stored(VALUES, "F32")), "no plain tensor"),
        (zipped(pickled(function="os\nsystem"), stored(VALUES, "F32")), "no plain tensor"),
        (zipped(b"\x80\x02" + b"q\x00" * 3000, b""), "more than one plain tensor"),
        (zipped(b"\x80\x02q\x00.", b""), "damaged pickle"),
        (zipped(b"\x80\x02K\x01", b""), "damaged pickle"),
        (zipped(pickle.dumps({"a": [1]}), b""), "instruction"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(data: bytes, what: str) -> None:
    with pytest.raises(TensorFormatError, match=what):
        read_sent_tensor(data)


class _Runs:
    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return eval, ("1 / 0",)


def test_nothing_of_a_pickle_is_run() -> None:
    with pytest.raises(ZeroDivisionError):
        pickle.loads(pickle.dumps(_Runs(lambda: None), protocol=2))
    for protocol in range(2, 6):
        with pytest.raises(TensorFormatError):
            read_sent_tensor(zipped(pickle.dumps(_Runs(lambda: None), protocol=protocol), b""))


def test_damage_is_refused_and_nothing_else_is_raised() -> None:
    draw = random.Random(7)
    whole = [safetensors_of(), zipped(pickled(), stored(VALUES, "F32"))]
    for _ in range(600):
        data = bytearray(draw.choice(whole))
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            data[at : at + draw.randint(0, 2)] = draw.randbytes(draw.randint(0, 2))
        try:
            assert read_sent_tensor(bytes(data)).array().size <= len(data)
        except TensorFormatError as error:
            assert str(error)
