"""Claims of CPUs by living processes: none is lost, none outlives its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.errors import HostError, UserError
from homenode.host.bind.base.state import State, boot_id
from homenode.host.bind.claims import claim, exclusive, read_claims, release
from homenode.host.plan.demand import Claim
from tests.examples import examples

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

# Takes the lowest CPU that nobody has, as a plan would, claims it, says which, and stays until its input ends.
CLAIMER = """
import os, sys
from pathlib import Path
from homenode.host.bind.claims import exclusive
from homenode.host.bind.base.state import State
from homenode.host.plan.demand import Claim
with exclusive(State(Path(sys.argv[1])), 60) as table:
    taken = {cpu for claim in table.claims for cpu in claim.cpus}
    cpu = next(cpu for cpu in range(1000) if cpu not in taken)
    table.add(Claim(os.getpid(), (cpu,), (cpu,), f"claimer {cpu}"))
print(cpu, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def _file(state: State) -> Path:
    return next(path for path in state.folder.iterdir() if path.suffix == ".json")


def test_a_claim_comes_back(state: State) -> None:
    mine = Claim(os.getpid(), (0, 1, 2, 3, 700), (4, 5), "rank 0")
    claim(state, mine)
    assert read_claims(state) == (mine,)


def test_no_file_is_no_claims(state: State) -> None:
    assert read_claims(state) == ()


def test_a_second_claim_of_a_process_replaces_the_first(state: State) -> None:
    claim(state, Claim(os.getpid(), (0,)))
    claim(state, Claim(os.getpid(), (1,)))
    assert read_claims(state) == (Claim(os.getpid(), (1,)),)


def test_a_claim_is_given_up(state: State) -> None:
    claim(state, Claim(os.getpid(), (0,)))
    assert release(state, os.getpid())
    assert read_claims(state) == ()
    assert not release(state, os.getpid())


def test_a_claim_ends_with_its_process(state: State, sleeper: subprocess.Popen[bytes]) -> None:
    claim(state, Claim(sleeper.pid, (0,)))
    claim(state, Claim(os.getpid(), (1,)))
    assert [found.cpus for found in read_claims(state)] == ([(0,), (1,)] if sleeper.pid < os.getpid() else [(1,), (0,)])
    sleeper.kill()
    # It has ended and is not yet reaped: its /proc folder is still there.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{sleeper.pid}").is_dir()
    assert [found.pid for found in read_claims(state)] == [os.getpid()]
    sleeper.wait()
    assert [found.pid for found in read_claims(state)] == [os.getpid()]


def test_a_process_number_used_again_does_not_revive_a_claim(state: State, sleeper: subprocess.Popen[bytes]) -> None:
    claim(state, Claim(sleeper.pid, (0,)))
    table = json.loads(_file(state).read_text())
    table["claims"][0]["start"] -= 1
    _file(state).write_text(json.dumps(table))
    assert read_claims(state) == ()


def test_claims_of_another_boot_are_void(state: State) -> None:
    claim(state, Claim(os.getpid(), (0,)))
    table = json.loads(_file(state).read_text())
    table["boot"] = "00000000-0000-0000-0000-000000000000"
    _file(state).write_text(json.dumps(table))
    assert read_claims(state) == ()


def test_a_program_that_was_executed_keeps_its_launchers_claim(state: State) -> None:
    code = (
        "import os, sys; from pathlib import Path\nfrom homenode.host.bind.claims import claim\nfrom "
        "homenode.host.bind.base.state import State\n"
        "from homenode.host.plan.demand import Claim\nclaim(State(Path(sys.argv[1])), Claim(os.getpid(), "
        "(0,)))\nos.execvp('cat', ['cat', '-'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, state.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"executed\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"executed\n"
        assert read_claims(state) == (Claim(process.pid, (0,)),)
        process.stdin.close()
    assert read_claims(state) == ()


def test_sixteen_processes_at_once_neither_lose_a_claim_nor_share_a_cpu(state: State) -> None:
    command = [sys.executable, "-c", CLAIMER, state.folder]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) for _ in range(16)
    ]
    try:
        taken = [int(process.stdout.readline()) for process in started if process.stdout]
        assert sorted(taken) == list(range(16))
        assert {(found.pid, found.cpus) for found in read_claims(state)} == {
            (process.pid, (cpu,)) for process, cpu in zip(started, taken, strict=True)
        }
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert read_claims(state) == ()


