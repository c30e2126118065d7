"""Several servers on a machine of several nodes: none shares a core while another is free, however they come and go,
and none that moves leaves the node of its memory. Where threads run is read back from the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from tests.engine.compute_threads import computing_cpus
from tests.engine.live import LiveServer
from tests.lab.machine import NODES, own_machine, several_nodes
from tests.lab.residency import placed_memory

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [several_nodes, own_machine]
FLAGS = ("--threads", "1", "--kv-cache-memory", "4MiB", "--max-num-batched-tokens", "64")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Servers of this test know of each other only."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(folder))
    return folder


def core_of(cpu: int) -> int:
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    return min(parse_cpu_list(siblings.strip()))


CORES = sorted({core_of(cpu) for node in NODES.values() for cpu in node.cpus})
NODE_OF = {core_of(cpu): node.id for node in NODES.values() for cpu in node.cpus}


def started(delay_s: float) -> LiveServer:
    return LiveServer.start_after(delay_s, *FLAGS)


def answer(server: LiveServer) -> list[int]:
    words = {"model": "live", "prompt": "Once", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    body = json.dumps({**words, "return_token_ids": True}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=240) as said:
        return list(json.load(said)["choices"][0]["token_ids"])


def core(server: LiveServer) -> int:
    """The core on which it computes, as the kernel shows it while it does."""
    return core_of(computing_cpus(server.engines(), lambda: answer(server), 1, loop=True)[0])


def claimed(server: LiveServer, state: Path) -> set[int]:
    """The cores that it has claimed."""
    (file,) = state.glob("claims-*.json")
    entries = json.loads(file.read_text())["claims"]
    return {core_of(c) for each in entries if each["pid"] in server.engines() for c in parse_cpu_list(each["cpus"])}


def check_apart(servers: Sequence[LiveServer]) -> list[int]:
    cores = [core(server) for server in servers]
    assert len(set(cores)) == len(servers), f"{cores} of {CORES}"
    return cores


def test_servers_that_come_and_go_share_no_core_while_another_is_free(state: Path) -> None:
    chance = random.Random(len(CORES))
    with contextlib.ExitStack() as ends, ThreadPoolExecutor(2) as pool:
        servers = []
        for at_once in (2, 1, 1):
            servers += pool.map(started, [chance.random() for _ in range(at_once)])
            for server in servers[-at_once:]:
                ends.callback(server.close)
            cores = check_apart(servers)  # two, three, four
        words = answer(servers[0])
        while len(servers) <= len(CORES) and len(CORES) <= 4:  # one more than there are cores
            servers.append(started(0))
            ends.callback(servers[-1].close)
        if len(servers) > len(CORES):
            last = core(servers[-1])
            assert last in cores and b"shares its core" in b"".join(servers[-1].log)
            leaver = next(n for n, own in enumerate(cores) if own != last and NODE_OF[own] == NODE_OF[last])
            servers.pop(leaver).close()
            servers[-1].wait_for(lambda: len(set().union(*(claimed(each, state) for each in servers))) == len(CORES))
            check_apart(servers)
            assert all(answer(server) == words for server in servers)
            remote = [placed_memory(pid).remote for server in servers for pid in server.engines()]
            assert sum(remote) == 0, f"memory is away from its node: {remote}"


def test_the_rest_of_a_server_keeps_off_the_cores_of_others(state: Path) -> None:
    with contextlib.ExitStack() as ends:
        servers = []
        for _ in range(2):
            servers.append(started(0))
            ends.callback(servers[-1].close)
        first, second = servers
        other = claimed(second, state)
        first.wait_for(lambda: not {core_of(cpu) for cpu in os.sched_getaffinity(first.process.pid)} & other)


@pytest.mark.skipif(len(CORES) > 4, reason="takes a server for nearly every core")
def test_several_engines_of_one_service_move_too(state: Path) -> None:
    """Their claims are those of what has started them; each stays on the node of its memory."""
    with contextlib.ExitStack() as ends:
        taken = {}
        for cpu in CORES[:-1]:
            taken[cpu] = LiveServer(*FLAGS[2:], "--cpu-threads-bind", str(cpu))
            ends.callback(taken[cpu].close)
        service = LiveServer(*FLAGS, "--data-parallel-size", "2", "--api-server-count", "1")
        ends.callback(service.close)

        def cores() -> set[int]:
            (file,) = state.glob("claims-*.json")
            entries = json.loads(file.read_text())["claims"]
            return {core_of(c) for e in entries if e["pid"] == service.process.pid for c in parse_cpu_list(e["cpus"])}

        before = cores()
        shared = sorted(before & set(taken))
        assert len(before) == 2 and len(shared) == 1, before
        near = [cpu for cpu in taken if NODE_OF[cpu] == NODE_OF[shared[0]] and cpu != shared[0]]
        taken.pop(near[0]).close()
        service.wait_for(lambda: near[0] in cores() and not cores() & set(taken))
        pinned = [single_cpus(pid) for pid in service.engines()]
        assert set().union(*pinned) >= {near[0]} and not set().union(*pinned) & {shared[0]}
        assert answer(service)


def single_cpus(pid: int) -> set[int]:
    """The CPUs that threads of a process are bound to alone."""
    masks = [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]
    return {cpu for mask in masks if len(mask) == 1 for cpu in mask}
