"""Commands under a filter that refuses calls: those that are a help are gone without, and told of; those that are
needed are named, by `--check-config` and by a start alike.

All helps are refused at once, as each is gone without by itself.
"""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from homenode.host.bind.base.optional_calls import OPTIONAL_CALLS
from tests.system_call_filter import run_without

pytest.importorskip("homenode._native")
GENERATE = ("generate", "builtin", "--prompt", "a", "--max-tokens", "2")
CHECK = ("serve", "builtin", "--check-config")
_NEEDED = "socketpair"
_HELPS = [call.name for call in OPTIONAL_CALLS if call.name != _NEEDED] + ["get_mempolicy"]
_TOLD = [call.name for call in OPTIONAL_CALLS if call.at_start and not call.helps_numa]  # on one node as on several


def run_refused(calls: list[str], code: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"HOMENODE_STATE_DIR": ""}
    return run_without(calls, getattr(errno, code), "-m", "homenode", *words, env=env)


@pytest.mark.parametrize("code", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("words", [GENERATE, CHECK], ids=["generate", "check-config"])
def test_refused_helps_stop_nothing(words: tuple[str, ...], code: str) -> None:
    done = run_refused(_HELPS, code, *words)
    assert done.returncode == 0, done.stderr
    assert not [name for name in _TOLD if f"{name} is refused here ({code})" not in done.stderr], done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("call", "flags"),
    [
        ("memfd_create", ("--tensor-parallel-size", "2")),
        ("memfd_create", ("--pipeline-parallel-size", "2")),
        ("memfd_create", ("--pd-role", "sender", "--transfer-channel", "tcp")),
        ("socket(AF_UNIX)", ("--transfer-channel", "shm", "--pd-role", "receiver")),
        ("socket(AF_UNIX)", ("--uds", "/tmp/homenode-refused.sock")),
        (_NEEDED, ()),
    ],
)
def test_a_check_names_what_the_settings_cannot_do_without(call: str, flags: tuple[str, ...]) -> None:
    done = run_refused([call], "EPERM", *CHECK, *flags)
    assert done.returncode == (2 if flags else 1), done.stderr
    assert "".join(flags[:1]) in done.stderr
    assert f"{call} is refused here (EPERM)" in done.stderr and "llow" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("call", "flags"), [("memfd_create", ("--tensor-parallel-size", "2")), (_NEEDED, ())], ids=["workers", "any"]
)
def test_a_start_says_the_same(call: str, flags: tuple[str, ...]) -> None:
    done = run_refused([call], "ENOSYS", "serve", "builtin", "--port", "0", *flags)
    assert done.returncode == (2 if flags else 1), done.stderr
    assert f"{call} is refused here (ENOSYS)" in done.stderr and "Traceback" not in done.stderr


def test_memory_in_common_is_taken_without_advice() -> None:
    """That of ranks, and what engines write down of KV blocks: both are taken whole when they are made."""
    made = "NativeRankGroup.join(NativeRankGroup.make(1), 0, 5.0); NativeEpochWords.create(4)"
    imported = "from homenode.compute.native.kv_memory import NativeEpochWords"
    words = f"from homenode.compute.native import NativeRankGroup\n{imported}\n{made}\nprint('taken')"
    done = run_without(["madvise"], errno.EPERM, "-c", words)
    assert (done.returncode, done.stdout) == (0, "taken\n"), done.stderr
