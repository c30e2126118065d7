"""Each system call that is a help, refused by the kernel: what is told, and that a trial changes nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from homenode.host.bind.base.optional_calls import OPTIONAL_CALLS, attempt, refused_at_start, refused_calls
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.temporary import nameless_file
from tests.system_call_filter import run_without

_ASK = """
from homenode.host.bind.base.optional_calls import refused_calls
for finding in refused_calls(nodes=2):
    print(finding.code, finding.text)
"""
_CALLS = [call.name for call in OPTIONAL_CALLS]
_CODES = {
    "sched_setaffinity": "affinity_refused",
    "set_mempolicy": "memory_policy_refused",
    "socket(AF_UNIX)": "unix_socket_refused",
}


@pytest.mark.parametrize("code", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("call", _CALLS)
def test_a_refused_call_is_named_with_the_error_and_a_remedy(call: str, code: str) -> None:
    done = run_without([call], getattr(errno, code), "-c", _ASK)
    told = [line for line in done.stdout.splitlines() if line.startswith(_CODES.get(call, f"{call}_refused"))]
    assert len(told) == 1, (done.stdout, done.stderr)
    assert call in told[0] and code in told[0] and "llow" in told[0]


def test_a_family_of_sockets_that_a_unit_leaves_out_is_named() -> None:
    done = run_without(["socket"], errno.EAFNOSUPPORT, "-c", _ASK)
    assert "RestrictAddressFamilies" in done.stdout, (done.stdout, done.stderr)


def test_trials_change_nothing() -> None:
    def seen() -> tuple[object, ...]:
        return (
            os.sched_getaffinity(0),
            len(list(Path("/proc/self/fd").iterdir())),
            Path("/proc/self/numa_maps").exists(),
        )

    before = seen()
    refused_calls(nodes=2)
    assert seen() == before


def test_what_only_several_nodes_gain_by_is_not_told_of_one() -> None:
    class Refusing(Syscalls):
        def _refuse(self, *arguments: object) -> None:
            raise PermissionError(errno.EPERM, "no")

        set_affinity = mbind = _refuse  # type: ignore[assignment]

    assert [finding.code for finding in refused_at_start(1, Refusing())] == ["affinity_refused"]
    assert [finding.code for finding in refused_at_start(2, Refusing())] == ["affinity_refused", "mbind_refused"]


def test_an_attempt_raises_what_speaks_of_the_arguments() -> None:
    def fails(code: int) -> None:
        raise OSError(code, "")

    assert attempt(int)
    assert not attempt(fails, errno.ENOSYS)
    with pytest.raises(OSError):
        attempt(fails, errno.EINVAL)


def test_a_file_on_disk_stands_in_for_memory_that_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    descriptor = nameless_file("some memory")
    try:
        assert os.write(descriptor, b"abc") == 3
        assert os.pread(descriptor, 3, 0) == b"abc"
        assert not list(tmp_path.iterdir())
    finally:
        os.close(descriptor)
