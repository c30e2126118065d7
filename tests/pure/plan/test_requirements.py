"""The core count question, and the switch of the Ascend binding."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig, ParallelConfig
from homenode.errors import PlacementError
from homenode.host.plan.additional_config import cpu_binding_enabled
from homenode.host.plan.demand import Demand, Parallelism
from homenode.host.plan.requirements import Requirements, requirements
from homenode.server.fronts.cores import too_few_cores
from tests.examples import examples
from tests.placement_hosts import host

BIG = "2s/2n/64c/smt2"


def need(text: str, **sizes: int) -> Requirements:
    return requirements(host(text), Demand(parallelism=Parallelism(**sizes)))


@pytest.mark.parametrize(
    ("sizes", "cores"),
    [
        ({}, 3),
        ({"devices": 8}, 10),
        ({"devices": 8, "data_parallel_size": 4, "tensor_parallel_size": 2}, 17),
        ({"data_parallel_size": 4, "tensor_parallel_size": 2}, 17),  # devices follow from the sizes
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 10),
        ({"devices": 8, "api_server_count": 4}, 13),
        ({"data_parallel_size": 2, "api_server_count": 1}, 6),  # A + DP + N + coordinator = 1 + 2 + 2 + 1
    ],
)
def test_a_core_for_each_process(sizes: dict[str, int], cores: int) -> None:
    needed = need(BIG, **sizes)
    assert (needed.physical_cores, needed.vcpus, needed.met, needed.findings[1:]) == (cores, 2 * cores, True, ())
    assert sum(count for _, count in needed.parts) == cores and needed.formula.endswith(f"= {cores}")
    assert need("1n/64c", **sizes).vcpus == cores  # one thread a core: as many CPUs as cores


@pytest.mark.parametrize(
    ("text", "cores", "vcpus"),
    [
        ("1n/8c/smt2", 8, 16),
        ("1n/8c/smt2 allowed=0-3,8-11", 4, 8),
        ("1n/8c/smt2 allowed=0-7", 0, 8),  # half of every core: no core is ours alone
        ("1n/8c/smt2 quota=6.9", 6, 6),  # cpu.max is rounded down
        ("1n/8c/smt2 quota=100", 8, 16),
        ("1n/8c/smt2 offline=8-15", 8, 8),
    ],
)
def test_what_is_there(text: str, cores: int, vcpus: int) -> None:
    needed = need(text, devices=5)
    assert (needed.have_cores, needed.have_vcpus, needed.met) == (cores, vcpus, cores >= 7)
    assert ("too_few_cores" in [finding.code for finding in needed.findings]) == (not needed.met)


def test_what_else_should_be_known() -> None:
    found = {
        finding.code for finding in need("1n/8c/smt2 allowed=0-8 quota=2", devices=8, tensor_parallel_size=2).findings
    }
    assert found == {"too_few_cores", "cores_in_part", "quota_below_cpus", "devices_unused"}


def test_our_own_engine() -> None:
    own = requirements(host("1n/8c"), Demand(workers=2)).homenode
    # The front, and seven cores for two workers.
    assert (own.physical_cores, own.met, own.compute_cores) == (3, True, 3)
    small = requirements(host("1n/2c"), Demand(workers=2)).homenode
    assert (small.physical_cores, small.met, small.compute_cores) == (3, False, 0)


@pytest.mark.parametrize(
    "sizes",
    [{"devices": 3, "tensor_parallel_size": 4}, {"devices": 4097}, {"devices": -1}, {"data_parallel_size": 0},
        {"tensor_parallel_size": 5000},
     {"data_parallel_size": 4000, "tensor_parallel_size": 4000}, {"api_server_count": 0}],
)  # fmt: skip
def test_sizes_that_cannot_be(sizes: dict[str, int]) -> None:
    with pytest.raises(PlacementError) as caught:
        need(BIG, **sizes)
    assert caught.value.code == "bad_parallelism" and caught.value.remedy


def test_the_json_form() -> None:
    shown = json.loads(json.dumps(need("1n/2c", devices=1).to_dict()))
    assert (shown["physical_cores"], shown["vcpus"], shown["met"], shown["have"]) == (
        3,
        3,
        False,
        {"physical_cores": 2, "vcpus": 2},
    )
    assert shown["findings"][0]["code"] == "too_few_cores" and shown["homenode"]["physical_cores"] == 2


@pytest.mark.parametrize(
    ("config", "flag", "enabled"),
    [
        (None, None, True),
        (None, False, False),
        (None, True, True),
        ("{}", None, True),
        ('{"enable_cpu_binding": true}', None, True),
        (
            '{"enable_cpu_binding": false, "torchair_graph_config": {"enable_cpu_binding": "x"}}',
            None,
            False,
        ),  # other keys are the engine's
        ('{"enable_cpu_binding": false}', False, False),
        ('{"weight_prefetch": 1}', False, False),
    ],
)
def test_whether_the_binding_is_wanted(config: str | None, flag: bool | None, enabled: bool) -> None:
    assert cpu_binding_enabled(config, flag) is enabled


@pytest.mark.parametrize(
    ("config", "flag", "word"),
    [
        ('{"enable_cpu_binding": "true"}', None, "without quotes"),
        ('{"enable_cpu_binding": "false"}', None, "without quotes"),
        ('{"enable_cpu_binding": 1}', None, "true or false"),
        ('{"enable_cpu_binding": null}', None, "true or false"),
        ('{"enable_cpu_binding": true, "enable_cpu_binding": false}', None, "twice"),
        ('{"enable_cpu_binding": true}', False, "--no-cpu-binding contradicts"),
        ('{"enable_cpu_binding": false}', True, "--cpu-binding contradicts"),
        ("", None, "no JSON object"),
        ("[]", None, "no JSON object"),
        ('[["enable_cpu_binding", false]]', None, "no JSON object"),
        ("enable_cpu_binding=false", None, "no JSON object"),
        ("[" * 100_000, None, "no JSON object"),
        ("{" + " " * (1 << 20) + "}", None, "no JSON object"),
    ],
)
def test_a_switch_that_cannot_be_read(config: str, flag: bool | None, word: str) -> None:
    with pytest.raises(PlacementError, match=word) as caught:
        cpu_binding_enabled(config, flag)
    assert caught.value.code == "bad_additional_config" and caught.value.remedy and len(str(caught.value)) < 1000


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(deadline=None, derandomize=True, max_examples=examples(80))
@given(st.dictionaries(st.sampled_from(["enable_cpu_binding", "a", "b"]), values))
def test_only_true_and_false_switch(config: dict[str, object]) -> None:
    switch = config.get("enable_cpu_binding", True)
    if isinstance(switch, bool):
        assert cpu_binding_enabled(json.dumps(config), None) is switch
    else:
        with pytest.raises(PlacementError):
            cpu_binding_enabled(json.dumps(config), None)


@pytest.mark.parametrize(
    ("engines", "tensor", "fronts", "cores"), [(2, 1, 2, 7), (2, 2, 1, 8), (1, 1, 4, 6), (4, 2, 4, 17)]
)
def test_a_service_of_several_fronts_counts_its_cores(engines: int, tensor: int, fronts: int, cores: int) -> None:
    configs = [EngineAssignment(EngineConfig(parallel=ParallelConfig(tensor_parallel_size=tensor)))] * engines
    assert too_few_cores(configs, fronts, host(f"1n/{cores}c")) == ()
    (finding,) = too_few_cores(configs, fronts, host(f"1n/{cores - 1}c"))
    assert (
        f"want {cores} physical cores" in finding.text
        and f"= {cores})" in finding.text
        and f"and {cores - 1} are there" in finding.text
    )
