"""Where claims cannot be kept, whatever the cause, programs start all the same and it is told; --strict refuses."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from homenode.errors import HostError
from homenode.host.bind import sidecar
from homenode.host.bind.base.state import State, open_state
from homenode.host.bind.claims import claim, exclusive_if_possible, read_claims
from homenode.host.plan.demand import Claim

MINE = Claim(os.getpid(), (0,), name="mine")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder, in which somebody has claimed already."""
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    claim(open_state(), Claim(os.getppid(), (1,), name="before"))
    return tmp_path / "state"


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """No file can grow, as on a full disk or beyond a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Another command holds the lock."""
    with (folder / "claims.lock").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextmanager
def without_lock(folder: Path) -> Iterator[None]:
    """The lock cannot be opened for writing, as in a folder that is mounted read-only."""
    (folder / "claims.lock").unlink()
    (folder / "claims.lock").mkdir()
    yield


@contextmanager
def fifo(folder: Path) -> Iterator[None]:
    """What should be the file of claims is a FIFO that nobody writes into; what stood there is not known any more."""
    (file,) = folder.glob("claims*.json")
    file.unlink()
    os.mkfifo(file)
    yield


@contextmanager
def no_folder(folder: Path) -> Iterator[None]:
    """The machine refuses to make the folder."""
    os.environ["HOMENODE_STATE_DIR"] = str(folder / ("x" * 300))
    try:
        yield
    finally:
        os.environ["HOMENODE_STATE_DIR"] = str(folder)


Trouble = Callable[[Path], AbstractContextManager[None]]
# Whether the claims of others can still be read.
TROUBLES: dict[Trouble, bool] = {full: True, locked: True, without_lock: True, no_folder: False}


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_what_can_be_read_is_seen_and_what_cannot_be_kept_is_told_in_one_line(trouble: Trouble, folder: Path) -> None:
    said: list[str] = []
    with ExitStack() as held:
        held.enter_context(trouble(folder))
        with exclusive_if_possible(said.append, 0) as table:
            seen = [other.name for other in table.claims]
            table.add(MINE)
            assert MINE in table.claims, "whoever asks this table again sees what it was told"
    assert seen == (["before"] if TROUBLES[trouble] else [])
    assert len(said) == 1 and "claim" in said[0], said


def test_a_fifo_in_place_of_the_claims_is_put_aside_and_told(folder: Path) -> None:
    said: list[str] = []
    with fifo(folder), exclusive_if_possible(said.append, 0) as table:
        table.add(MINE)
        assert [finding.code for finding in table.findings] == ["state_unreadable"]
    assert read_claims(State(folder)) == (MINE,)
    assert said == []


def test_a_plan_that_fails_is_not_taken_for_a_claim_that_cannot_be_kept(folder: Path) -> None:
    said: list[str] = []
    with pytest.raises(HostError, match="the plan"), exclusive_if_possible(said.append, 0):
        raise HostError("the plan")
    assert said == []


def homenode(*words: object) -> subprocess.CompletedProcess[str]:
    """With files that cannot grow from the start."""
    line = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    line += "os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", line, sys.executable, "-m", "homenode.cli.main", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


def test_run_starts_the_program_and_says_so_and_strict_does_not() -> None:
    loose, strict = homenode("run", "--", "echo", "ran"), homenode("run", "--strict", "--", "echo", "ran")
    assert (loose.returncode, loose.stdout) == (0, "ran\n"), loose.stderr
    assert "claim" in loose.stderr
    assert (strict.returncode, strict.stdout) == (1, ""), strict.stderr


def test_bind_binds_and_says_so_and_strict_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mask = os.sched_getaffinity(child.pid)
        one = min(mask)
        strict = homenode("bind", "--strict", "--pid", child.pid, "--workers", 1, "--yes")
        assert strict.returncode == 1 and "cannot write" in strict.stderr
        loose = homenode("bind", "--pid", child.pid, "--cpus", one)
        assert os.sched_getaffinity(child.pid) == {one}, loose.stderr
        assert "undoing will not be possible" in loose.stdout
        by_plan = homenode("bind", "--pid", child.pid, "--workers", 1, "--yes")
        assert os.sched_getaffinity(child.pid) == mask, by_plan.stderr
        assert "claim" in by_plan.stderr and "Traceback" not in by_plan.stderr
        child.communicate(b"\n", 10)


def test_a_program_is_started_although_no_process_can_be_left_to_look_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(sidecar.os, "fork", refused)
    said: list[str] = []
    sidecar.start_sidecar(lambda pidfd: None, said.append)
    assert len(said) == 1 and "looks after" in said[0]


def test_a_state_that_is_read_while_it_is_locked_is_whole(folder: Path) -> None:
    with State(folder).locked("claims"), exclusive_if_possible([].append, 0) as table:
        assert [other.name for other in table.claims] == ["before"]
