"""Standard error that nobody reads makes nobody wait; what is dropped is counted, and what is not comes in order."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from homenode.logs.stream import QueuedStream

_SMALLEST_PIPE = 4096
_DROPPED = re.compile(r"homenode: (\d+) lines of the log were dropped")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _SMALLEST_PIPE)
    yield reads, writes
    os.close(reads)
    os.close(writes)


def lines_of(reads: int, wanted: int) -> list[str]:
    """Lines read until, with those that were dropped, there are as many as wanted."""
    text, known = "", 0
    while known < wanted:
        text += os.read(reads, 1 << 16).decode()
        whole = text[: text.rfind("\n") + 1].splitlines()
        known = sum(int(match[1]) if (match := _DROPPED.match(line)) else 1 for line in whole)
    return whole


@pytest.mark.parametrize("limit", [1000, 10_000, 100_000])
def test_nobody_waits_for_a_reader_and_every_line_is_there_or_counted(pipe: tuple[int, int], limit: int) -> None:
    stream, count = QueuedStream(pipe[1], limit), 5000
    for number in range(count):  # 60 kB; were one of these writes to wait, the test would not end
        stream.write(f"line {number:6}\n")
    stream.flush()
    lines = lines_of(pipe[0], count)
    told = [line for line in lines if not _DROPPED.match(line)]
    assert (told == sorted(told) and len(told) < count) or limit == 100_000
    stream.write("after\n")
    assert lines_of(pipe[0], 1)[-1] == "after"


def test_drain_waits_for_the_reader_but_not_for_ever(pipe: tuple[int, int]) -> None:
    stream = QueuedStream(pipe[1])
    stream.write("x" * 3 * _SMALLEST_PIPE + "\n")
    assert not stream.drain(0.01)
    reader = threading.Thread(target=lines_of, args=(pipe[0], 1))
    reader.start()
    assert stream.drain(20)
    reader.join()


def test_a_disk_that_is_full_for_a_while_costs_only_the_lines_of_that_while() -> None:
    written, full = bytearray(), threading.Event()

    def write(descriptor: int, data: bytes) -> int:
        if full.is_set():
            raise OSError(28, "No space left on device")
        written.extend(data[:5])
        return len(data[:5])

    stream = QueuedStream(-1, write_bytes=write)
    for text, is_full in (("first\n", False), ("lost\n", True), ("lost\n", True), ("last\n", False)):
        (full.set if is_full else full.clear)()
        stream.write(text)
        assert stream.drain(20)
    assert written.decode().splitlines()[0:2] == ["first", "last"]
    assert _DROPPED.match(written.decode().splitlines()[2])[1] == "2"  # type: ignore[index]


_LOOK = """
import os, sys
from homenode.logs.stream import open_standard_streams
open_standard_streams()
kinds = [os.readlink(f"/proc/self/fd/{number}") == os.devnull for number in range(3)]
print("heard", file=sys.stderr)
print("said")
sys.exit(int("".join(str(int(kind)) for kind in kinds), 2))
"""


@pytest.mark.parametrize("closed", range(8))
def test_streams_that_are_closed_are_opened_on_nothing(closed: int) -> None:
    shut = "".join(f" {number}>&-" for number in range(3) if closed >> (2 - number) & 1)
    ran = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1"{shut}', sys.executable, _LOOK],
        stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == closed, ran.stderr
    assert ran.stdout == ("" if closed & 2 else "said\n") and ran.stderr == ("" if closed & 1 else "heard\n")


_LOG = """
import logging, sys
from homenode.logs.setup import begin_service_log
begin_service_log("test")
logger = logging.getLogger("homenode.test")
for number in range(2000):
    logger.info("line %d", number)
    print("another", number, file=sys.stderr)
print("done")
"""


def test_a_process_whose_log_nobody_reads_does_its_work_and_ends(pipe: tuple[int, int]) -> None:
    ran = subprocess.run([sys.executable, "-c", _LOG], stdout=subprocess.PIPE, stderr=pipe[1], text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert re.match(rb"info [-\d]{10} [:\d]{8},\d{3} test: line 0\nanother 0\n", os.read(pipe[0], 100))


def test_what_is_logged_last_is_written_before_the_end() -> None:
    ran = subprocess.run([sys.executable, "-c", _LOG], capture_output=True, text=True, timeout=60)
    told = [line.rpartition(": ")[2] for line in ran.stderr.splitlines()]
    assert told == [f"{word} {n}" for n in range(2000) for word in ("line", "another")]
