"""Sets of CPUs as the Linux kernel writes them: lists `0-3,8,10-11` (cpuset(7), "List format") and masks
`00000001,0000000f` ("Mask format")."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from homenode.errors import UserError

# No machine has more logical CPUs; a larger number is a typing error, and a range of it would eat memory.
_LIMIT = 1 << 16
_GROUP_BITS = 32
_HEX = frozenset("0123456789abcdefABCDEF")


@lru_cache(maxsize=4096)
def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers in `text`, ascending and without repeats; an empty text is an empty set. Raises UserError when it is
    no CPU list."""
    ranges = sorted(_parse_range(part.strip(), text) for part in text.split(",") if part and not part.isspace())
    if all(ranges[at][1] < ranges[at + 1][0] for at in range(len(ranges) - 1)):
        return tuple(chain.from_iterable(range(low, high + 1) for low, high in ranges))
    return tuple(sorted(set(chain.from_iterable(_merged(ranges)))))


def _parse_range(part: str, text: str) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    if not _is_number(first) or (dash and not _is_number(last)):
        raise UserError(f"not a CPU list: {_cut(text)}; write numbers and ranges, such as 0-3,8")
    low, high = int(first), int(last or first)
    if high < low or high >= _LIMIT:
        raise UserError(f"not a CPU list: {_cut(text)}; the range {part} is empty or beyond CPU {_LIMIT - 1}")
    return low, high


def _merged(ranges: list[tuple[int, int]]) -> Iterable[range]:
    """The same CPUs once each: a text may repeat a large range any number of times."""
    end = -1
    for low, high in ranges:
        yield range(max(low, end + 1), high + 1)
        end = max(end, high)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest list text for `cpus`: (0, 1, 2, 8) -> '0-2,8'."""
    parts: list[str] = []
    start = last = -2
    for cpu in sorted(set(cpus)):
        if cpu != last + 1:
            if start >= 0:
                parts.append(str(start) if start == last else f"{start}-{last}")
            start = cpu
        last = cpu
    if start >= 0:
        parts.append(str(start) if start == last else f"{start}-{last}")
    return ",".join(parts)


@lru_cache(maxsize=4096)
def parse_cpu_mask(text: str) -> tuple[int, ...]:
    """CPU numbers in a mask of hexadecimal groups of 32 bits, highest group first; ascending. Raises UserError when it
    is no CPU mask."""
    groups = text.strip().split(",")
    if len(groups) > _LIMIT // _GROUP_BITS or not all(
        0 < len(group) <= 8 and _HEX.issuperset(group) for group in groups
    ):
        raise UserError(f"not a CPU mask: {_cut(text)}; write hexadecimal groups of 32 bits, such as 00000001,0000000f")
    found: list[int] = []
    for at, group in enumerate(reversed(groups)):
        bits = int(group, 16)
        found.extend(at * _GROUP_BITS + bit for bit in range(bits.bit_length()) if bits >> bit & 1)
    return tuple(found)


def format_cpu_mask(cpus: Iterable[int]) -> str:
    """The mask text for `cpus`, in groups of eight digits, as few as hold them: (0, 1, 32) -> '00000001,00000003'."""
    bits = 0
    for cpu in cpus:
        bits |= 1 << cpu
    groups = max(1, -(-bits.bit_length() // _GROUP_BITS))
    return ",".join(f"{bits >> at * _GROUP_BITS & 0xFFFFFFFF:08x}" for at in reversed(range(groups)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _cut(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "...")
