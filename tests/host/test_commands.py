"""`run`, `bind` and `verify` as commands, on this kernel: what they leave in /proc, what they print, how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.host.bind.base.state import State, open_state
from homenode.host.bind.claims import read_claims
from tests.host.children import CPUS, ONE, OTHER, Child, child, masks, numa, two_cpus
from tests.waiting import wait_until

_MASK = ("grep", "Cpus_allowed_list", "/proc/self/status")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """A state folder of the test's own, and none of the variables that a launcher or a batch system may have set around
    the tests.
    """
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    for name in (
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
        "VLLM_CPU_OMP_THREADS_BIND",
    ):
        monkeypatch.delenv(name, raising=False)
    return open_state()


@pytest.fixture
def target() -> Iterator[Child]:
    with child() as running:
        yield running


def homenode(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homenode.cli.main", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


def as_json(*words: object) -> tuple[int, dict[str, Any]]:
    result = homenode(*words, "--json")
    assert "Traceback" not in result.stderr
    return result.returncode, json.loads(result.stdout)


@numa
def test_run_gives_exactly_the_mask_and_the_policy() -> None:
    result = homenode(
        "run", "--cpus", ONE, "--memory-nodes", 0, "--", "cat", "/proc/self/status", "/proc/self/numa_maps"
    )
    assert f"Cpus_allowed_list:\t{ONE}\n" in result.stdout
    assert " bind:0 " in result.stdout
    assert result.stderr == "", "nothing to tell when all is as asked"


def test_run_by_a_plan_gives_the_plans_pool() -> None:
    result = homenode("run", "--", *_MASK)
    assert result.stdout.split()[1] == format_cpu_list(CPUS), result.stderr


_TWO_GPUS = """#!/bin/sh
case "$1" in
--query-gpu*) echo "0, GPU-0a, 00000000:10:00.0, H100"; echo "1, GPU-1b, 00000000:11:00.0, H100" ;;
-L) exit 9 ;;
esac
"""


@pytest.mark.parametrize(("visible", "told"), [("", ""), ("-1", ""), ("MIG-5c89852c-d268", "nothing says which GPU")])
def test_run_starts_a_program_that_wants_no_gpu_or_part_of_one(tmp_path: Path, visible: str, told: str) -> None:
    (tmp_path / "nvidia-smi").write_text(_TWO_GPUS)
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    if told and len(CPUS) < 2:
        pytest.skip("two devices want two CPUs")
    result = homenode("run", "--", *_MASK, CUDA_VISIBLE_DEVICES=visible, PATH=path)
    assert (result.returncode, result.stdout.split()[1:]) == (0, [format_cpu_list(CPUS)]), result.stderr
    assert told in result.stderr


@two_cpus
def test_run_takes_its_rank_from_the_launchers_variable() -> None:
    seen = [homenode("run", "--workers", 2, "--", *_MASK, LOCAL_RANK=rank).stdout.split()[1] for rank in ("0", "1")]
    assert seen == [str(CPUS[0]), str(CPUS[1])] if len(CPUS) == 2 else len(set(seen)) == 2


@two_cpus
def test_ranks_have_parts_of_what_their_program_was_given() -> None:
    rank = [sys.executable, "-m", "homenode.cli.main", "run", "--workers", "2", "--local-rank", "1", "--", *_MASK]
    alone = homenode(*rank[3:])
    inside = homenode("run", "--workers", 2, "--", "sh", "-c", '"$@"; true', "sh", *rank)
    assert alone.stdout == inside.stdout != f"Cpus_allowed_list:\t{format_cpu_list(CPUS)}\n"
    assert inside.stderr == ""


@two_cpus
def test_ranks_that_run_at_the_same_time_have_cpus_of_their_own() -> None:
    first = ["run", "--workers", "2", "--local-rank", "0", "--", "cat"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = subprocess.Popen([sys.executable, "-m", "homenode.cli.main", *first], stdin=subprocess.PIPE, env=env)
    try:
        wait_until(lambda: Path(f"/proc/{running.pid}/comm").read_text() == "cat\n")
        second = homenode("run", "--workers", 2, "--local-rank", 1, "--", *_MASK)
        assert second.stderr == ""
        assert set(parse_cpu_list(second.stdout.split()[1])).isdisjoint(os.sched_getaffinity(running.pid))
    finally:
        running.communicate(timeout=10)


def test_a_rank_without_a_place_runs_unbound_with_one_warning_unless_strict() -> None:
    words = ("--workers", 1, "--local-rank", 7, "--", *_MASK)
    loose, strict = homenode("run", *words), homenode("run", "--strict", *words)
    assert loose.returncode == 0
    assert loose.stdout.split()[1] == format_cpu_list(CPUS)
    assert loose.stderr.count("\n") == 1
    assert "warning: not bound" in loose.stderr
    assert (strict.returncode, strict.stdout) == (2, "")


def test_what_the_user_wrote_wrongly_is_never_run() -> None:
    for words in (
        ("--cpus", "4095"),
        ("--cpus", "x"),
        ("--cpus", ""),
        ("--numa-bind", "--numa-bind-nodes", 9),
        ("--memory-nodes", 77),
    ):
        result = homenode("run", *words, "--", "true")
        assert result.returncode == 2, words
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("program", "code"), [("/no/such/program", 127), ("/etc/hostname", 126), ("/etc", 126)])
def test_programs_that_cannot_be_run_end_as_in_a_shell(program: str, code: int) -> None:
    result = homenode("run", "--cpus", ONE, "--", program)
    assert (result.returncode, program in result.stderr) == (code, True)


def test_the_ascend_binding_is_skipped_here_with_its_line_or_refused_without_npus() -> None:
    result = homenode("run", "--strategy", "ascend", "--", "true")
    assert result.returncode == 0
    assert "CPU binding skipped: non-ARM CPU detected." in result.stderr or "shows no Ascend NPU" in result.stderr


def test_a_dry_run_starts_nothing_and_claims_nothing(state: State, tmp_path: Path) -> None:
    result = homenode("run", "--dry-run", "--", "touch", tmp_path / "started")
    assert json.loads(result.stdout)["cpus"] == format_cpu_list(CPUS)
    assert not (tmp_path / "started").exists()
    assert read_claims(state) == ()


def test_a_running_program_keeps_its_claim_and_the_next_one_does_not_overlap(state: State) -> None:
    command = [sys.executable, "-m", "homenode.cli.main", "run", "--", "cat"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env) as first:
        wait_until(lambda: Path(f"/proc/{first.pid}/comm").read_text().strip() == "cat")
        (held,) = read_claims(state)
        assert (held.pid, held.cpus) == (first.pid, CPUS)
        second = homenode("run", "--strict", "--", "true")
        assert second.returncode == 2
        assert "too few cores" in second.stderr
        first.communicate(b"", 10)
    assert read_claims(state) == (), "a claim ends with its process"


@two_cpus
def test_bind_verify_drift_and_undo(target: Child) -> None:
    target.thread("worker")
    assert homenode("bind", "--pid", target.pid, "--cpus", ONE).returncode == 0
    assert set(masks(target.pid).values()) == {(ONE,)}
    late = target.thread("late")
    assert masks(target.pid)[late] == (ONE,)
    code, report = as_json("verify", "--pid", target.pid, "--cpus", ONE)
    assert (code, report["findings"]) == (0, [])
    os.sched_setaffinity(late, {OTHER})
    code, report = as_json("verify", "--pid", target.pid, "--cpus", ONE)
    assert (code, [finding["code"] for finding in report["findings"]]) == (1, ["thread_off_plan"])
    assert homenode("bind", "--pid", target.pid, "--undo").returncode == 0
    assert masks(target.pid)[target.pid] == CPUS


@two_cpus
def test_bind_reaches_children_when_asked(target: Child) -> None:
    target.tell("fork")
    (forked,) = [int(pid) for pid in Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()]
    assert homenode("bind", "--pid", target.pid, "--cpus", ONE).returncode == 0
    assert masks(forked)[forked] == CPUS
    assert homenode("bind", "--pid", target.pid, "--cpus", ONE, "--children").returncode == 0
    assert masks(forked)[forked] == (ONE,)


def test_binding_by_a_plan_claims_and_undoing_gives_up(target: Child, state: State) -> None:
    assert homenode("bind", "--pid", target.pid, "--yes").returncode == 0
    assert [claim.pid for claim in read_claims(state)] == [target.pid]
    assert homenode("bind", "--pid", target.pid, "--undo").returncode == 0
    assert read_claims(state) == ()


def test_a_process_that_is_gone_is_named() -> None:
    for verb in ("bind", "verify"):
        code, answer = as_json(verb, "--pid", 4194303, "--cpus", ONE)
        assert (code, "4194303" in answer["error"]["message"]) == (2, True)


def test_verify_watches_until_the_process_ends(target: Child) -> None:
    command = [
        sys.executable,
        "-m",
        "homenode.cli.main",
        "verify",
        "--pid",
        str(target.pid),
        "--cpus",
        format_cpu_list(CPUS),
        "--watch",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as watching:
        assert watching.stderr is not None
        assert "affinity" in watching.stderr.readline(), "the first reading is told at once"
        target.end()
        out, err = watching.communicate(timeout=30)
    assert (watching.returncode, "Traceback" in err) == (0, False), out + err


def test_bind_refuses_where_run_would_go_on_unbound(target: Child) -> None:
    code, answer = as_json("bind", "--pid", target.pid, "--workers", 1, "--local-rank", 7)
    assert (code, answer["error"]["code"]) == (2, "rank_out_of_range")


@pytest.mark.parametrize("flags", [(), ("--watch", "0.1")])
def test_verify_judges_nothing_where_it_finds_no_plan(target: Child, state: State, flags: tuple[str, ...]) -> None:
    os.sched_setaffinity(target.pid, {ONE})
    told = homenode("verify", "--pid", target.pid, *flags)
    assert told.returncode == 2 and f"no plan was found for process {target.pid} in {state.folder}" in told.stdout
    assert "off_plan" not in told.stdout + told.stderr and not told.stdout.startswith("error")
    code, report = as_json("verify", "--pid", target.pid, *flags)
    assert (code, [finding["code"] for finding in report["findings"]]) == (2, ["no_plan_found"])


def test_verify_finds_the_plan_that_bind_has_left_in_its_own_state_folder(target: Child, tmp_path: Path) -> None:
    assert homenode("bind", "--pid", target.pid, "--yes").returncode == 0
    code, report = as_json("verify", "--pid", target.pid)
    assert (code, report["findings"]) == (0, [])
    elsewhere = homenode("verify", "--pid", target.pid, HOMENODE_STATE_DIR=str(tmp_path / "elsewhere"))
    assert elsewhere.returncode == 2 and "no_plan_found" in elsewhere.stdout


def test_verify_of_a_process_that_is_gone_names_it_though_no_plan_is_known() -> None:
    code, answer = as_json("verify", "--pid", 4194303)
    assert (code, "4194303" in answer["error"]["message"]) == (2, True)
