"""Sums and gathers of ranks through shared memory, as threads and as processes, and what happens when one does not
come.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from functools import reduce
from typing import Any

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeRankGroup
from homenode.errors import PeerError, UserError
from tests.native.rank_threads import ranks, together
from tests.native.steps import same_bits
from tests.paths import ROOT
from tests.waiting import PATIENCE_S

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


def normal(*shape: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)


def in_order(values: list[Any]) -> Any:
    return reduce(lambda a, b: a + b, values)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_are_those_of_numpy_in_the_order_of_ranks(size: int) -> None:
    group = ranks(size, 1 << 16)
    rng = np.random.default_rng(size)
    # The last ones cross in several pieces, or one row in several; the larger ones of three ranks and more by shares.
    shapes = [
        (1,),
        (17,),
        (1, 896),
        (3, 33),
        (64, 896),
        (2, 9000),
        (1, 20001),
        *((int(rng.integers(1, 40)), int(rng.integers(1, 900))) for _ in range(8)),
    ]
    values = [[normal(*shape, seed=100 * i + r) for r in range(size)] for i, shape in enumerate(shapes)]
    wanted = [in_order(of_all) for of_all in values]

    def rank(r: int) -> list[Any]:
        found = [of_all[r].copy() for of_all in values]
        for array in found:
            group[r].sum(array)
        return found

    for found in together([lambda r=r: rank(r) for r in range(size)]):
        assert all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gathers_take_columns_of_uneven_widths(size: int) -> None:
    group = ranks(size, 1 << 14)
    rng = np.random.default_rng(size)
    cases = [(int(rng.integers(1, 30)), [int(w) for w in rng.integers(1, 300, size)]) for _ in range(10)]
    # Rows in pieces; ranks that have nothing.
    cases += [(2, [5000 * (r + 1) for r in range(size)]), (3, [7] + [0] * (size - 1))]
    values = [
        [normal(rows, w, seed=100 * i + r) for r, w in enumerate(widths)] for i, (rows, widths) in enumerate(cases)
    ]

    def rank(r: int) -> list[Any]:
        return [group[r].gather(of_all[r], widths) for of_all, (_, widths) in zip(values, cases, strict=True)]

    for found in together([lambda r=r: rank(r) for r in range(size)]):
        assert all(same_bits(a, np.concatenate(b, axis=1)) for a, b in zip(found, values, strict=True))


PROCESS = """
import sys, numpy as np
from homenode.compute.native import NativeRankGroup
fd, rank, rounds = map(int, sys.argv[1:4])
group = NativeRankGroup.attach(fd, rank, 20.0, spin_us=int(sys.argv[4]))
print("there", flush=True)
total = np.zeros(700, np.float32)
for i in range(rounds):
    values = np.arange(700, dtype=np.float32) * (i % 13 + 1) / 7 + rank / 3
    group.sum(values)
    total = total * np.float32(0.5) + group.gather(values.reshape(7, 100), [100] * group.size)[:, -100:].reshape(-1)