def test_nothing_is_written_when_the_plan_fails(state: State) -> None:
    claim(state, Claim(os.getpid(), (0,)))
    with pytest.raises(ZeroDivisionError), exclusive(state) as table:
        table.add(Claim(os.getpid(), (1,)))
        raise ZeroDivisionError
    assert read_claims(state) == (Claim(os.getpid(), (0,)),)


def test_a_claim_for_a_process_that_is_not_there_is_refused(state: State) -> None:
    with pytest.raises(UserError, match="no process 4194303"):
        claim(state, Claim(4194303, (0,)))


def test_plans_wait_for_each_other_only_so_long(state: State) -> None:
    with exclusive(state), pytest.raises(HostError, match="held by another command"):
        claim(state, Claim(os.getpid(), (0,)), deadline_s=0.05)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "7",
        '{"format": "homenode-claims/9", "boot": "", "claims": []}',
        '{"format": "homenode-claims/1", "boot": "BOOT"}',
        '{"format": "homenode-claims/1", "boot": "BOOT", "claims": 7}',
        '{"format": "homenode-claims/1", "boot": "BOOT", "claims": [{"pid": 1}]}',
        (
            '{"format": "homenode-claims/1", "boot": "BOOT", "claims": [{"pid": 1e400, "start": 1, "cpus": "0", '
            '"devices": [], "name": ""}]}'
        ),
        (
            '{"format": "homenode-claims/1", "boot": "BOOT", "claims": [{"pid": 1, "start": 1, "cpus": '
            '"0-99999999", "devices": [], "name": ""}]}'
        ),
        (
            '{"format": "homenode-claims/1", "boot": "BOOT", "claims": [{"pid": 1, "start": 1, "cpus": 5, '
            '"devices": [], "name": ""}]}'
        ),
    ],
)
def test_a_damaged_table_is_put_aside_and_said(state: State, content: str) -> None:
    claim(state, Claim(os.getpid(), (0,)))
    file = _file(state)
    file.write_text(content.replace("BOOT", json.loads(file.read_text())["boot"]))
    assert read_claims(state) == ()
    assert file.exists(), "a reader without the lock leaves the file to its owner"
    with exclusive(state) as table:
        assert [(finding.code, bool(finding.remedy)) for finding in table.findings] == [("state_unreadable", True)]
        table.add(Claim(os.getpid(), (1,)))
    assert read_claims(state) == (Claim(os.getpid(), (1,)),)
    assert file.with_name(file.name + ".damaged").exists()


ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
    | st.just({"pid": 1})
)
ENTRIES = st.fixed_dictionaries(
    {}, optional={"pid": ODD, "start": ODD, "cpus": ODD | st.sampled_from(["0-3", "3-0"]), "devices": ODD, "name": ODD}
)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    ODD
    | st.fixed_dictionaries(
        {"format": st.just("homenode-claims/1"), "claims": ODD | st.lists(ENTRIES | ODD, max_size=3)}
    )
)
def test_whatever_the_file_holds_claims_can_be_read_and_made(state: State, value: object) -> None:
    claim(state, Claim(os.getpid(), (0,)))
    if isinstance(value, dict):
        value["boot"] = boot_id()
    _file(state).write_text(json.dumps(value))
    assert all(found.cpus is not None for found in read_claims(state))
    claim(state, Claim(os.getpid(), (7,)))
    assert Claim(os.getpid(), (7,)) in read_claims(state)
