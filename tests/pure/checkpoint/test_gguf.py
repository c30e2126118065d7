"""The GGUF parser: every kind of value, every real file we have, and a table of hostile ones."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.dtypes import BY_GGUF_ID
from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.formats.gguf import read_gguf
from homenode.model.formats.gguf_set import find_gguf, read_gguf_set
from homenode.model.spec import TensorEntry
from tests.checkpoints import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    gguf_bytes,
    gguf_string,
    make_gguf,
)  # fmt: skip
from tests.memory import memory_headroom
from tests.paths import DATA, STORIES, needs_data

KINDS: dict[str, tuple[int, Any]] = {
    "u8": (U8, 255), "i8": (I8, -128), "u16": (U16, 65535), "i16": (I16, -32768), "u32": (U32, 2**32 - 1),
    "i32": (I32, -(2**31)),
    "f32": (F32, 0.5), "yes": (BOOL, True), "no": (BOOL, False), "text": (STRING, "naïve ✓"), "u64": (U64, 2**64 - 1),
    "i64": (I64, -(2**63)), "f64": (F64, math.pi), "empty": (STRING, ""),
}  # fmt: skip


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value_alone_and_in_arrays(version: int, tmp_path: Path) -> None:
    pairs: list[tuple[str, int, Any]] = [(name, kind, value) for name, (kind, value) in KINDS.items()]
    pairs += [(f"{name}s", ARRAY, (kind, [value] * 3)) for name, (kind, value) in KINDS.items()]
    pairs += [("none", ARRAY, (U32, [])), ("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["a"]), (F32, [])]))]
    found = read_gguf(write(tmp_path / "m.gguf", gguf_bytes(pairs, version=version)))
    assert found.version == version
    wanted = {name: value for name, (_, value) in KINDS.items()} | {
        f"{name}s": [value] * 3 for name, (_, value) in KINDS.items()
    }
    assert found.metadata == wanted | {"none": [], "nested": [[1, 2], ["a"], []]}
    assert {k: type(v) for k, v in found.metadata.items()} == {
        k: type(v) for k, v in (wanted | {"none": [], "nested": []}).items()
    }


def test_token_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    pairs = [("t", ARRAY, struct.pack("<IQ", STRING, 2) + gguf_string(b"\xff\x80") + gguf_string("é"))]
    tokens = read_gguf(write(tmp_path / "m.gguf", gguf_bytes(pairs))).metadata["t"]
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == [b"\xff\x80", "é".encode()]


def test_a_long_array_of_strings_across_reads(tmp_path: Path) -> None:
    tokens = [f"token {i} " + "x" * (i % 700) for i in range(20_000)]  # 7 MB: several reads of the header
    pairs = [("tokens", ARRAY, (STRING, tokens)), ("after", U32, 7)]
    assert read_gguf(write(tmp_path / "m.gguf", gguf_bytes(pairs))).metadata == {"tokens": tokens, "after": 7}


def test_tensors_are_where_the_package_put_them(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = make_gguf(tmp_path / "m.gguf", matrix_type="Q8_0")
    ours, theirs = read_gguf(path), {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert ours.tensors.keys() == theirs.keys()
    for name, tensor in ours.tensors.items():
        reference = theirs[name]
        assert (tensor.offset, tensor.nbytes) == (reference.data_offset, reference.n_bytes), name
        assert (
            tensor.shape == tuple(int(n) for n in reversed(reference.shape))
            and tensor.dtype.name == reference.tensor_type.name
        )


def test_every_known_type_is_placed(tmp_path: Path) -> None:
    """Nothing a valid file holds is refused for its type; the sizes follow from the block sizes."""
    tensors, at = [], 0
    for number, dtype in BY_GGUF_ID.items():
        tensors.append((dtype.name, [256, 3], number, at))
        at += -(-3 * dtype.row_bytes(256) // 32) * 32
    found = read_gguf(write(tmp_path / "m.gguf", gguf_bytes([], tensors, bytes(at)))).tensors
    assert {name: t.nbytes for name, t in found.items()} == {d.name: 3 * d.row_bytes(256) for d in BY_GGUF_ID.values()}
    assert all(t.shape == (3, 256) for t in found.values())


def test_an_unknown_type_is_an_error_only_for_its_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf_bytes([], [("odd", [32], 99, 0), ("plain", [2], 0, 32)], bytes(40)))
    found = read_gguf(path).tensors
    assert found["odd"].dtype.name == "GGUF_TYPE_99" and found["odd"].nbytes == 0 and found["plain"].nbytes == 8
    with pytest.raises(UnsupportedError, match="tensor odd is stored as GGUF_TYPE_99"):
        list(iter_decoded_rows(TensorEntry("odd", found["odd"].dtype, (32,), path, found["odd"].offset, 0)))


def test_alignment_other_than_32(tmp_path: Path) -> None:
    content = gguf_bytes(
        [("general.alignment", U32, 128)], [("a", [3], 0, 0), ("b", [3], 0, 128)], bytes(140), alignment=128
    )
    tensors = read_gguf(write(tmp_path / "m.gguf", content)).tensors
    assert tensors["a"].offset % 128 == 0 and tensors["b"].offset - tensors["a"].offset == 128


def test_a_scalar_tensor(tmp_path: Path) -> None:
    tensor = read_gguf(write(tmp_path / "m.gguf", gguf_bytes([], [("s", [], 0, 0)], bytes(4)))).tensors["s"]
    assert tensor.shape == () and tensor.nbytes == 4


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    """The bytes of an array that claims `count` elements."""
    return struct.pack("<IQ", kind, count) + items


def deep(levels: int) -> bytes:
    return array(ARRAY, 1) * levels + array(U8, 0)


F = (0, 0)  # type F32, offset 0
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "magic number"),
    "another file": (b"PK\3\4" + bytes(64), "magic number"),
    "only a magic number": (b"GGUF", "version"),
    "2**63 tensors": (gguf_bytes(counts=(2**63, 0)), "number of tensors"),
    "100000 tensors in 24 bytes": (gguf_bytes(counts=(100_000, 0)), "100000 tensors"),
    "2**64 - 1 pairs": (gguf_bytes(counts=(0, 2**64 - 1)), "number of key-value pairs"),
    "60000 pairs in 24 bytes": (gguf_bytes(counts=(0, 60_000)), "60000 key-value pairs"),
    "a key of 2**60 bytes": (gguf_bytes(counts=(0, 1), alignment=1) + struct.pack("<Q", 2**60) + bytes(64),
        "length of a metadata key"),
    "an empty key": (gguf_bytes([("", U8, 1)]), "length of a metadata key"),
    "a key that is no UTF-8": (gguf_bytes([(b"\xff\xfe", U8, 1)]), "wanted UTF-8"),
    "a key with a line break": (gguf_bytes([("a\nb", U8, 1)]), "printable"),
    "a key twice": (gguf_bytes([("a", U8, 1), ("a", U8, 1)]), "key a: seen it twice"),
    "an unknown kind": (gguf_bytes([("a", 13, b"")]), "kind 13"),
    "a string beyond the file": (gguf_bytes([("a", U64, 2**62)]).replace(struct.pack("<I", U64),
        struct.pack("<I", STRING)), "truncated"),
    "a truth value of 2": (gguf_bytes([("a", BOOL, b"\2")]), "truth value of 2"),
    "an array of 2**62 numbers": (gguf_bytes([("a", ARRAY, array(F64, 2**62))]), "array elements"),
    "an array of a million numbers in 40 bytes": (gguf_bytes([("a", ARRAY, array(F64, 10**6, bytes(40)))]),
        "array elements"),
    "an array of a million strings in 40 bytes": (gguf_bytes([("a", ARRAY, array(STRING, 10**6, bytes(40)))]),
        "array elements"),
    "an array with a string beyond the file": (gguf_bytes([("a", ARRAY, array(STRING, 1, struct.pack("<Q", 2**40)))]),
        "truncated"),
    "an array of an unknown kind": (gguf_bytes([("a", ARRAY, array(77, 1, bytes(8)))]), "kind 77"),
    "arrays nested too deeply": (gguf_bytes([("a", ARRAY, deep(50))]), "nested 9 deep"),
    "a hundred thousand nested arrays": (gguf_bytes([("a", ARRAY, deep(100_000))]), "nested 9 deep"),
    "five dimensions": (gguf_bytes([], [("t", [1] * 5, *F)], bytes(4)), "dimensions of tensor t"),
    "2**32 - 1 dimensions": (gguf_bytes(counts=(1, 0), alignment=1) + gguf_string("t") + b"\xff" * 64,
        "dimensions of tensor t"),
    "a size of zero": (gguf_bytes([], [("t", [0, 4], *F)], bytes(4)), "sizes of tensor t"),
    "sizes whose product overflows": (gguf_bytes([], [("t", [2**40, 2**40], *F)], bytes(4)), "sizes of tensor t"),
    "a product of 2**64": (gguf_bytes([], [("t", [2**32, 2**32], *F)], bytes(4)), "sizes of tensor t"),
    "a tensor larger than the file": (gguf_bytes([], [("t", [2**40], *F)], bytes(64)), "within the file"),
    "an offset outside the file": (gguf_bytes([], [("t", [4], 0, 2**40)], bytes(64)), "within the file"),
    "an offset of 2**64 - 32": (gguf_bytes([], [("t", [4], 0, 2**64 - 32)], bytes(64)), "within the file"),
    "an unknown type outside the file": (gguf_bytes([], [("t", [4], 99, 2**40)], bytes(64)), "within the file"),
    "a misaligned tensor": (gguf_bytes([], [("t", [4], 0, 8)], bytes(64)), "multiple of the alignment"),
    "overlapping tensors": (gguf_bytes([], [("a", [16], 0, 0), ("b", [4], 0, 32)], bytes(64)), "shares with a"),
    "a tensor twice": (gguf_bytes([], [("t", [4], *F), ("t", [4], 0, 32)], bytes(64)), "seen it twice"),
    "a nameless tensor": (gguf_bytes([], [("", [4], *F)], bytes(64)), "length of a tensor name"),
    "a row that ends inside a block": (gguf_bytes([], [("t", [33], 8, 0)], bytes(64)), "row length of tensor t"),
    "alignment 0": (gguf_bytes([("general.alignment", U32, 0)]), "power of two"),
    "alignment 48": (gguf_bytes([("general.alignment", U32, 48)]), "power of two"),
    "alignment 2**62": (gguf_bytes([("general.alignment", U64, 2**62)]), "power of two"),
    "alignment as text": (gguf_bytes([("general.alignment", STRING, "32")]), "power of two"),
    "alignment as a truth value": (gguf_bytes([("general.alignment", BOOL, True)]), "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_refuses(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    path = write(tmp_path / "bad.gguf", content)
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match=message) as caught:
        read_gguf(path)
    assert "bad.gguf" in caught.value.message and len(caught.value.message) < 1000


@pytest.mark.parametrize(
    ("version", "message"), [(1, "version 1"), (4, "version 4"), (0x03000000, "big-endian"), (0x02000000, "big-endian")]
)
def test_versions_and_orders_we_do_not_read(version: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_gguf(write(tmp_path / "m.gguf", gguf_bytes(version=version)))


def test_a_sparse_file_cannot_make_a_large_header(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.gguf",
        gguf_bytes(counts=(0, 1), alignment=1) + gguf_string("a") + struct.pack("<IQ", STRING, 2**36),
    )
    os.truncate(path, 2**40)
    with memory_headroom(64 * 2**20), pytest.raises(CheckpointError, match="limit of 256MiB"):
        read_gguf(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    pairs = [(name, kind, value) for name, (kind, value) in KINDS.items()] + [("a", ARRAY, (STRING, ["x", "yy"]))]
    content = gguf_bytes(pairs, [("t", [4, 2], 0, 0), ("u", [32], 8, 32)], bytes(66))
    path = tmp_path / "m.gguf"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            read_gguf(path)
    assert len(read_gguf(write(path, content)).tensors) == 2


VOCABULARIES = {  # tokens, merges, last token
    "falcon": (65024, 64784, "Ġvictoria"), "gpt-2": (50257, 50000, "<|endoftext|>"),
    "gpt-neox": (50432, 50009, "[PAD50431]"),
    "mpt": (50432, 50009, "[PAD50431]"), "phi-3": (32064, 0, "[PAD32063]"), "starcoder": (49152, 48872, "sdb"),
}  # fmt: skip


@needs_data
@pytest.mark.parametrize("name", VOCABULARIES)
def test_real_vocabularies(name: str) -> None:
    metadata = read_gguf(DATA / "ggml-vocab" / f"ggml-vocab-{name}.gguf").metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    assert (len(tokens), len(metadata.get("tokenizer.ggml.merges", [])), tokens[-1]) == VOCABULARIES[name]
    assert len(metadata.get("tokenizer.ggml.token_type", tokens)) == len(tokens)


@needs_data
def test_the_package_reads_the_same_metadata() -> None:
    gguf = pytest.importorskip("gguf")
    path = DATA / "ggml-vocab" / "ggml-vocab-phi-3.gguf"
    fields = {
        name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")
    }
    assert read_gguf(path).metadata == fields


@needs_data
def test_a_real_model_holds_the_same_numbers_as_its_folder() -> None:
    from homenode.model.checkpoint.index import open_checkpoint

    folder, gguf = open_checkpoint(STORIES), open_checkpoint(STORIES / "stories260K-f32.gguf")
    assert folder.tensors.keys() == gguf.tensors.keys()
    for name, entry in gguf.tensors.items():
        values, wanted = (np.concatenate(list(iter_decoded_rows(e))) for e in (entry, folder.tensors[name]))
        if heads := entry.permuted_heads:
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        assert np.array_equal(values, wanted), name


def test_split_models(tmp_path: Path) -> None:
    first = make_gguf(tmp_path / "m.gguf", split_max_tensors=5)
    (tmp_path / "whole").mkdir()
    whole = read_gguf(make_gguf(tmp_path / "whole" / "w.gguf"))
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 5 and find_gguf(tmp_path) == first
    for part in (parts[0], parts[3]):
        found = read_gguf_set(part)
        assert found.tensors.keys() == whole.tensors.keys()
        assert found.metadata["llama.block_count"] == 2 and len({file for file, _ in found.tensors.values()}) == 5
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"4 of 5 parts, without m-00003-of-00005\.gguf"):
        read_gguf_set(parts[0])


def shard(number: int, count: int, name: str, total: int = 2, **changes: int) -> bytes:
    """One part of a split model, with one tensor."""
    keys = {"split.no": number, "split.count": count, "split.tensors.count": total} | changes
    return gguf_bytes([(key, U32, value) for key, value in keys.items()], [(name, [4], *F)], bytes(16))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (shard(0, 2, "b"), "split.no: seen 0, wanted 1"),
        (shard(1, 3, "b"), "split.count: seen 3, wanted 2"),
        (gguf_bytes([], [("b", [4], *F)], bytes(16)), "split.count: seen -1, wanted 2"),
        (shard(1, 2, "a"), "tensor a: seen it also in m-00001-of-00002.gguf"),
        (b"GGUF", "version"),
    ],
)
def test_parts_that_do_not_belong_together(second: bytes, message: str, tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", shard(0, 2, "a"))
    write(tmp_path / "m-00002-of-00002.gguf", second)
    with pytest.raises(CheckpointError, match=message):
        read_gguf_set(first)


def test_a_split_with_too_few_tensors(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", shard(0, 2, "a", total=9))
    write(tmp_path / "m-00002-of-00002.gguf", shard(1, 2, "b", total=9))
    with pytest.raises(CheckpointError, match="seen 2 tensors in all parts, wanted 9"):
        read_gguf_set(first)


@pytest.mark.parametrize("name", ["model.gguf", "m-00001-of-00003.gguf"])
def test_a_part_by_another_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"ends in -00001-of-00002\.gguf"):
        read_gguf_set(write(tmp_path / name, shard(0, 2, "a")))


def test_a_split_count_that_is_no_number(tmp_path: Path) -> None:
    path = write(tmp_path / "m-00001-of-00002.gguf", gguf_bytes([("split.count", STRING, "2")]))
    with pytest.raises(CheckpointError, match=r"split\.count"):
        read_gguf_set(path)


def test_a_folder_of_several_models(tmp_path: Path) -> None:
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        write(tmp_path / name, gguf_bytes())
    with pytest.raises(UserError, match=r"a\.gguf, b-00001-of-00002\.gguf; wanted exactly one"):
        find_gguf(tmp_path)
