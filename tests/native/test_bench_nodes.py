"""`homenode bench nodes` on this machine: figures that can be kept, read again, and lie where a machine's figures can
lie.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from homenode.bench.machine.node_probe import NativeProbe
from homenode.bench.machine.nodes import bench_teams
from homenode.cli.main import cli
from homenode.compute.native.thread_latency import barrier_us, round_trip_ns
from homenode.errors import HostError
from homenode.host.discovery.read import read_host
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.measured import load_measured
from homenode.host.topology.source import LiveSource


def test_the_command_measures_keeps_and_prints(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    result = CliRunner().invoke(cli, ["bench", "nodes", "--json", "--out", str(file)])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads(file.read_text())
    found = load_measured(file)
    assert {node.node for node in found.nodes} and all(node.threads >= 1 for node in found.nodes)
    for speed in found.read_gb_s.values():
        assert 0.1 < speed < 10_000
    assert all(pair["share_in_place"] in (None, 1.0) for pair in printed["pairs"])
    assert 0 < found.barrier_us <= found.barrier_across_us < 1e6


def test_the_table_names_every_node() -> None:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(cli, ["bench", "nodes"])
    assert result.exit_code == 0, result.output
    assert "node 0" in result.stdout and "GB/s" in result.stdout and "meet in" in result.stdout


def test_memory_bound_to_a_node_is_there_and_can_be_read() -> None:
    """What a machine with several nodes does for every pair, done here for the node there is."""
    host = read_host(LiveSource(), accelerators=False)
    team = bench_teams(host)[0]
    try:
        meter, share = NativeProbe(None, bind=True).meter(team, team.memory_node, 64 << 20)
    except HostError as error:
        pytest.skip(f"memory policies are refused here: {error.message}")
    assert share is None or share > 0.98
    assert meter.read(False, False) > 1e8


def test_a_node_that_does_not_exist_is_an_error_that_names_it() -> None:
    team = bench_teams(read_host(LiveSource(), accelerators=False))[0]
    with pytest.raises(HostError, match="from node 4000"):
        NativeProbe(None, bind=True).meter(team, 4000, 64 << 20)


def test_a_file_that_cannot_be_made_is_refused_before_measuring(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", "nodes", "--json", "--out", str(tmp_path / "no" / "nodes.json")])
    assert result.exit_code == 2
    assert "no file can be made" in json.loads(result.stdout)["error"]["message"]


def test_two_threads_need_time_to_meet_and_one_needs_none() -> None:
    cpus = Allowance.of_process().physical_cpus
    assert barrier_us(cpus[:1], [(0, 0)]) == 0.01
    if len(cpus) < 2:
        pytest.skip("needs two cores")
    assert 0.01 <= barrier_us(cpus[:2], [(0, 0), (0, 0)]) < 1e5
    assert 5 < round_trip_ns(cpus[0], cpus[1]) < 1e8
