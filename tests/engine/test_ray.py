"""Workers on the hosts of a Ray cluster: several simulated ones on this machine. The golden text under every split, and
when a host is lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.executor.bundles import bundle_of
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.errors import CapacityError
from tests.engine.engines import config_for, greedy, run_all
from tests.engine.live import LiveServer
from tests.engine.test_golden import check_golden, golden
from tests.engine.test_workers import executor_of
from tests.paths import STORIES, STORIES_MIXTURE, needs_data
from tests.waiting import PATIENCE_S, wait_until

pytest.importorskip("ray", reason="needs ray, which the extra `ray` installs")
# Ray gives up on its own processes when they take long to start.
pytestmark = [needs_data, pytest.mark.slow, pytest.mark.alone]

ALONE = {"executor": "ray", "threads": 1, "max_num_batched_tokens": 48, "max_num_seqs": 16, "worker_timeout": 60.0}
TWO = {**ALONE, "pipeline_parallel_size": 2, "stage_devices": "cpu,cpu"}
RANKS = {**ALONE, "tensor_parallel_size": 2}
APART = {"ray_placement": "STRICT_SPREAD"}

# On two hosts of two CPUs each: a model, settings, and which host each worker is on, by its first worker.
SPLITS: dict[str, tuple[Path, dict[str, Any], str]] = {
    "two stages": (STORIES, {**TWO, **APART}, "ab"),
    "a CPU stage and a torch stage": (STORIES, {**TWO, **APART, "stage_devices": "cpu,torch:cpu"}, "ab"),
    "two ranks of one host": (STORIES, RANKS, "aa"),
    "two ranks, a host each": (STORIES, {**RANKS, **APART}, "ab"),
    "a CPU rank and a torch rank": (STORIES, {**RANKS, **APART, "stage_devices": "cpu,torch:cpu"}, "ab"),
    "three uneven ranks, two on one host": (STORIES, {**RANKS, "tensor_parallel_size": 3}, "aab"),
    "four ranks on two hosts": (STORIES, {**RANKS, "tensor_parallel_size": 4, "kv_cache_memory": "96KiB"}, "aabb"),
    "two stages of two ranks, a host each": (
        STORIES,
        {**RANKS, "pipeline_parallel_size": 2, "stage_devices": "cpu,cpu"},
        "aabb",
    ),
    "experts over two ranks, a host each": (STORIES_MIXTURE, {**RANKS, **APART, "enable_expert_parallel": True}, "ab"),
}


@contextmanager
def cluster_of(hosts: int, monkeypatch: pytest.MonkeyPatch, cpus: int = 1) -> Iterator[Any]:
    """A head without CPUs, and so many hosts with `cpus` each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    here = {"node_ip_address": "127.0.0.2"}  # Ray takes an address of the network in place of 127.0.0.1
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **here})
    try:
        for _ in range(hosts):
            cluster.add_node(num_cpus=cpus, resources={"numa_node": cpus}, **here)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as monkeypatch, cluster_of(2, monkeypatch, cpus=2) as cluster:
        yield cluster


@contextmanager
def engine_on(cluster: Any, model: Path = STORIES, **settings: Any) -> Iterator[LocalEngine]:
    engine = LocalEngine(config_for(model, **{**TWO, "ray_address": cluster.address, **settings}))
    try:
        yield engine
    finally:
        engine.close()


def hosts_of(engine: LocalEngine) -> list[str]:
    """The host of each worker, by Ray's name of it."""
    launcher: Any = executor_of(engine).pool.launch
    return list(launcher.nodes)


@pytest.mark.parametrize("split", SPLITS)
def test_golden_text_under_memory_pressure_on_two_hosts(two_hosts: Any, split: str) -> None:
    """Few sequences fit: requests are preempted, begun again, and cut into parts."""
    model, settings, where = SPLITS[split]
    if "torch" in settings.get("stage_devices", ""):
        pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")
    entries = golden()
    kept = {"kv_cache_memory": "256KiB", "max_model_len": 256, "stage_devices": "cpu", **settings}
    if "pipeline_parallel_size" not in settings:
        kept["pipeline_parallel_size"] = 1
    with engine_on(two_hosts, model, **kept) as engine:
        letters: dict[str, str] = {}
        assert "".join(letters.setdefault(host, "abc"[len(letters)]) for host in hosts_of(engine)) == where
        outputs = run_all(engine, [e["prompt_ids"] for e in entries] * 2, [greedy(120)] * 2 * len(entries))
        check_golden(outputs, entries * 2, 120)
        assert sum(output.num_preemptions for found in outputs for output in found) > 0


