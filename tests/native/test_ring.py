"""Rows between stages: in order, unharmed, no faster than the slowest reader, and no wait without an end."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend, RingMemory, RingReader, RingWriter
from homenode.errors import PeerError, UserError
from tests.native.rank_threads import together
from tests.native.steps import Part, limits, same_bits, step_of
from tests.native.test_ranks import memfd
from tests.paths import ROOT
from tests.waiting import PATIENCE_S


def rows_of(step: int, columns: int = 33) -> Any:
    rng = np.random.default_rng(step)
    return rng.standard_normal((int(rng.integers(1, 20)), columns)).astype(np.float32)


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("spin_us", [0, 50])
def test_every_reader_has_every_row(readers: int, slots: int, spin_us: int) -> None:
    memory = RingMemory.make(20, 33, readers, slots)
    writer = RingWriter(memory.fd, spin_us)
    ends = [RingReader(memory.fd, r, spin_us) for r in range(readers)]
    numbers = [3 * i + 1 for i in range(150)]

    def write() -> None:
        for number in numbers:
            writer.write(number, rows_of(number), PATIENCE_S)

    def read(end: RingReader) -> None:
        for i, number in enumerate(numbers):
            rows = end.read(number, 33, PATIENCE_S)
            assert not rows.flags.writeable and same_bits(rows, rows_of(number))
            if i % 3 == 0:
                end.release()
                end.release()

    together([write, *(lambda e=e: read(e) for e in ends)])


READER = """
import sys, hashlib, numpy as np
from homenode.compute.native import RingReader
ring = RingReader(int(sys.argv[1]), int(sys.argv[2]))
digest = hashlib.sha256()
for number in range(int(sys.argv[3])):
    digest.update(ring.read(number, 33, 20.0).tobytes())
