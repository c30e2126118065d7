"""What computes each worker's share, and where: devices, layers and places, decided on hosts of every shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.compute.ops import KvGeometry
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.config import EngineConfig
from homenode.engine.devices import executor_kind, worker_devices
from homenode.engine.memory.sizing import step_bytes
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.stages.layer_capacity import Needs, layer_capacities, weight_needs, with_the_rest
from homenode.engine.plan.stages.layer_seconds import keep_seconds, read_seconds
from homenode.engine.plan.stages.layers import LayerCapacity, StageTime, balanced_layers
from homenode.engine.plan.stages.stage_cost import stage_costs
from homenode.engine.plan.worker_bindings import WorkerBindings, worker_places
from homenode.engine.plan.worker_layout import WorkerLayout, WorkerPlan, with_memory
from homenode.errors import CapacityError, PlacementError, UserError
from homenode.host.discovery.read import read_host
from homenode.host.plan.numa.demand import Decision
from homenode.host.topology.host import Accelerator, Accelerators, Host
from homenode.model.part import IndexRange, ModelPart
from homenode.model.spec import ModelSpec, RopeSpec
from homenode.model.weights.layout import MatrixLayout, WeightLayout
from homenode.testing.hosts.synthetic import synthetic

GPUS = ("torch:cuda:0", "torch:cuda:1")
TWO_NODES = "1s/2n/8c/smt2"  # node 0: cores 0-3 (siblings 8-11), node 1: cores 4-7 (siblings 12-15)


@pytest.mark.parametrize(
    ("text", "stages", "ranks", "there", "found"),
    [
        ("auto", 2, 1, (), ("cpu", "cpu")),
        ("auto", 3, 1, GPUS, ("torch:cuda:0", "torch:cuda:1", "cpu")),
        ("cpu,cuda:1", 2, 1, GPUS, ("cpu", "torch:cuda:1")),
        (" torch:cpu , cpu", 2, 1, GPUS, ("torch:cpu", "cpu")),
        ("cpu,torch:cpu", 2, 2, GPUS, ("cpu", "cpu", "torch:cpu", "torch:cpu")),  # one a stage
        ("cuda:0,cpu,cpu,cuda:1", 2, 2, GPUS, ("torch:cuda:0", "cpu", "cpu", "torch:cuda:1")),  # one a worker
        ("cuda:0,cpu", 1, 2, GPUS, ("torch:cuda:0", "cpu")),
    ],
)
def test_devices_of_workers(text: str, stages: int, ranks: int, there: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert worker_devices(text, stages, ranks, there) == found


def test_engines_take_their_own_accelerators() -> None:
    four = (*GPUS, "torch:cuda:2")
    assert [worker_devices("auto", 2, 1, four, n, 2) for n in range(2)] == [
        ("torch:cuda:0", "torch:cuda:1"),
        ("torch:cuda:2", "cpu"),
    ]
    assert worker_devices("cpu,cuda:1,cpu,cuda:0", 2, 1, GPUS, 1, 2) == ("cpu", "torch:cuda:0")
    assert worker_devices("cpu,torch:cpu", 2, 1, GPUS, 1, 2) == ("cpu", "torch:cpu")


@pytest.mark.parametrize(
    ("text", "stages", "ranks", "words"),
    [
        ("cpu", 2, 1, ["1 device ", "--pipeline-parallel-size 2", "give 2"]),
        ("cpu,cpu,cpu", 2, 2, ["3 devices", "--tensor-parallel-size 2", "give 2, one for each stage or 4"]),
        ("cuda:0,cuda:0", 2, 1, ["cuda:0", "more than one worker"]),
        ("gpu", 1, 1, ["'gpu'", "cuda:N"]),
        ("cpu:0", 1, 1, ["'cpu:0'"]),
        ("", 1, 1, ["no device"]),
    ],
)
def test_refusals_of_devices(text: str, stages: int, ranks: int, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        worker_devices(text, stages, ranks, GPUS)
    assert refused.value.param == "stage_devices" and all(word in refused.value.message for word in words)


@pytest.mark.parametrize(
    ("costs", "layers", "split"),
    [
        ([StageTime(1.0)] * 2, 5, (3, 2)),
        ([StageTime(1.0), StageTime(1.0, fixed_s=1.0)], 5, (3, 2)),
        ([StageTime(1.0), StageTime(1.0, fixed_s=3.0)], 5, (4, 1)),
        ([StageTime(10.0), StageTime(1.0)], 22, (2, 20)),
    ],
)
def test_layers_are_balanced(costs: list[StageTime], layers: int, split: tuple[int, ...]) -> None:
    assert balanced_layers(costs, layers) == split


def rooms_of(*shares: int) -> list[LayerCapacity]:
    """One for the worker of each stage, and one that all are in."""
    stages = len(shares) - 1
    own = [
        LayerCapacity(f"device {n}", tuple(int(n == m) for m in range(stages)), share)
        for n, share in enumerate(shares[:-1])
    ]
    return [*own, LayerCapacity("memory of this host", (1,) * stages, shares[-1])]


@pytest.mark.parametrize(
    ("capacities", "split"),
    [
        ([LayerCapacity("node 0", (1, 0), 2)], (2, 4)),  # the first would have had more
        ([LayerCapacity("node 0", (2, 0), 5)], (2, 4)),  # two ranks, each with a share of two layers
        ([LayerCapacity("node 0", (1, 1), 6)], (4, 2)),
        ([LayerCapacity("node 0", (1, 0), 9)], (4, 2)),
    ],
)
def test_a_stage_gets_no_more_layers_than_fit(capacities: list[LayerCapacity], split: tuple[int, ...]) -> None:
    assert balanced_layers([StageTime(1.0), StageTime(2.0)], 6, capacities) == split


@given(
    st.lists(st.builds(StageTime, st.floats(0.01, 10), st.floats(0, 20)), min_size=2, max_size=3),
    st.integers(3, 9),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.integers(0, 20),
)
def test_no_other_split_has_a_faster_slowest_stage(
    costs: list[StageTime], layers: int, shares: list[int], total: int
) -> None:
    def slowest(split: tuple[int, ...]) -> float:
        return max(cost.seconds(count) for cost, count in zip(costs, split, strict=True))

    def splits(stages: int, left: int) -> list[tuple[int, ...]]:
        if stages == 1:
            return [(left,)]
        return [(n, *rest) for n in range(1, left - stages + 2) for rest in splits(stages - 1, left - n)]

    found = balanced_layers(costs, layers)
    assert sum(found) == layers
    assert slowest(found) == pytest.approx(min(slowest(split) for split in splits(len(costs), layers)))
    capacities = rooms_of(*shares[: len(costs)], total)
    fitting = [split for split in splits(len(costs), layers) if all(room.holds(split) for room in capacities)]
    if fitting:
        assert slowest(balanced_layers(costs, layers, capacities)) == pytest.approx(min(map(slowest, fitting)))
    else:
        with pytest.raises(CapacityError, match="--layer-split auto"):
            balanced_layers(costs, layers, capacities)


def test_too_many_stages_and_too_little_room_are_refused() -> None:
    with pytest.raises(UserError, match="--pipeline-parallel-size 3: this model has 2 layers"):
        balanced_layers([StageTime(1.0)] * 3, 2)
    with pytest.raises(
        CapacityError,
        match="device 0 has room for 2 layers of stage 0; device 1 has room for 1 layer of stage 1; memory",
    ) as caught:
        balanced_layers([StageTime(1.0), StageTime(1.0)], 4, rooms_of(2, 1, 9))
    assert caught.value.param == "layer_split"
    with pytest.raises(CapacityError, match="room for 0 shares of layers of stages 0, 1"):
        balanced_layers([StageTime(1.0), StageTime(1.0)], 4, [LayerCapacity("node 0", (2, 2), -1)])


def matrix(name: str, size: int) -> MatrixLayout:
    return MatrixLayout(name, 1, size, "F32", "F32", "", size, size)


@pytest.mark.parametrize(
    ("measured", "split"),
    [
        ([None, None], (4, 2)),  # by bytes: the last stage has the output matrix, as large as two layers
        ([1.0, None], (4, 2)),  # of one alone nothing can be said
        ([1.0, 1.0], (4, 2)),
        ([4.0, 1.0], (1, 5)),
    ],
)
def test_costs_are_of_bytes_or_measured(measured: list[float | None], split: tuple[int, ...]) -> None:
    spec, layout = cut_model()
    bindings = [EngineBinding((0,)), EngineBinding((1,))]
    assert balanced_layers(stage_costs(spec, layout, ["cpu", "cpu"], bindings, 1, measured), 6) == split


def cut_model() -> tuple[ModelSpec, WeightLayout]:
    """Six layers of 100 bytes, an embedding of 500, an output matrix of 200."""
    layers = [matrix(f"model.layers.{n}.mlp.up_proj.weight", 100) for n in range(6)]
    layout = WeightLayout((matrix("model.embed_tokens.weight", 500), *layers, matrix("lm_head.weight", 200)), 0)
    return ModelSpec("llama", 8, 8, 6, 2, 2, 4, 9, 64, 1e-5, RopeSpec(), tie_word_embeddings=False), layout


def test_what_workers_need_for_layers_and_besides() -> None:
    spec, layout = cut_model()
    assert weight_needs(spec, layout, 3, 1) == Needs(100, (500, 0, 200))
    assert weight_needs(spec, layout, 2, 2) == Needs(50, (250, 100))
    tied = replace(spec, tie_word_embeddings=True)
    assert weight_needs(tied, replace(layout, matrices=layout.matrices[:-1]), 2, 1) == Needs(100, (500, 500))
    config = EngineConfig.of(
        None, {"pipeline_parallel_size": 2, "max_num_batched_tokens": 8, "max_num_seqs": 8, "kv_cache_fraction": 0.5}
    )
    geometry = KvGeometry.uniform(6, 2, 4, 32, "f32")
    rest = step_bytes(config, spec)
    two_blocks_of_a_layer = 2 * geometry.block_bytes // 6
    assert with_the_rest(Needs(100, (500, 200)), config, spec, geometry, None) == Needs(
        100 + 2 * two_blocks_of_a_layer, (500 + rest, 200 + rest)
    )
    assert with_the_rest(Needs(100, (500, 200)), config, spec, geometry, 70) == Needs(100, (570 + rest, 270 + rest))


def with_free(text: str, free: list[int | None], available: int) -> Host:
    found = host(text)
    nodes = tuple(replace(node, free=size) for node, size in zip(found.nodes, free, strict=True))
    return replace(found, nodes=nodes, allowance=replace(found.allowance, memory_available=available))


def test_rooms_are_of_nodes_devices_and_the_host() -> None:
    config = EngineConfig.of(None, {"pipeline_parallel_size": 3})
    on = [
        EngineBinding((0,), memory_nodes=(0,)),
        EngineBinding((4,), memory_nodes=(1,)),
        EngineBinding((), memory_nodes=(1,)),
    ]
    devices, needs = ["cpu", "cpu", "torch:cuda:0"], Needs(100, (500, 0, 200))
    found = layer_capacities(
        with_free(TWO_NODES, [900, 350], 1100), config, devices, on, {"torch:cuda:0": 1250}, needs, None
    )
    assert found == (
        LayerCapacity("cuda:0", (0, 0, 1), 10),
        LayerCapacity("memory of NUMA node 0", (1, 0, 0), 4),
        LayerCapacity("memory of NUMA node 1", (0, 1, 0), 3),
        LayerCapacity("memory of this host", (1, 1, 0), 6),
    )
    unknown = layer_capacities(with_free(TWO_NODES, [None, 350], 0), config, devices, on, {}, needs, None)
    assert unknown == (LayerCapacity("memory of NUMA node 1", (0, 1, 0), 3),)
    shared = EngineConfig.of(None, {"pipeline_parallel_size": 2, "tensor_parallel_size": 2})
    found = layer_capacities(
        with_free("1s/1n/4c", [None], 900),
        shared,
        ["cpu"] * 4,
        [EngineBinding((0,))] * 4,
        {},
        Needs(50, (250, 100)),
        None,
    )
    assert found == (LayerCapacity("memory of this host", (2, 2), 4),)
    assert (
        layer_capacities(
            with_free("1s/1n/4c", [None], 900),
            shared,
            ["cpu"] * 4,
            [EngineBinding((0,))] * 4,
            {},
            Needs(50, (250, 100)),
            800,
        )[0].shares
        == 2
    )


def test_seconds_of_layers_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "layer-seconds.json"
    assert read_seconds(file) == {}
    keep_seconds(file, {"a": 1.0})
    keep_seconds(file, {"b": 2.0, "wrong": -1.0})
    assert read_seconds(file) == {"a": 1.0, "b": 2.0}
    file.write_text("{")
    assert read_seconds(file) == {}
    keep_seconds(file / "no-folder", {"c": 1.0})  # nowhere to write to: it is measured again


def host(text: str = TWO_NODES) -> Host:
    return read_host(synthetic(text))


def bindings(text: str, devices: list[str], **settings: Any) -> WorkerBindings:
    return worker_places(host(text), EngineAssignment(EngineConfig.of(None, settings)), devices)


@pytest.mark.parametrize(
    ("text", "count", "teams", "memory", "loop"),
    [
        ("1s/1n/2c", 2, [(0,), (1,)], [(), ()], ()),
        (TWO_NODES, 2, [(0, 1, 2), (4, 5, 6, 7)], [(0,), (1,)], (3, 11)),
        ("2s/4n/8c", 2, [(0, 1, 2), (4, 5, 6, 7)], [(0, 1), (2, 3)], (3,)),  # whole nodes
    ],
)
def test_workers_divide_the_cores(
    text: str, count: int, teams: list[tuple[int, ...]], memory: list[tuple[int, ...]], loop: tuple[int, ...]
) -> None:
    found = bindings(text, ["cpu"] * count)
    assert [binding.team for binding in found.bindings] == teams
    assert [binding.memory_nodes for binding in found.bindings] == memory
    assert found.loop == loop and not found.shared


def test_more_workers_than_cores_share_them_and_never_spin() -> None:
    found = bindings("1s/1n/2c", ["cpu"] * 3)
    assert [binding.team for binding in found.bindings] == [(0,), (0,), (1,)]
    assert found.shared and [finding.code for finding in found.findings] == ["workers_share_cores"]
    with pytest.raises(UserError, match="3 workers share 2 physical cores"):
        bindings("1s/1n/2c", ["cpu"] * 3, threads=2)


def test_a_replicas_workers_divide_its_own_cores() -> None:
    binding = EngineBinding((4, 5, 6, 7), (3, 11), (1,))
    config = EngineAssignment(EngineConfig.of(None, {"numa_bind": True}), Replica(1, 2, binding))
    found = worker_places(host(), config, ["cpu", "cpu"])
    assert [p.team for p in found.bindings] == [(4, 5), (6, 7)] and found.loop == (3, 11)
    assert [p.memory_nodes for p in found.bindings] == [(1,), (1,)]
    nowhere = replace(config, replica=Replica(0, 1, EngineBinding((UNPINNED,) * 4)))
    assert [p.team for p in worker_places(host(), nowhere, ["cpu", "cpu"]).bindings] == [(UNPINNED,) * 2] * 2


def test_host_threads_of_an_accelerator_stay_near_it_and_off_the_computing_cores() -> None:
    seen = host()
    chip = Accelerator("cuda", 0, "card", local_cpus=(4, 5, 6, 7, 12, 13, 14, 15), node=1)
    seen = replace(seen, accelerators=Accelerators((chip,)))
    found = worker_places(
        seen, EngineAssignment(EngineConfig.of(None, {"cpu_threads_bind": "0-3"})), ["torch:cuda:0", "cpu"]
    )
    assert (
        found.bindings[0].team == ()
        and found.bindings[0].others == chip.local_cpus
        and found.bindings[0].memory_nodes == (1,)
    )
    assert found.bindings[1].team == (0, 1, 2, 3)
    crowded = worker_places(seen, EngineAssignment(EngineConfig.of(None, {})), ["torch:cuda:0", "cpu"])
    assert crowded.bindings[0].others == (7, 15), "the core near it that computes nothing"
    assert crowded.bindings[1].team == (0, 1, 4, 5, 6) and crowded.loop == (2, 3, 7, 10, 11, 15)


FOUR_NODES = "2s/4n/8c"  # cores 0-1, 2-3, 4-5, 6-7


@pytest.mark.parametrize("policy", ["auto", "local", "shard", "mirror", "interleave"])
def test_a_worker_on_one_node_keeps_all_its_memory_there(policy: str) -> None:
    found, bare = bindings(TWO_NODES, ["cpu"] * 2, numa=policy), bindings(TWO_NODES, ["cpu"] * 2)
    assert (
        [binding.team for binding in found.bindings]
        == [binding.team for binding in bare.bindings]
        == [(0, 1, 2), (4, 5, 6, 7)]
    )
    assert [binding.memory_nodes for binding in found.bindings] == [(0,), (1,)] and found.loop == bare.loop
    assert [binding.thread_memory for binding in found.bindings] == [(0,) * 3, (1,) * 4]
    assert [binding.numa for binding in found.bindings] == ["local", "local"]
    told = [finding.code for finding in found.findings]
    assert told == ([] if policy in ("auto", "local") else ["numa_single_node"])


@pytest.mark.parametrize(
    ("policy", "own"), [("auto", "shard"), ("shard", "shard"), ("mirror", "mirror"), ("interleave", "interleave")]
)
def test_a_worker_on_several_nodes_spreads_over_its_own(policy: str, own: str) -> None:
    found = bindings(FOUR_NODES, ["cpu"] * 2, numa=policy, numa_strict=True)
    assert [binding.team for binding in found.bindings] == [(0, 1, 2), (4, 5, 6, 7)] and found.loop == (3,)
    assert [binding.thread_memory for binding in found.bindings] == [(0, 0, 1), (2, 2, 3, 3)]
    assert [binding.memory_nodes for binding in found.bindings] == [(0, 1), (2, 3)]
    assert {binding.numa for binding in found.bindings} == {own} and all(binding.strict for binding in found.bindings)
    assert not found.findings


def test_local_workers_on_several_nodes_compute_on_one() -> None:
    found = bindings(FOUR_NODES, ["cpu"] * 2, numa="local")
    assert [(binding.team, binding.memory_nodes) for binding in found.bindings] == [((0, 1), (0,)), ((4, 5), (2,))]


def test_threads_of_a_worker_are_shared_out_over_its_nodes() -> None:
    found = bindings(FOUR_NODES, ["cpu"] * 2, numa="shard", threads=2, reserve_cpus=0)
    assert [binding.team for binding in found.bindings] == [(0, 2), (4, 6)]
    with pytest.raises(UserError, match="--threads 9"):
        bindings(FOUR_NODES, ["cpu"] * 2, numa="shard", threads=9)


def test_workers_divide_the_nodes_that_are_to_compute() -> None:
    found = bindings(FOUR_NODES, ["cpu"] * 2, numa="auto", numa_nodes="1,3", reserve_cpus=0)
    assert [(binding.team, binding.memory_nodes) for binding in found.bindings] == [((2, 3), (1,)), ((6, 7), (3,))]
    with pytest.raises(PlacementError, match="node"):
        bindings(FOUR_NODES, ["cpu"] * 2, numa="auto", numa_nodes="9")


def test_numa_policies_that_workers_cannot_have_are_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="--numa replicate is an engine for each node") as refused:
        bindings(TWO_NODES, ["cpu"] * 2, numa="replicate")
    assert refused.value.param == "numa"
    with pytest.raises(PlacementError, match="needs several nodes"):
        bindings(TWO_NODES, ["cpu"] * 2, numa="shard", numa_strict=True)
    with pytest.raises(UserError, match="both say where threads run"):
        bindings(TWO_NODES, ["cpu"] * 2, numa="shard", numa_bind=True)


def test_a_host_of_one_node_has_nothing_to_spread_over() -> None:
    found = bindings("1s/1n/2c", ["cpu"] * 2, numa="auto")
    assert [(binding.team, binding.memory_nodes) for binding in found.bindings] == [((0,), ()), ((1,), ())]


def test_what_was_settled_for_the_model_is_taken_where_a_worker_has_several_nodes() -> None:
    config = EngineAssignment(
        EngineConfig.of(None, {"numa": "auto"}), numa_decision=Decision("mirror", "it was faster")
    )
    assert [binding.numa for binding in worker_places(host(FOUR_NODES), config, ["cpu"] * 2).bindings] == [
        "mirror",
        "mirror",
    ]
    alone = replace(config, numa_decision=Decision("local", "it is small", (0,)))
    assert [binding.numa for binding in worker_places(host(FOUR_NODES), alone, ["cpu"] * 2).bindings] == [
        "shard",
        "shard",
    ]


NOTHING = IndexRange(0, 0)


def layout(bindings: list[tuple[int, ...]], devices: list[str]) -> WorkerLayout:
    part = ModelPart(IndexRange(0, 1), 0, 1, 0, 1, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, ())
    return WorkerLayout(
        tuple(
            WorkerPlan(n, f"w{n}", device, part, EngineBinding((n,), memory_nodes=nodes))
            for n, (nodes, device) in enumerate(zip(bindings, devices, strict=True))
        )
    )


@pytest.mark.parametrize(
    ("nodes", "devices", "weights", "capacities", "total", "memory"),
    [
        (
            [(), ()],
            ["cpu", "cpu"],
            [10, 30],
            [100, 100],
            100,
            [40, 60],
        ),  # one memory: its weights, and half of the rest
        ([(0,), (1,)], ["cpu", "cpu"], [10, 30], [100, 200], 300, [100, 200]),
        ([(0,), (1,)], ["cpu", "cpu"], [10, 30], [100, 100], 100, [50, 50]),  # a share of the machine's
        ([(), ()], ["torch:cuda:0", "cpu"], [10, 30], [100, 100], 100, [None, 100]),
        (
            [(), ()],
            ["cpu", "cpu"],
            [80, 80],
            [100, 100],
            100,
            [50, 50],
        ),  # it does not fit: nobody is promised more than there is
    ],
)
def test_memory_is_counted_once(
    nodes: list[tuple[int, ...]],
    devices: list[str],
    weights: list[int],
    capacities: list[int],
    total: int,
    memory: list[int | None],
) -> None:
    given_rooms = list(zip(capacities, nodes, strict=True))
    assert [w.memory for w in with_memory(layout(nodes, devices), weights, given_rooms, total).workers] == memory


def test_one_cpu_worker_stays_in_its_engines_process() -> None:
    assert executor_kind("auto", ["cpu"]) == "inline" and executor_kind("auto", ["cpu", "cpu"]) == "processes"
    assert executor_kind("auto", ["torch:cpu"]) == "processes"
    with pytest.raises(UserError, match="--executor inline has one CPU worker; this engine has cpu, cpu"):
        executor_kind("inline", ["cpu", "cpu"])
