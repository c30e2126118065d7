"""Servers on one host, as users start them: none shares a core while another is free, and who has to share is told.
Where threads may run is read back from the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from homenode.cpuset import parse_cpu_list
from homenode.host.bind.base.state import open_state
from homenode.host.bind.claims import read_claims
from homenode.host.discovery.read import read_host
from homenode.host.topology.source import LiveSource
from tests.engine.compute_threads import computing_cpus
from tests.engine.live import LiveServer, workers
from tests.paths import ROOT
from tests.waiting import PATIENCE_S

pytest.importorskip("homenode._native", reason="needs the compiled core")
HOST = read_host(LiveSource(), accelerators=False)
CORES = HOST.allowance.physical_cpus
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not LiveServer.possible(), reason="needs a model"),
    pytest.mark.skipif(len(CORES) < 2, reason="needs two cores"),
]
SMALL = ("--kv-cache-memory", "16MiB")


@contextmanager
def serving(*flags: str) -> Iterator[LiveServer]:
    server = LiveServer(*SMALL, *flags)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def no_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of one test know of each other only."""
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir(mode=0o700)


def cores_of(server: LiveServer, threads: int = 1) -> list[int]:
    """The core of each compute thread."""
    working = list(workers(server).values())
    cpus = computing_cpus(working or server.engines(), lambda: answer(server, 200), threads, loop=not working)
    return [HOST.cpu_by_id[cpu].core for cpu in cpus]


def answer(server: LiveServer, tokens: int = 2) -> str:
    body = {"model": "live", "prompt": "Once", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    got = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert got.status_code == 200, got.text
    return str(got.json()["choices"][0]["text"])


def said(server: LiveServer) -> str:
    return b"".join(server.log).decode()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), ()),
        (("--pd-role", "sender"), ("--pd-role", "receiver")),
        (("--executor", "processes"), ()),
        ((), ("--numa", "local")),
    ],
)
def test_the_second_server_takes_another_core(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    with serving("--threads", "1", *first) as one, serving("--threads", "1", *second) as two:
        assert cores_of(one) != cores_of(two)
        assert f"process {one.engines()[0]} (engine of " in said(two), "the ready line says who sits where"
        assert "shares its core" not in said(two)


def test_servers_that_start_at_any_time_share_only_when_no_core_is_free() -> None:
    chance = random.Random(7)

    def start(delay_s: float) -> LiveServer:
        return LiveServer.start_after(delay_s, *SMALL, "--threads", "1")

    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(start, [0.0, 0.0, chance.random(), chance.random()]))
    try:
        cores = [core for server in servers for core in cores_of(server)]
        assert len(set(cores)) == min(len(servers), len(CORES)), cores
        sharing = [server for server in servers if "shares its core" in said(server)]
        assert len(sharing) == max(0, len(servers) - len(CORES))
        assert all(answer(server) for server in servers)
    finally:
        for server in servers:
            server.close()


def test_other_programs_of_ours_keep_clear_too() -> None:
    with serving("--threads", "1") as server:
        (taken,) = cores_of(server)
        run = ["-m", "homenode.cli.main", "run", "--workers", "1"]
        ask = "import os; print(*sorted(os.sched_getaffinity(0)))"
        bound = subprocess.run(
            [sys.executable, *run, "--", sys.executable, "-c", ask],
            capture_output=True, text=True, check=True, cwd=ROOT, timeout=PATIENCE_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert taken not in {HOST.cpu_by_id[int(cpu)].core for cpu in bound.stdout.split()}, bound.stderr


def test_what_was_given_to_a_launcher_is_its_servers_own() -> None:
    run = [sys.executable, "-m", "homenode.cli.main", "run", "--strategy", "cpu-threads", "--workers", "1"]
    server = LiveServer(*SMALL, "--threads", "1", before=[*run, "--reserve-cpus", "0", "--"])
    try:
        assert cores_of(server) and "shares" not in said(server)
    finally:
        server.close()


def test_a_list_is_obeyed_and_told() -> None:
    cpu = str(CORES[-1])
    with serving("--cpu-threads-bind", cpu) as one, serving("--cpu-threads-bind", cpu) as two:
        assert cores_of(one) == cores_of(two) == [HOST.cpu_by_id[int(cpu)].core]
        assert f"1 compute thread shares its core (CPUs {cpu}) with process {one.engines()[0]}" in said(two)
        assert "are free: name those" in said(two)


def test_an_engine_that_is_started_again_finds_its_own_cores() -> None:
    def cpus(pid: int) -> set[int]:
        """That of its compute thread, and that of the others where it is one alone."""
        tasks = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        return {cpu for mask in map(os.sched_getaffinity, tasks) if len(mask) == 1 for cpu in mask}

    with serving("--threads", "1", "--data-parallel-size", "2") as server:
        (first, pid), (second, _) = server.children("homenode-worker").items()
        before = cpus(pid)
        os.kill(pid, signal.SIGKILL)
        server.wait_for(lambda: server.children("homenode-worker").get(first, pid) != pid)
        with serving("--threads", "1") as other:
            assert ("shares its core" in said(other)) == (len(CORES) == 2), "its CPUs are still claimed for it"
        server.wait_for(lambda: len(server.children("homenode-worker")) == 2)
        server.wait_for(lambda: httpx.get(f"{server.url}/health").status_code == 200)
        assert cpus(server.children("homenode-worker")[first]) == before
        assert cpus(server.children("homenode-worker")[second]) != before


def test_claims_that_cannot_be_kept_stop_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "no" / "such"))
    with serving("--threads", "1") as server:
        assert answer(server) and said(server).count("claims of CPUs are not seen") == 1


