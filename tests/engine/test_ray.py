"""Workers on the hosts of a Ray cluster: several simulated ones on this machine. The golden text, and what becomes of it when a host is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.local import LocalEngine
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.errors import CapacityError
from tests.engine.engines import config_for, greedy, run_all
from tests.engine.test_golden import check_golden, golden
from tests.paths import STORIES, needs_data

pytest.importorskip("ray", reason="needs ray, which the extra `ray` installs")
pytestmark = [needs_data, pytest.mark.slow]

PATIENCE_S = 120.0
TWO = {"executor": "ray", "pipeline_parallel_size": 2, "stage_devices": "cpu,cpu", "threads": 1, "max_num_batched_tokens": 48}


@contextmanager
def cluster_of(hosts: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs, and so many hosts with one each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(hosts):
            cluster.add_node(num_cpus=1, resources={"numa_node": 1})
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def engine_on(cluster: Any, **settings: Any) -> Iterator[LocalEngine]:
    engine = LocalEngine(config_for(STORIES, **{**TWO, "ray_address": cluster.address, **settings}))
    try:
        yield engine
    finally:
        engine.close()


def executor_of(engine: LocalEngine) -> ProcessExecutor:
    assert isinstance(engine._executor, ProcessExecutor)
    return engine._executor


def test_golden_text_on_two_hosts_and_when_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    entries = golden()
    with cluster_of(3, monkeypatch) as cluster, engine_on(cluster, ray_placement="STRICT_SPREAD") as engine:
        outputs = run_all(engine, [e["prompt_ids"] for e in entries], [greedy(60)] * len(entries))
        check_golden(outputs, entries, 60)
        launcher: Any = executor_of(engine)._launch
        hosts = {node["NodeID"]: node["NodeManagerPort"] for node in ray.nodes()}
        assert len(set(launcher.nodes)) == 2, "STRICT_SPREAD puts the workers on different hosts"
        victim = next(node for node in cluster.worker_nodes if node.node_id == launcher.nodes[1])
        assert victim.node_id in hosts
        found = _lose_in_the_middle(engine, lambda: cluster.remove_node(victim, allow_graceful=False), entries)
        check_golden(found, entries, 120)
        assert executor_of(engine).statistics()["restarts"] >= 1


def _lose_in_the_middle(engine: LocalEngine, lose: Any, entries: list[dict[str, Any]]) -> list[list[Output]]:
    sink: SimpleQueue[Output] = SimpleQueue()
    engine.submit([Request(id=101 + n, prompt_ids=e["prompt_ids"], params=greedy(120)) for n, e in enumerate(entries)], sink)
    found: list[list[Output]] = [[] for _ in entries]
    left, lost, end = len(entries), False, time.monotonic() + PATIENCE_S
    while left:
        output = sink.get(timeout=max(0.1, end - time.monotonic()))
        found[output.id - 101].append(output)
        left -= output.finish_reason is not None
        if not lost and sum(map(len, found)) > 10:
            lost = True
            lose()
    assert lost
    return found


def test_a_cluster_without_room_is_refused_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homenode.engine.executor.ray._ROOM_S", 2.0)
    with cluster_of(1, monkeypatch) as cluster, pytest.raises(CapacityError, match="no room for 2 workers"), engine_on(cluster):
        pass


def test_a_cluster_of_this_host_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    entries = golden()[:2]
    engine = LocalEngine(config_for(STORIES, **TWO))
    try:
        outputs = run_all(engine, [e["prompt_ids"] for e in entries], [greedy(30)] * len(entries))
        check_golden(outputs, entries, 30)
    finally:
        engine.close()
    assert not _children_named("raylet")


def _children_named(word: str) -> list[str]:
    from pathlib import Path

    deadline = time.monotonic() + 20
    while True:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, parent = stat.read_text().split(" ", 4)[1], stat.read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if word in name and int(parent) == os.getpid():
                found.append(name)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