@pytest.mark.parametrize("split", ["two stages", "two ranks, a host each"])
def test_golden_text_when_a_host_is_lost_in_the_middle(monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    entries = golden()
    _, settings, _ = SPLITS[split]
    kept = {"pipeline_parallel_size": 1, "stage_devices": "cpu", **settings}
    with cluster_of(3, monkeypatch) as cluster, engine_on(cluster, **kept) as engine:
        run_all(engine, [e["prompt_ids"] for e in entries[:1]], [greedy(10)])
        victim = next(node for node in cluster.worker_nodes if node.node_id == hosts_of(engine)[1])
        deadline = time.monotonic() + 2 * PATIENCE_S
        rounds = 0
        while not executor_of(engine).statistics()["restarts"]:  # few requests end before the host has
            lose = (lambda: cluster.remove_node(victim, allow_graceful=False)) if not rounds else (lambda: None)
            check_golden(_lose_in_the_middle(engine, lose, entries, 100 * rounds + 101), entries, 120)
            assert time.monotonic() < deadline, "the loss of a host was not noticed"
            rounds += 1
        again = run_all(engine, [e["prompt_ids"] for e in entries], [greedy(60)] * len(entries), 10_001)
        check_golden(again, entries, 60)
        assert hosts_now(engine)[0] != victim.node_id != hosts_now(engine)[1]


def hosts_now(engine: LocalEngine) -> list[str]:
    """As `hosts_of`, where Ray has moved them since."""
    import ray

    launcher: Any = executor_of(engine).pool.launch
    table = ray.util.placement_group_table(launcher._group)["bundles_to_node_id"]
    return [table[bundle_of(number, len(launcher.nodes), len(table))] for number in range(len(launcher.nodes))]


def pids_of(engine: LocalEngine) -> list[int]:
    """The process of each worker: of those on this machine, the ones that called this engine."""
    launcher: Any = executor_of(engine).pool.launch
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if launcher.rendezvous.address in words:
                found[int(words[words.index(launcher.rendezvous.address) + 1])] = int(path.parent.name)
    assert sorted(found) == list(range(len(launcher.nodes)))
    return [found[number] for number in sorted(found)]


def _kill(engine: LocalEngine, worker: int) -> None:
    os.kill(pids_of(engine)[worker], signal.SIGKILL)


@pytest.mark.parametrize(
    "split", ["two ranks of one host", "two ranks, a host each", "three uneven ranks, two on one host"]
)
def test_a_killed_rank_costs_no_token(two_hosts: Any, split: str) -> None:
    entries = golden()
    _, settings, _ = SPLITS[split]
    with engine_on(two_hosts, **{"pipeline_parallel_size": 1, "stage_devices": "cpu", **settings}) as engine:
        run_all(engine, [entries[0]["prompt_ids"]], [greedy(10)])
        for number in range(settings["tensor_parallel_size"]):
            before = executor_of(engine).statistics()["restarts"]
            check_golden(
                _lose_in_the_middle(engine, partial(_kill, engine, number), entries, 1000 * number + 101), entries, 120
            )
            deadline = time.monotonic() + 2 * PATIENCE_S
            while executor_of(engine).statistics()["restarts"] == before:
                assert time.monotonic() < deadline, "the loss of a worker was not noticed"
                run_all(engine, [entries[0]["prompt_ids"]], [greedy(10)], 900_000 + number)


def test_several_engines_of_two_ranks_on_two_hosts(two_hosts: Any) -> None:
    flags = (
        "--executor",
        "ray",
        "--ray-address",
        two_hosts.address,
        "--data-parallel-size",
        "2",
        "--tensor-parallel-size",
        "2",
        "--threads",
        "1",
    )
    entries = golden() * 6
    server = LiveServer(*flags, "--kv-cache-memory", "1MiB", "--max-num-batched-tokens", "48", model=STORIES)
    try:
        with httpx.Client(base_url=server.url, timeout=2 * PATIENCE_S) as http, ThreadPoolExecutor(12) as pool:
            bodies = [
                {"model": "live", "prompt": e["prompt_ids"], "max_tokens": 100, "temperature": 0, "ignore_eos": True}
                for e in entries
            ]
            answers = list(
                pool.map(lambda body: http.post("/v1/completions", json={**body, "return_token_ids": True}), bodies)
            )
            served = re.findall(r'homenode:generation_tokens_total{engine="(\d)".*} (\d+)', http.get("/metrics").text)
        texts = [answer.json()["choices"][0]["token_ids"] for answer in answers]
        assert texts == [entry["greedy_ids"][:100] for entry in entries]
        assert [engine for engine, tokens in served if int(tokens)] == ["0", "1"], "both engines have served"
    finally:
        assert server.close() == 0, server.log_end()


def _lose_in_the_middle(
    engine: LocalEngine, lose: Any, entries: list[dict[str, Any]], first_id: int
) -> list[list[Output]]:
    sink: SimpleQueue[Output] = SimpleQueue()
    engine.submit(
        [Request(id=first_id + n, prompt_ids=e["prompt_ids"], params=greedy(120)) for n, e in enumerate(entries)], sink
    )
    found: list[list[Output]] = [[] for _ in entries]
    left, lost, end = len(entries), False, time.monotonic() + 2 * PATIENCE_S
    while left:
        output = sink.get(timeout=max(0.1, end - time.monotonic()))
        found[output.id - first_id].append(output)
        left -= output.finish_reason is not None
        if not lost and sum(map(len, found)) > 10:
            lost = True
            lose()
    assert lost
    return found


def test_a_cluster_without_room_is_refused_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homenode.engine.executor.ray._ROOM_S", 2.0)
    with (
        cluster_of(1, monkeypatch) as cluster,
        pytest.raises(CapacityError, match="no room for 2 workers"),
        engine_on(cluster),
    ):
        pass


def test_a_cluster_of_this_host_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    entries = golden()[:2]
    before = set(_children_named("raylet"))
    engine = LocalEngine(config_for(STORIES, **TWO))
    try:
        outputs = run_all(engine, [e["prompt_ids"] for e in entries], [greedy(30)] * len(entries))
        check_golden(outputs, entries, 30)
    finally:
        engine.close()
    wait_until(lambda: set(_children_named("raylet")) <= before, "raylets are left behind", every_s=0.2)


def _children_named(word: str) -> list[int]:
    """Processes that this one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stat = path.read_text()
            if word in stat.split(" ", 4)[1] and int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found