def test_check_config_says_what_the_start_will() -> None:
    with serving("--cpu-threads-bind", str(CORES[0])):
        check = [sys.executable, "-m", "homenode.cli.main", "serve", "--check-config", "--cpu-threads-bind"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        seen = subprocess.run([*check, str(CORES[0])], capture_output=True, text=True, cwd=ROOT, env=env, check=True)
        assert "shares its core" in seen.stderr
        seen = subprocess.run([*check, str(CORES[1])], capture_output=True, text=True, cwd=ROOT, env=env, check=True)
        assert "shares its core" not in seen.stderr


def bound_to(server: LiveServer) -> set[int]:
    """The CPUs that threads of the server's engine and workers may run on, as the kernel has it now."""
    found: set[int] = set()
    for pid in [*server.engines(), *workers(server).values()]:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                found |= os.sched_getaffinity(int(thread.name))
    return found


def claimed_by(server: LiveServer) -> set[int]:
    return {cpu for claim in read_claims(open_state()) if claim.pid in server.engines() for cpu in claim.cpus}


@pytest.mark.parametrize("flags", [(), ("--executor", "processes")])
def test_a_server_that_shares_a_core_moves_when_one_is_free(flags: tuple[str, ...]) -> None:
    """Its step goes on meanwhile, its answers stay the same, and it has given up what it left. The others, whose CPUs
    are listed, stay."""
    with contextlib.ExitStack() as rest:
        listed = {core: rest.enter_context(serving("--cpu-threads-bind", str(core))) for core in CORES}
        one = rest.enter_context(serving("--threads", "1", *flags))
        (core,) = cores_of(one)
        before = answer(one, 60)
        assert "shares its core" in said(one)
        assert {HOST.cpu_by_id[cpu].core for cpu in claimed_by(one)} == {core}
        freed = next(cpu for cpu in CORES if HOST.cpu_by_id[cpu].core != core)
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(answer, one, 400)
            listed.pop(freed).close()
            one.wait_for(lambda: claimed_by(one) == {freed})
            assert long.result().startswith(before)
        assert bound_to(one) == {freed}, "nothing of it disturbs those who compute on other cores"
        assert cores_of(one) == [HOST.cpu_by_id[freed].core]
        assert answer(one, 60) == before
        assert all(bound_to(server) == {cpu} for cpu, server in listed.items())


def test_what_does_not_compute_makes_room_for_a_neighbour_and_comes_back() -> None:
    with serving("--threads", "1") as one:
        (own,) = claimed_by(one)
        assert own not in os.sched_getaffinity(one.process.pid)
        with contextlib.ExitStack() as others:
            for core in CORES:
                if core != own:
                    others.enter_context(serving("--cpu-threads-bind", str(core)))
            one.wait_for(lambda: os.sched_getaffinity(one.process.pid) == {own})
            one.wait_for(lambda: bound_to(one) == {own})
            assert answer(one)
        one.wait_for(lambda: own not in os.sched_getaffinity(one.process.pid))
        assert claimed_by(one) == {own}


def test_servers_that_come_and_go_at_random_come_to_rest_apart() -> None:
    """Whatever came and went: those that are left share no core while one is free, read back from the kernel."""
    chance, living = random.Random(11), list[LiveServer]()
    with contextlib.ExitStack() as all_of_them:
        for _ in range(2 * len(CORES) + 2 if len(CORES) < 4 else 6):
            if living and (len(living) > len(CORES) or chance.random() < 0.4):
                living.pop(chance.randrange(len(living))).close()
            else:
                server = LiveServer.start_after(chance.random(), *SMALL, "--threads", "1")
                all_of_them.callback(server.close)
                living.append(server)
        while len(living) > len(CORES):
            living.pop(chance.randrange(len(living))).close()
        assert living
        living[0].wait_for(lambda: all(len(claimed_by(server)) == 1 for server in living))
        living[0].wait_for(lambda: len(set().union(*map(claimed_by, living))) == len(living))
        cores = [core for server in living for core in cores_of(server)]
        assert len(set(cores)) == len(living), cores


def test_doctor_says_who_has_been_given_which_cpus() -> None:
    with serving("--threads", "1") as server:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ask = [sys.executable, "-m", "homenode.cli.main", "doctor"]
        told = subprocess.run([*ask, "--json"], capture_output=True, text=True, cwd=ROOT, env=env)
        (claim,) = json.loads(told.stdout)["claims"]
        assert claim["pid"] in server.engines() and claim["kind"] == "engine"
        assert parse_cpu_list(claim["cpus"]) == tuple(claimed_by(server))
        page = subprocess.run(ask, capture_output=True, text=True, cwd=ROOT, env=env).stdout
        assert f"cpus_claimed: process {claim['pid']} ({claim['name']}) has CPUs {claim['cpus']}" in page
