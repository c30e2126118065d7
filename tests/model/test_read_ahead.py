"""What of a model's files is asked for before it is read: in order, not too far ahead, and nothing that is there."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from homenode.model.weights import read_ahead
from homenode.model.weights.read_ahead import Extent, ReadAhead, begin_read_ahead
from tests.waiting import PATIENCE_S, wait_until

_PIECE, _AHEAD = 100, 250
TENSORS = [
    [(Path("a"), 0, 250)],
    [],
    [(Path("a"), 250, 100), (Path("b"), 7, 50)],
    [(Path("b"), 57, 300)],
    [(Path("b"), 357, 10)],
]
PIECES = [
    (1, 0, 100), (1, 100, 100), (1, 200, 50), (1, 250, 100), (2, 7, 50), (2, 57, 100), (2, 157, 100), (2, 257, 100),
    (2, 357, 10),
]  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What the kernel was asked for: descriptor, offset, bytes."""
    calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr(read_ahead, "_PIECE", _PIECE)
    monkeypatch.setattr(read_ahead, "_AHEAD", _AHEAD)
    monkeypatch.setattr(read_ahead, "_is_cached", lambda fd, at: False)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, how: calls.append((fd, at, size)))
    return calls


def ahead_of(tensors: list[list[Extent]]) -> ReadAhead:
    return ReadAhead(tensors, lambda path: {"a": 1, "b": 2}[path.name])


def test_pieces_are_asked_for_in_order_and_not_too_far_ahead(asked: list[tuple[int, int, int]]) -> None:
    with ahead_of(TENSORS) as ahead:
        wait_until(lambda: len(asked) == 4)  # the fourth begins when no more than 250 bytes were asked for
        time.sleep(0.05)
        assert asked == PIECES[:4]
        for count in range(len(TENSORS)):
            assert len(asked) >= min(4, count)
            ahead.advance()
        wait_until(lambda: not any(thread.name == "read ahead" for thread in threading.enumerate()))
    assert asked == PIECES[: len(asked)] or set(asked) <= set(PIECES)


def test_all_of_it_is_asked_for_when_there_is_time(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_AHEAD", 1 << 30)
    with ahead_of(TENSORS):
        wait_until(lambda: len(asked) == len(PIECES))
    assert asked == PIECES


def test_what_is_read_already_is_not_asked_for(asked: list[tuple[int, int, int]]) -> None:
    ahead = ahead_of(TENSORS)
    for _ in range(3):
        ahead.advance()
    with ahead:
        wait_until(lambda: len(asked) == 3)
    assert asked == PIECES[5:8]


def test_its_end_does_not_wait_for_what_was_not_read(asked: list[tuple[int, int, int]]) -> None:
    began = time.monotonic()
    with ahead_of(TENSORS):
        pass
    assert time.monotonic() - began < PATIENCE_S / 4
    assert len(asked) <= 4


def test_nothing_is_asked_for_that_is_in_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: pytest.fail("it is there"))
    file = tmp_path / "weights"
    file.write_bytes(bytes(1 << 20))
    fd = os.open(file, os.O_RDONLY)
    try:
        os.pread(fd, 1 << 20, 0)
        with ReadAhead([[(file, 0, 1 << 20)]], lambda path: fd) as ahead:
            ahead.advance()
    finally:
        os.close(fd)


def test_a_file_that_cannot_be_asked_for_is_read_all_the_same(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        asked.append((0, 0, 0))
        raise OSError(29, "Illegal seek")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    with ahead_of(TENSORS) as ahead:
        wait_until(lambda: len(asked) == 4)
        ahead.advance()


def begin_and_wait(model: Path) -> None:
    thread = begin_read_ahead(model)
    assert thread is not None
    thread.join(PATIENCE_S)


def test_the_beginning_of_a_model_is_asked_for_while_its_engine_starts(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(read_ahead, "_BEFORE_LOADING", 550)
    for name, size in (("b.safetensors", 1000), ("a.safetensors", 220), ("config.json", 90)):
        (tmp_path / name).write_bytes(bytes(size))
    begin_and_wait(tmp_path / "b.safetensors")
    assert [call[1:] for call in asked] == [(at, 100) for at in range(0, 550, 100)]
    asked.clear()
    begin_and_wait(tmp_path)  # 220 bytes of the first file, and 330 of the second
    assert [call[1:] for call in asked] == [(at, 100) for at in (0, 100, 200, 0, 100, 200, 300)]


def test_nothing_is_asked_for_that_is_in_the_page_cache_or_not_there(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert begin_read_ahead(tmp_path / "none.gguf") is None
    monkeypatch.setattr(read_ahead, "_is_cached", lambda fd, at: True)
    (tmp_path / "a.gguf").write_bytes(bytes(1000))
    assert begin_read_ahead(tmp_path / "a.gguf") is None
    assert asked == []
