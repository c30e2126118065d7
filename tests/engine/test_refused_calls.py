"""Commands under a filter that refuses calls which are a help: they work, and say what they go without."""

from __future__ import annotations

import errno
import os

import pytest

from tests.system_call_filter import run_without

pytest.importorskip("homenode._native")
GENERATE = ("generate", "builtin", "--prompt", "a", "--max-tokens", "2")
CHECK = ("serve", "builtin", "--check-config")
WORDED = {"sched_setaffinity": "sched_setaffinity is refused"}  # of others an engine on one node has nothing to say


@pytest.mark.parametrize("code", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize(
    "call", ["sched_setaffinity", "set_mempolicy", "mbind", "move_pages", "memfd_create", "pidfd_open"]
)
@pytest.mark.parametrize("words", [GENERATE, CHECK], ids=["generate", "check-config"])
def test_a_refused_call_stops_nothing(words: tuple[str, ...], call: str, code: str) -> None:
    env = os.environ | {"HOMENODE_STATE_DIR": ""}
    done = run_without([call], getattr(errno, code), "-m", "homenode", *words, env=env)
    assert done.returncode == 0, done.stderr
    assert WORDED.get(call, "") in done.stderr
    assert "Traceback" not in done.stderr
