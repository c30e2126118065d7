"""How busy CPUs are, from two looks at /proc/stat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.host.bind.cpu_load import CpuLoad, busy_and_stolen, parse_cpu_times, read_cpu_load
from homenode.host.topology.source import Source

BEFORE = """cpu  30 0 0 300 0 0 0 0 0 0
cpu0 10 0 0 100 0 0 0 0 0 0
cpu1 10 0 0 100 0 0 0 0 0 0
cpu2 10 0 0 100 0 0 0 0 0 0
intr 123 4 5
"""
AFTER = """cpu  130 0 0 350 0 0 0 0 0 0
cpu0 60 0 0 100 0 0 0 0 0 0
cpu1 30 2 3 115 5 3 2 0 20 0
cpu2 10 0 0 110 0 0 0 40 0 0
"""


@pytest.mark.parametrize(
    ("cpus", "own", "parts"),
    [
        ((0,), 0, (1.0, 0.0)),
        ((1,), 0, (0.6, 0.0)),  # waiting for a disk is idle, interrupts are not; time of guests is within user
        ((2,), 0, (0.0, 0.8)),
        ((0, 1), 0, (0.8, 0.0)),
        ((0, 1), 30, (0.5, 0.0)),  # a process that is asked about is not in its own way
        ((0,), 99, (0.0, 0.0)),
        (None, 0, (80 / 150, 40 / 150)),
        ((7,), 0, None),
        ((), 0, None),
    ],
)
def test_parts_of_the_time(cpus: tuple[int, ...] | None, own: int, parts: tuple[float, float] | None) -> None:
    found = busy_and_stolen(parse_cpu_times(BEFORE), parse_cpu_times(AFTER), cpus, own)
    assert found == (None if parts is None else pytest.approx(parts))


@pytest.mark.parametrize("text", ["", "cpu0\n", "cpu0 x 1\n", "cpux 1 2\n", "cpu 1 2 3\n"])
def test_what_cannot_be_read_tells_of_no_cpu(text: str) -> None:
    assert parse_cpu_times(text) == {}


def test_an_old_kernel_tells_of_fewer_kinds() -> None:
    before, after = parse_cpu_times("cpu0 0 0 0 0"), parse_cpu_times("cpu0 1 0 0 3")
    assert busy_and_stolen(before, after) == (0.25, 0.0)


TICKS = st.lists(st.integers(0, 10_000), min_size=8, max_size=10)


@given(before=TICKS, after=TICKS, own=st.integers(0, 100))
def test_parts_are_parts_whatever_the_counters_do(before: list[int], after: list[int], own: int) -> None:
    looks = [parse_cpu_times("cpu0 " + " ".join(map(str, ticks))) for ticks in (before, after)]
    found = busy_and_stolen(*looks, own=own)
    assert found is None or (0 <= found[0] <= 1 and 0 <= found[1] <= 1 and sum(found) <= 1.000001)


class Looks(Source):
    """A machine whose /proc/stat is another one at the second look."""

    def __init__(self, **files: str) -> None:
        self._stat, self._files = iter((BEFORE, AFTER)), files

    def read(self, path: str) -> str | None:
        return next(self._stat) if path == "/proc/stat" else self._files.get(path.rpartition("/")[2])


def test_a_machine_is_looked_at_twice() -> None:
    source = Looks(
        loadavg="5.81 3.2 1.0 7/310 4711\n", cpu="some avg10=62.50 avg60=1.0 avg300=0.0 total=1\nfull avg10=0"
    )
    assert read_cpu_load(source, (0, 1, 9), seconds=0) == CpuLoad(0.8, 0.0, 2, 0, 5.81, 0.625)


def test_what_a_kernel_does_not_tell_is_not_known() -> None:
    load = read_cpu_load(Looks(loadavg="?"), None, seconds=0)
    assert load is not None and (load.cpus, load.load_average, load.waiting) == (3, None, None)
