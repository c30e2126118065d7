"""What the machine refuses, in words and as an error that says whose fault it is."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from homenode.errors import CheckpointError, HomenodeError, HostError
from homenode.host.refusals import named_refusals, start_thread

OF_THE_FILE = ("ENOENT", "EACCES", "EPERM", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG")


@pytest.mark.parametrize("name", sorted(errno.errorcode.values()))
def test_each_errno_is_a_fault_of_the_file_or_of_the_machine(name: str) -> None:
    code = getattr(errno, name)
    with (
        pytest.raises(HomenodeError) as found,
        named_refusals("reading the model /m", CheckpointError),
    ):
        raise OSError(code, os.strerror(code), "/m/config.json")
    if name in OF_THE_FILE:
        assert isinstance(found.value, CheckpointError)
    if name in ("EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EAGAIN"):
        assert isinstance(found.value, HostError)
    assert found.value.message == f"reading the model /m: /m/config.json: {os.strerror(code)}"
    assert found.value.facts["errno"] == code


def test_memory_is_the_machines_and_says_what_to_do() -> None:
    with (
        pytest.raises(HostError, match=r"reading x: memory ran out \(std::bad_alloc\); free some, or lower"),
        named_refusals("reading x", CheckpointError),
    ):
        raise MemoryError("std::bad_alloc")


@pytest.mark.parametrize("error", [CheckpointError("damaged"), ValueError("a bug"), KeyboardInterrupt()])
def test_all_else_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as found, named_refusals("reading x", CheckpointError):
        raise error
    assert found.value is error


def test_a_thread_that_cannot_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(
        HostError, match=r"the thread steps could not be started: can't start new thread; see `ulimit -u`"
    ):
        start_thread(threading.Thread(name="steps"))