sys.stdin.readline() if rounds == 0 else None
print(total.tobytes().hex(), flush=True)
"""


def start(fd: int, rank: int, rounds: int, spin_us: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, str(fd), str(rank), str(rounds), str(spin_us)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("spin_us", [0, 50])
def test_processes_sum_and_gather(size: int, spin_us: int) -> None:
    memory = NativeRankGroup.make(size, 1 << 14)
    processes = [start(memory.fd, rank, 300, spin_us) for rank in range(size)]
    outputs = [p.communicate(timeout=60)[0].split() for p in processes]
    assert all(p.returncode == 0 for p in processes)
    total = np.zeros(700, np.float32)
    for i in range(300):
        values = in_order(
            [np.arange(700, dtype=np.float32) * (i % 13 + 1) / 7 + np.float32(rank / 3) for rank in range(size)]
        )
        total = total * np.float32(0.5) + values
    assert {words[1] for words in outputs} == {total.tobytes().hex()}


def test_a_killed_rank_is_named_once_the_engine_says_so() -> None:
    memory = NativeRankGroup.make(3)
    mine = NativeRankGroup.attach(memory.fd, 0, PATIENCE_S)
    processes = [start(memory.fd, rank, 0) for rank in (1, 2)]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "there\n"
    failures: list[PeerError] = []

    def wait() -> None:
        with pytest.raises(PeerError) as caught:
            mine.sum(np.ones(5, np.float32))
        failures.append(caught.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    processes[1].send_signal(signal.SIGKILL)
    processes[1].wait(20)
    memory.leave([2])
    waiter.join(20)
    assert not waiter.is_alive() and str(failures[0]) == "rank 2 of 3 left the group"
    with pytest.raises(PeerError, match="rank 2 of 3 left"):
        mine.gather(np.ones((1, 1), np.float32), [1, 1, 1])
    processes[0].communicate("\n", timeout=20)


def test_who_does_not_come_is_named_by_all() -> None:
    group = ranks(4, timeout_s=0.2)

    def rank(r: int) -> str:
        begin = time.monotonic()
        with pytest.raises(PeerError) as caught:
            group[r].sum(np.ones(3, np.float32))
        assert time.monotonic() - begin < 10
        return str(caught.value)

    assert set(together([lambda r=r: rank(r) for r in (0, 2)])) == {"rank 1, 3 of 4 did not come within 0.2 s"}
    with pytest.raises(PeerError, match="rank 1, 3 of 4 did not come"):
        group[1].sum(np.ones(3, np.float32))  # too late: it is over for all


@pytest.mark.parametrize("spin_us", [0, 10_000_000])
def test_leaving_ends_the_waits_of_others(spin_us: int) -> None:
    group = ranks(3, spin_us=spin_us)

    def rank(r: int) -> str:
        with pytest.raises(PeerError) as caught:
            group[r].sum(np.ones(3, np.float32))
        return str(caught.value)

    messages = together([lambda: rank(0), lambda: rank(2), group[1].leave], 10)
    assert messages == ["rank 1 of 3 left the group", "rank 1 of 3 left the group", None]
    group[1].leave()
    group[0].leave()


def test_a_rank_that_goes_has_left() -> None:
    group = ranks(2)
    del group[1]
    with pytest.raises(PeerError, match="rank 1 of 2 left"):
        group[0].sum(np.ones(3, np.float32))


def test_an_end_without_a_name() -> None:
    memory = NativeRankGroup.make(2)
    group = NativeRankGroup.attach(memory.fd, 1, PATIENCE_S)
    memory.leave()
    memory.leave([7, -1])
    with pytest.raises(PeerError, match="the group of 2 ranks was ended"):
        group.sum(np.ones(1, np.float32))


def test_ranks_that_make_different_calls_are_told_so() -> None:
    group = ranks(2)

    def rank(r: int) -> str:
        with pytest.raises(PeerError) as caught:
            group[r].sum(np.ones((2, 3 + r), np.float32))
        return str(caught.value)

    assert any(
        "makes other calls" in m and "sum of 2 x 3" in m and "sum of 2 x 4" in m
        for m in together([lambda: rank(0), lambda: rank(1)])
    )


def test_wrong_arguments_are_refused() -> None:
    (group,) = ranks(1)
    for values in (np.ones(3), np.ones((4, 4), np.float32)[:, ::2], np.ones(3, np.int32)):
        with pytest.raises(ValueError, match="C-contiguous float32"):
            group.sum(values)
    for widths in ([4], [3, 1], [-3], []):
        with pytest.raises(ValueError, match="gather"):
            group.gather(np.ones((2, 3), np.float32), widths)
    group.sum(np.empty(0, np.float32))
    memory = NativeRankGroup.make(2)
    assert memory.size == 2
    NativeRankGroup.attach(memory.fd, 0, 1.0)
    for rank, message in ((0, "rank 0 of a group is taken"), (2, "rank 2 of a group of 2"), (-1, "rank -1")):
        with pytest.raises(UserError, match=message):
            NativeRankGroup.attach(memory.fd, rank, 1.0)
    with pytest.raises(UserError, match="wanted more than 0"):
        NativeRankGroup.attach(memory.fd, 1, 0)
    for size, bytes_per_rank in ((0, 4096), (1025, 4096), (2, 100), (2, 1 << 40)):
        with pytest.raises(UserError, match="wanted"):
            NativeRankGroup.make(size, bytes_per_rank)


def header(*, magic: bytes = b"hhnranks", version: int = 2, ranks: int = 2, region: int = 4096) -> bytes:
    return struct.pack("<8sIIq", magic[::-1] if sys.byteorder == "big" else magic, version, ranks, region)


def memfd(content: bytes, size: int, sealed: bool = True) -> int:
    fd = os.memfd_create("a test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, content, 0)
    if sealed:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd


GOOD_SIZE = 3 * (2 << 20)


@pytest.mark.parametrize(
    ("content", "size", "sealed", "message"),
    [
        (header(), GOOD_SIZE, False, "sealed"),
        (header(), GOOD_SIZE - 4096, True, "wanted at least"),
        (b"", 8, True, "wanted at least"),
        (b"", 0, True, "wanted at least"),
        (b"", GOOD_SIZE, True, "no group of ranks"),
        (header(magic=b"hhnring\0"), GOOD_SIZE, True, "no group of ranks"),
        (header(version=9), GOOD_SIZE, True, "no group of ranks"),
        (header(ranks=0), GOOD_SIZE, True, "0 ranks"),
        (header(ranks=3), GOOD_SIZE, True, "wanted at least"),
        (header(ranks=2**32 - 1), GOOD_SIZE, True, "ranks; wanted"),
        (header(region=-1), GOOD_SIZE, True, "-1 bytes"),
        (header(region=2**63 - 1), GOOD_SIZE, True, "bytes for each rank"),
        (header(region=1 << 36), GOOD_SIZE, True, "wanted at least"),
    ],
)
def test_memory_that_is_no_group_is_refused(content: bytes, size: int, sealed: bool, message: str) -> None:
    fd = memfd(content, size, sealed)
    with pytest.raises(UserError, match=message):
        NativeRankGroup.attach(fd, 0, 1.0)
    os.close(fd)


def test_memory_that_somebody_garbles_harms_nobody_but_the_sum() -> None:
    """Words and sizes that change after everybody came: waits still end, and nothing outside is touched."""
    fd = memfd(header(), GOOD_SIZE)
    group = NativeRankGroup.attach(fd, 0, 0.3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        os.pwrite(fd, rng.bytes(4096), 0)
        os.pwrite(fd, rng.bytes(1 << 20), 2 << 20)
        os.pwrite(fd, rng.bytes(4096), 4 << 20)
        with pytest.raises(PeerError):
            for _ in range(50):
                group.sum(np.ones((3, 700), np.float32))
    os.close(fd)


def test_a_descriptor_that_is_none_is_refused() -> None:
    with pytest.raises(Exception, match="fstat") as caught:
        NativeRankGroup.attach(-1, 0, 1.0)
    assert type(caught.value).__name__ == "HostError"


def test_handles_of_the_core_are_the_same() -> None:
    (group,) = ranks(1)
    assert isinstance(group.handle, _native.RankGroupHandle) and (group.rank, group.size) == (0, 1)
