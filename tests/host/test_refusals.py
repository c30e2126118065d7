"""What the machine refuses, in words and as an error that says whose fault it is."""

from __future__ import annotations

import errno
import os
import resource
import threading

import pytest

from homenode.errors import CheckpointError, HomenodeError, HostError
from homenode.host.refusals import exhausted, named_refusals, start_thread, with_limit

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
    assert found.value.message.startswith(f"reading the model /m: /m/config.json: {os.strerror(code)}")
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


@pytest.mark.parametrize(("name", "flag"), [("EFBIG", "ulimit -f"), ("EMFILE", "ulimit -n"), ("ENOMEM", "ulimit -d")])
def test_the_limit_behind_an_error_is_named_where_one_is_set(
    name: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"soft": 4096}
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (limits["soft"], 8192))
    assert flag in with_limit("it failed", getattr(errno, name))
    limits["soft"] = resource.RLIM_INFINITY
    assert with_limit("it failed", getattr(errno, name)) == "it failed"


def test_what_python_says_of_exhausted_threads_and_memory_names_the_limits() -> None:
    for error, word in (
        (MemoryError(), "memory ran out"),
        (RuntimeError("can't start new thread"), "pids.max"),
        (ImportError("libx.so: failed to map segment from shared object"), "libx.so"),
    ):
        refusal = exhausted(error)
        assert refusal is not None and word in refusal.message
    assert exhausted(RuntimeError("of another kind")) is None
    assert exhausted(ImportError("No module named 'x'")) is None
