"""SMT siblings that the kernel shows on two nodes: memory, teams and reasons of every strategy go by the nodes."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import PlacementError, UserError
from homenode.host.discovery.read import read_host
from homenode.host.doctor.doctor import doctor
from homenode.host.plan.demand import Demand, Parallelism
from homenode.host.plan.explain import explain
from homenode.host.plan.numa.demand import Decision, NumaDemand
from homenode.host.plan.numa.node_teams import node_teams
from homenode.host.plan.numa.policy import numa_plan
from homenode.host.plan.select import make_plan
from homenode.host.topology.host import Host
from homenode.host.topology.source import RecordedSource
from homenode.numa_policy import NumaPolicy
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import examples
from tests.recorded import recorded_host

CPU, NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"


def guest(node_of: list[int], core_of: list[int], machine: str = "aarch64") -> Host:
    """A guest whose CPUs lie on these nodes and, as it is told, on these cores."""
    count = len(node_of)
    every = f"0-{count - 1}"
    files = {f"{CPU}/online": every, "/proc/self/status": f"Cpus_allowed_list:\t{every}\nMems_allowed_list:\t0-3"}
    for node in set(node_of):
        files[f"{NODE}/node{node}/cpulist"] = format_cpu_list(cpu for cpu in range(count) if node_of[cpu] == node)
        files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal: 8388608 kB"
    for cpu in range(count):
        core = format_cpu_list(other for other in range(count) if core_of[other] == core_of[cpu])
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = core
    return read_host(RecordedSource(machine, files))


@st.composite
def guests(draw: st.DrawFn) -> Host:
    count = draw(st.integers(2, 12))
    node_of = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    core_of = draw(st.lists(st.integers(0, count // 2), min_size=count, max_size=count))
    return guest(node_of, core_of, draw(st.sampled_from(["aarch64", "x86_64", "ppc64le"])))


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(guests(), st.sampled_from(["fair", "cpu-threads", "numa-bind"]), st.integers(1, 3))
def test_memory_is_on_the_nodes_of_the_cpus_and_the_reason_says_so(host: Host, strategy: str, count: int) -> None:
    try:
        plan = make_plan(strategy, host, Demand(workers=count, reserve_cpus=0, parallelism=Parallelism()))
    except PlacementError as refused:
        assert refused.code in ("insufficient_cpus", "numa_node_unknown")
        return
    for worker in plan.workers:
        nodes = {host.cpu_by_id[cpu].node for cpu in worker.cpus}
        assert nodes <= set(worker.memory_nodes)
        if match := re.match(r"(\d+) of its (\d+) CPUs are on nodes? ([0-9,-]*[0-9])", worker.why):
            homes = parse_cpu_list(match[3])
            here = [cpu for cpu in worker.cpus if host.cpu_by_id[cpu].node in homes]
            assert (int(match[1]), int(match[2])) == (len(here), len(worker.cpus))
    assert "None" not in "\n".join(explain(host, plan))


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(guests(), st.integers(1, 2))
def test_threads_of_a_team_are_on_its_node(host: Host, threads_per_core: int) -> None:
    for team in node_teams(host, None, None, threads_per_core):
        assert {host.cpu_by_id[cpu].node for cpu in team.cpus} == {team.node} and team.memory_node == team.node


def test_the_recorded_guest() -> None:
    host = recorded_host("guest-4cpu-siblings-across-nodes")
    plan = make_plan("fair", host, Demand())
    assert [(worker.cpus, worker.memory_nodes) for worker in plan.workers] == [((0, 1), (0,)), ((2, 3), (1,))]
    told = next(finding for finding in doctor(host, plan) if finding.code == "siblings_across_nodes")
    assert "0,2 on nodes 0-1; 1,3 on nodes 0-1" in told.message


SHAPES = ("2s/2n/2c/quota=1", "2s/2n/3c", "2s/2n/4c/allowed=0-1", "1s/1n/4c", "2s/2n/2c/smt2", "1s/0n/4c", "2s/2n/2c")


@pytest.mark.parametrize("shape", SHAPES)
def test_no_text_of_a_numa_plan_names_a_flag_that_was_not_given(shape: str) -> None:
    """Whatever leaves one node to compute on, the reason is that one."""
    host, single = read_host(synthetic(shape)), 0
    for policy, threads, reserve, nodes in itertools.product(NumaPolicy, (None, 1, 2), (None, 1), (None, "0")):
        demand = NumaDemand(policy, nodes, threads, reserve=reserve)
        try:
            made = numa_plan(host, demand, lambda teams: Decision("shard", "because"))
        except (UserError, PlacementError):
            continue
        text = " ".join([made.why, *(finding.text for finding in made.findings)])
        given = {"--threads": threads, "--reserve-cpus": reserve, "--numa-nodes": nodes}
        assert "None" not in text
        assert {flag for flag, value in given.items() if value is None and f"{flag} " in text} == set()
        single += "numa_single_node" in {finding.code for finding in made.findings}
    assert single
