"""The words every floor shares: sizes, durations, CPU lists, storage formats, declared options."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, format_cpu_mask, parse_cpu_list, parse_cpu_mask
from homenode.dtypes import BY_GGUF_ID, BY_NAME
from homenode.errors import UserError
from homenode.units import format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512KiB", 524288),
        ("2 GiB", 2**31),
        ("1.5kib", 1536),
        ("10", 10),
        ("3MB", 3_000_000),
        ("1g", 10**9),
        (77, 77),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.5", "1XB", "0x10", "9999999TiB", "1e3", "١"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="not a size"):
        parse_bytes(text)


@given(st.integers(0, 2**50))
def test_a_formatted_size_is_near(size: int) -> None:
    assert abs(float(parse_bytes_approximately(format_bytes(size))) - size) <= size * 0.06


def parse_bytes_approximately(text: str) -> float:
    number = text.rstrip("BKiMGT")
    return float(number) * 1024 ** ("BKMGT".index(text[len(number)]))


def test_durations() -> None:
    assert [parse_seconds(t) for t in ("1.5s", "250ms", "5min", "2h", 3)] == [1.5, 0.25, 300, 7200, 3]
    with pytest.raises(UserError, match="not a duration"):
        parse_seconds("soon")


@given(st.sets(st.integers(0, 5000)))
def test_cpu_lists_round_trip(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "-1", "0-99999999", "1" * 5000, "٣", "0-3:2", "0x1"])
def test_what_is_no_cpu_list(text: str) -> None:
    with pytest.raises(UserError, match="not a CPU list"):
        parse_cpu_list(text)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        (" 0-2, 8\n", (0, 1, 2, 8)),
        ("5,2-4,3", (2, 3, 4, 5)),
        ("0-3,1-2,3-4", (0, 1, 2, 3, 4)),
        (",,7,", (7,)),
        ("65535", (65535,)),
    ],
)
def test_cpu_lists_come_out_ascending_and_once(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_a_large_range_repeated_takes_no_longer_than_once() -> None:
    assert len(parse_cpu_list("0-65535," * 20_000)) == 65536


@given(st.sets(st.integers(0, 5000)))
def test_cpu_masks_round_trip(cpus: set[int]) -> None:
    assert parse_cpu_mask(format_cpu_mask(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("3", (0, 1)),
        ("00000000,000000ff\n", tuple(range(8))),
        ("1,00000000,80000000", (31, 64)),
        ("00000000", ()),
        ("F", (0, 1, 2, 3)),
    ],
)
def test_cpu_masks(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_mask(text) == cpus


def test_masks_are_written_in_whole_groups() -> None:
    assert [format_cpu_mask(cpus) for cpus in ((), (0, 1), (32, 0), (31,))] == [
        "00000000",
        "00000003",
        "00000001,00000001",
        "80000000",
    ]


@pytest.mark.parametrize("text", ["", "g", "0x3", "000000001", "1,", "-1", "1 2", "٣", "0," * 2048 + "1"])
def test_what_is_no_cpu_mask(text: str) -> None:
    with pytest.raises(UserError, match="not a CPU mask"):
        parse_cpu_mask(text)


@given(st.text(alphabet="0123456789abf,- \n", max_size=40))
def test_any_text_is_a_set_of_cpus_or_a_users_error(text: str) -> None:
    for parse in (parse_cpu_list, parse_cpu_mask):
        with contextlib.suppress(UserError):
            assert list(parse(text)) == sorted(set(parse(text)))


def test_block_sizes_agree_with_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    known = {each.value for each in gguf.GGMLQuantizationType}
    assert len(known & BY_GGUF_ID.keys()) > 20
    for number, dtype in BY_GGUF_ID.items():
        if dtype.name == "Q8_1" or number not in known:
            # the package still lists the first form of Q8_1, with float32 scales; files would hold the later one with
            # halves. A type may be newer than the package.
            continue
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (dtype.block, dtype.bytes), dtype.name


def test_rows_end_with_blocks() -> None:
    assert BY_NAME["Q4_K"].row_bytes(512) == 288
    with pytest.raises(ValueError, match="inside"):
        BY_NAME["Q8_0"].row_bytes(33)
