"""The machine as a picture is drawn of it: every CPU once, in its core, cache, node and socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import load_recording
from homenode.host.topology.machine_map import machine_map
from homenode.testing.hosts.synthetic import synthetic
from tests.paths import ROOT

HOSTS = sorted(path.name for path in (ROOT / "tests/hosts").glob("*.json"))
LINES = ["1s/1n/2c", "2s/4n/64c/smt2", "1s/0n/8c", "2s/2n/48c/gpu=4"]


def cpus_of(drawn: dict[str, Any]) -> list[tuple[int, int | None, int]]:
    return [
        (socket["id"], node["id"], cpu)
        for socket in drawn["sockets"]
        for node in socket["nodes"]
        for cache in node["caches"]
        for core in cache
        for cpu in core
    ]


@pytest.mark.parametrize("name", [*HOSTS, *LINES])
def test_every_cpu_is_drawn_once_where_it_is(name: str) -> None:
    file = ROOT / "tests/hosts" / name
    try:
        host = read_host(load_recording(Path(file)) if file.is_file() else synthetic(name), accelerators=False)
    except Exception as error:  # a recording that is made to be refused, or a line that is none
        pytest.skip(f"no host: {error}")
    drawn = machine_map(host)
    assert len(cpus_of(drawn)) == len(host.cpus)
    assert set(cpus_of(drawn)) == {(cpu.socket, cpu.node, cpu.id) for cpu in host.cpus}
    shown = {node for _, node, _ in cpus_of(drawn)} | {node["id"] for node in drawn["memory_nodes"]}
    assert shown - {None} == {node.id for node in host.nodes}
    cores = [
        core for socket in drawn["sockets"] for node in socket["nodes"] for cache in node["caches"] for core in cache
    ]
    assert sorted(map(min, cores)) >= sorted(host.cores)
