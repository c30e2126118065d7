"""`bind` without a place shows what it would change, asks for --yes, and changes nothing; process 1 is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.cpuset import format_cpu_list
from homenode.errors import UserError
from homenode.host.bind.base.state import open_state
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import refuse_first_process
from homenode.host.bind.changes import Change, changes_of_interrupts, changes_of_process, name_and_owner
from homenode.host.bind.claims import read_claims
from tests.host.children import CPUS, ONE, OTHER, Child, child, masks, two_cpus


@pytest.fixture(autouse=True)
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def target() -> Iterator[Child]:
    with child() as running:
        yield running


def homenode(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homenode.cli.main", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


@two_cpus
def test_threads_with_other_masks_are_counted_by_what_they_have(target: Child) -> None:
    late = target.thread("worker")
    assert changes_of_process(target.pid, Target(CPUS)) == ()
    os.sched_setaffinity(late, {ONE})
    (change,) = changes_of_process(target.pid, Target(CPUS))
    assert change == Change("1 thread", f"CPUs {ONE}", f"CPUs {format_cpu_list(CPUS)}")
    found = changes_of_process(target.pid, Target((OTHER,), {"worker": (ONE,)}))
    assert [each.after for each in found] == [f"CPUs {OTHER}"], "a thread of the plan's name is where it should be"


def test_a_process_that_is_gone_is_named() -> None:
    with pytest.raises(UserError, match="4194303"):
        changes_of_process(4194303, Target(CPUS))
    assert name_and_owner(4194303) == "4194303"


def test_the_owner_is_named(target: Child) -> None:
    assert name_and_owner(target.pid).startswith(f"{target.pid} (") and " of " in name_and_owner(target.pid)


def test_a_target_without_interrupts_changes_none() -> None:
    from homenode.host.discovery.read import read_host
    from homenode.testing.hosts.synthetic import synthetic

    assert changes_of_interrupts(Target(CPUS), read_host(synthetic("1s/1n/4c"))) == ()


@two_cpus
@pytest.mark.parametrize("flags", [(), ("--workers", 1), ("--no-memory", "--no-irqs"), ("--reserve-cpus", 0)])
def test_without_a_place_nothing_is_changed_and_the_plan_is_shown(target: Child, flags: tuple[object, ...]) -> None:
    os.sched_setaffinity(target.pid, {ONE})
    asked = homenode("bind", "--pid", target.pid, *flags)
    assert asked.returncode == 2 and "--yes" in asked.stderr and "Traceback" not in asked.stderr
    assert set(masks(target.pid).values()) == {(ONE,)}
    assert read_claims(open_state()) == ()
    assert f"CPUs {format_cpu_list(CPUS)}" in asked.stdout and f"CPUs {ONE} -> CPUs" in asked.stdout
    assert str(target.pid) in asked.stdout
    done = homenode("bind", "--pid", target.pid, *flags, "--yes")
    assert done.returncode == 0 and set(masks(target.pid).values()) == {CPUS}, done.stderr
    again = homenode("bind", "--pid", target.pid, *flags)
    assert again.returncode == 2 and "would change nothing" in again.stdout


@two_cpus
@pytest.mark.parametrize(
    "place", [("--cpus", OTHER), ("--strategy", "fair"), ("--memory-nodes", 0), ("--cpu-threads-bind", "auto")]
)
def test_where_a_place_is_said_nobody_is_asked(target: Child, place: tuple[object, ...]) -> None:
    done = homenode("bind", "--pid", target.pid, *place)
    assert done.returncode in (0, 1) and "--yes" not in done.stderr, done.stderr


@two_cpus
def test_a_dry_run_tells_the_changes_as_json_and_asks_for_nothing(target: Child) -> None:
    target.tell("fork")
    os.sched_setaffinity(target.pid, {ONE})
    told = homenode("bind", "--pid", target.pid, "--children", "--dry-run")
    assert told.returncode == 0, told.stderr
    changes = json.loads(told.stdout)["changes"]
    (own,) = [change for change in changes if change["pid"] == target.pid and "thread" in change["what"]]
    assert (own["before"], own["after"]) == (f"CPUs {ONE}", f"CPUs {format_cpu_list(CPUS)}")
    assert masks(target.pid)[target.pid] == (ONE,)


def test_json_without_a_place_is_one_object_that_says_what_is_missing(target: Child) -> None:
    asked = homenode("bind", "--pid", target.pid, "--json")
    assert asked.returncode == 2 and "--yes" in json.loads(asked.stdout)["error"]["message"]


def test_process_1_is_refused_whatever_is_said() -> None:
    with pytest.raises(UserError, match="process 1"):
        refuse_first_process(1)
    refuse_first_process(2)
    for flags in (("--yes",), ("--cpus", ONE), ("--cpus", ONE, "--dry-run"), ()):
        refused = homenode("bind", "--pid", 1, *flags)
        assert refused.returncode == 2 and "process 1 (init)" in refused.stderr, refused.stderr


@two_cpus
def test_process_1_of_a_container_is_refused_as_well() -> None:
    apart = ["unshare", "--fork", "--pid", "--mount-proc", "--map-root-user", "--user"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of one's own here")
    script = (
        '"$0" -m homenode.cli.main bind --pid 1 --cpus "$1"; echo "ended with $?"; grep Cpus_allowed_list '
        "/proc/1/status"
    )
    done = subprocess.run(
        [*apart, "sh", "-c", script, sys.executable, str(ONE)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "ended with 2" in done.stdout and format_cpu_list(CPUS) in done.stdout, done.stdout + done.stderr