print(digest.hexdigest())
"""


def test_processes_read() -> None:
    import hashlib

    memory = RingMemory.make(20, 33, 2, 2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(memory.fd), str(r), "200"],
            pass_fds=[memory.fd],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for r in range(2)
    ]
    writer, digest = RingWriter(memory.fd), hashlib.sha256()
    for number in range(200):
        writer.write(number, rows_of(number), PATIENCE_S)
        digest.update(rows_of(number).tobytes())
    assert [p.communicate(timeout=30)[0].strip() for p in processes] == [digest.hexdigest()] * 2


def test_rows_stay_while_they_are_held() -> None:
    memory = RingMemory.make(20, 33, slots=1)
    writer, reader = RingWriter(memory.fd), RingReader(memory.fd)
    writer.write(0, rows_of(0), PATIENCE_S)
    held = reader.read(0, 33, PATIENCE_S)
    with pytest.raises(PeerError, match=r"reader 0 of a ring made no room within 0\.1 s"):
        writer.write(1, rows_of(1), 0.1)
    assert same_bits(held, rows_of(0))
    reader.release()
    writer.write(1, rows_of(1), 0.1)
    assert same_bits(reader.read(1, 33, 0.1), rows_of(1))
    del reader, writer, memory
    assert held.shape == rows_of(0).shape  # mapped as long as the array is


def test_programs_write_and_read_without_a_copy_between() -> None:
    backend = NativeBackend([-1, -1])
    table = backend.weight_from_array(np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32), "F32")
    norm = backend.vector(np.ones(40))
    first = backend.compile(lambda ops: ops.embedding(table), limits(20))
    second = backend.compile(lambda ops: ops.rms_norm(ops.received(40), norm, 1e-5), limits(20))
    memory = RingMemory.make(20, 40)
    writer, reader = RingWriter(memory.fd), RingReader(memory.fd)
    step = step_of([Part(0, 5)], [1, 8, 3, 0, 2])
    writer.write(7, first.run(step), PATIENCE_S)
    step.hidden = reader.read(7, 40, PATIENCE_S)
    assert same_bits(
        second.run(step).numpy(),
        backend.compile(lambda ops: ops.rms_norm(ops.embedding(table), norm, 1e-5), limits(20)).run(step).numpy(),
    )


def test_waits_have_ends() -> None:
    memory = RingMemory.make(20, 33, readers=2, slots=1)
    writer, readers = RingWriter(memory.fd), [RingReader(memory.fd, r) for r in range(2)]
    begin = time.monotonic()
    with pytest.raises(PeerError, match=r"did not write step 5 within 0.05 s"):
        readers[0].read(5, 33, 0.05)
    with pytest.raises(PeerError, match=r"within 0 s"):
        readers[0].read(5, 33, 0)
    writer.write(5, rows_of(5), 0.05)
    assert same_bits(readers[0].read(5, 33, 0.05), rows_of(5))  # a wait that ended in vain ended nothing else
    readers[0].release()
    with pytest.raises(PeerError, match="reader 1 of a ring made no room"):
        writer.write(6, rows_of(6), 0.05)
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("spin_us", [0, 10_000_000])
@pytest.mark.parametrize("who", ["writer", "reader", "engine"])
def test_leaving_ends_every_wait_but_keeps_what_was_written(who: str, spin_us: int) -> None:
    memory = RingMemory.make(20, 33, readers=2, slots=2)
    writer, readers = RingWriter(memory.fd, spin_us), [RingReader(memory.fd, r, spin_us) for r in range(2)]
    writer.write(0, rows_of(0), PATIENCE_S)
    writer.write(1, rows_of(1), PATIENCE_S)
    leave = {"writer": writer, "reader": readers[1], "engine": memory}[who].leave
    failures: list[str] = []

    def end_up(wait: Any) -> None:
        with pytest.raises(PeerError, match="was ended") as caught:
            wait()
        failures.append(str(caught.value))

    def read_on() -> None:
        for number in range(2):
            assert same_bits(readers[0].read(number, 33, PATIENCE_S), rows_of(number))
        readers[0].read(2, 33, PATIENCE_S)

    threads = [
        threading.Thread(target=end_up, args=(wait,))
        for wait in (lambda: writer.write(2, rows_of(2), PATIENCE_S), read_on)
    ]
    for thread in threads:
        thread.start()
    leave()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(failures) == 2
    leave()
    with pytest.raises(PeerError, match="was ended"):
        writer.write(3, rows_of(3), PATIENCE_S)


def test_wrong_rows_are_refused() -> None:
    memory = RingMemory.make(4, 33)
    writer, reader = RingWriter(memory.fd), RingReader(memory.fd)
    for rows in (np.ones((5, 33)), np.ones((1, 32)), np.ones((0, 33))):
        with pytest.raises(ValueError, match="for a ring of at most 4 x 33"):
            writer.write(0, rows, PATIENCE_S)
    writer.write(4, np.ones((4, 33), np.float32), PATIENCE_S)
    with pytest.raises(ValueError, match="step 4 after step 4"):
        writer.write(4, np.ones((4, 33), np.float32), PATIENCE_S)
    with pytest.raises(ValueError, match="rows of 32 values from a ring of 33"):
        reader.read(4, 32, PATIENCE_S)
    with pytest.raises(PeerError, match="step 4 in a ring where step 5 is wanted"):
        reader.read(5, 33, PATIENCE_S)
    assert reader.read(4, 33, PATIENCE_S).shape == (4, 33)
    for reader_number in (-1, 1):
        with pytest.raises(UserError, match="of a ring with 1"):
            RingReader(memory.fd, reader_number)
    assert writer.memory.nbytes >= 3 * 4 * 33 * 4 and reader.memory.nbytes == writer.memory.nbytes


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 33, 1, 3),
        (4, 0, 1, 3),
        (4, 33, 0, 3),
        (4, 33, 1, 0),
        (1 << 24, 1 << 24, 1, 3),
        (4, 33, 1, 257),
        (4, 33, 1025, 1),
    ],
)
def test_impossible_rings_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(UserError, match=r"a ring of .*wanted"):
        RingMemory.make(*sizes)


def header(
    *, magic: bytes = b"hhnring\0", version: int = 1, slots: int = 3, readers: int = 1, rows: int = 4, columns: int = 33
) -> bytes:
    return struct.pack(
        "<8sII4q", magic[::-1] if sys.byteorder == "big" else magic, version, 0, slots, readers, rows, columns
    )


GOOD_SIZE = 6 * 4096


@pytest.mark.parametrize(
    ("content", "size", "sealed", "message"),
    [
        (header(), GOOD_SIZE, False, "sealed"),
        (header(), GOOD_SIZE - 1, True, "wanted at least"),
        (b"", GOOD_SIZE, True, "no ring"),
        (b"", 3, True, "wanted at least"),
        (header(magic=b"hhnranks"), GOOD_SIZE, True, "no ring"),
        (header(version=9), GOOD_SIZE, True, "no ring"),
        (header(slots=0), GOOD_SIZE, True, "0 slots"),
        (header(slots=-3), GOOD_SIZE, True, "slots"),
        (header(readers=2**40), GOOD_SIZE, True, "readers"),
        (header(rows=2**62), GOOD_SIZE, True, "rows"),
        (header(rows=2**24, columns=2**24), GOOD_SIZE, True, "floats in a slot"),
        (header(rows=40), GOOD_SIZE, True, "wanted at least"),
    ],
)
def test_memory_that_is_no_ring_is_refused(content: bytes, size: int, sealed: bool, message: str) -> None:
    fd = memfd(content, size, sealed)
    for attach in (RingWriter, RingReader):
        with pytest.raises(UserError, match=message):
            attach(fd)
    os.close(fd)


def test_memory_that_somebody_garbles_gives_errors_or_values() -> None:
    fd = memfd(header(), GOOD_SIZE)
    rng = np.random.default_rng(0)
    for _ in range(50):
        writer, reader = RingWriter(fd), RingReader(fd)
        os.pwrite(fd, rng.bytes(GOOD_SIZE - 4096), 4096)
        for number in range(5):
            try:
                writer.write(number, np.ones((4, 33), np.float32), 0.001)
                assert reader.read(number, 33, 0.001).shape[0] <= 4
            except PeerError:
                continue
    os.close(fd)
