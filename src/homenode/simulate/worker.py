"""The way from a worker's place and its part of a model to what a step costs it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from homenode.compute.ops import KvGeometry
from homenode.engine.binding import EngineBinding
from homenode.errors import UserError
from homenode.host.plan.numa.machine_speed import MachineSpeed, machine_speed
from homenode.host.plan.numa.node_teams import NodeTeam
from homenode.host.plan.numa.step_cost import Spread, at_home, round_robin
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.topology.host import Host
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.state import matrix_operations, state_geometry_of
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.numa_choice import model_work
from homenode.model.weights.sampled_rows import of_sampled_rows
from homenode.simulate.costs import CommonExperts, IndexerWork, Link, WorkerCost, WorkerWork
from homenode.simulate.rates import Rates
from homenode.simulate.speeds import DECLARED, Speeds


@dataclass(frozen=True)
class Owners:
    """The places of engines that keep `experts` bytes in common, as many each."""

    bindings: Sequence[EngineBinding]
    experts: int


def cpu_worker(
    host: Host, binding: EngineBinding, work: WorkerWork, speeds: Speeds, owners: Owners | None = None
) -> WorkerCost:
    """A worker on these CPUs. Weights lie with the threads that read them, unless its policy puts their pages in turn
    on all nodes, or `owners` keep some."""
    machine = machine_speed(teams_of(host, binding), host, speeds.measured)
    spread = round_robin(machine.nodes) if binding.numa == "interleave" else at_home(machine.nodes)
    common = None
    if owners is not None:
        common = CommonExperts(work.model.weight_bytes - owners.experts, _byte_of(owners, host, binding, speeds))
    return WorkerCost(
        Rates.of(machine, spread, speeds.achieved.kind), work, speeds.step_s, speeds.achieved.float_cost, common
    )


def _byte_of(owners: Owners, host: Host, binding: EngineBinding, speeds: Speeds) -> float:
    """Seconds in which the threads of an engine read a byte that all owners keep parts of."""
    own = teams_of(host, binding)
    theirs = [teams_of(host, each) for each in owners.bindings]
    by_node = {team.node: team for teams in theirs for team in teams} | {team.node: team for team in own}
    machine = machine_speed(tuple(by_node.values()), host, speeds.measured)
    nodes = {team.node for team in own}
    work = at_home([node for node in machine.nodes if node.node in nodes]).work
    reads: dict[tuple[int, int], float] = {}
    for teams in theirs:
        threads = sum(len(team.cpus) for team in teams) * len(theirs)
        for (node, share), team in itertools.product(work.items(), teams):
            way = node, team.memory_node
            reads[way] = reads.get(way, 0.0) + share * len(team.cpus) / threads
    return Rates.of(machine, Spread(work, reads), speeds.achieved.kind).byte


def accelerator_worker(work: WorkerWork, speeds: Speeds) -> WorkerCost:
    """A worker on an accelerator of the declared speed. UserError where none was declared."""
    if speeds.accelerator is None:
        raise UserError(
            "a stage is on an accelerator, and nothing here knows its speed: give --accelerator "
            "read_gb_s=..,tops=..,memory=..,link_gb_s=..,link_us=.., as it was measured or as its vendor says",
            param="accelerator",
        )
    machine = speeds.accelerator.machine
    return WorkerCost(Rates.of(machine, at_home(machine.nodes), DECLARED), work, speeds.step_s, float_cost=1.0)


def work_of(spec: ModelSpec, layout: WeightLayout, geometry: KvGeometry, part: ModelPart) -> WorkerWork:
    """Return what a part of a model is as work. Attention over all positions: windows are not looked at. The last
    layer's experts and attention count for every token.
    """
    work = model_work(spec, layout, geometry, part)
    sampled = [m for m in layout.matrices if part.last_stage and m.expert is None and of_sampled_rows(m.name, spec)]
    operations = 2.0 * sum(m.rows * m.columns for m in sampled)
    return WorkerWork(
        replace(work, flops_per_token=work.flops_per_token - operations),
        float(sum(m.target_bytes for m in sampled)),
        operations,
        sum(_attention(spec, part, layer) for layer in range(part.layers.first, part.layers.end)),
        *_of_states(spec, part),
        _of_indexers(spec, geometry, part, work.scanned_bytes),
    )


def _attention(spec: ModelSpec, part: ModelPart, layer: int) -> float:
    """Operations of a token and a position it looks at, of a layer's query heads here."""
    return 2.0 * part.heads_in(layer)[0].count * spec.attended_columns(layer)


def _of_indexers(spec: ModelSpec, geometry: KvGeometry, part: ModelPart, scanned: int) -> IndexerWork | None:
    """Return the work of the layers here; with every rank all of an indexer. `scanned`: as in
    `ModelWork.scanned_bytes`.
    """
    indexer = spec.indexer
    if indexer is None:
        return None
    here = range(part.layers.first, part.layers.end)
    having = spec.index_layers(here.start, here.stop)
    key_bytes = sum(spec.index_kv(layer).token_bytes(geometry.dtype) for layer in having)
    dense = sum(_attention(spec, part, layer) for layer in here if not spec.chooses(layer))
    operations = sum(2.0 * indexer.heads * indexer.width / spec.window_tokens(layer) for layer in having)
    return IndexerWork(indexer.chosen, float(key_bytes), operations, float(scanned - key_bytes), dense)


def _of_states(spec: ModelSpec, part: ModelPart) -> tuple[float, float]:
    """Bytes of the states of a sequence that a step reads and writes, and operations of a token with them: two for
    each input of a convolution, beside those with matrices.
    """
    kept = state_geometry_of(spec, part)
    if kept is None:
        return 0.0, 0.0
    elements = sum(layer.heads * layer.key_width * layer.value_width for layer in kept.layers)
    convolved = sum(2.0 * layer.channels * (layer.taps + 1) for layer in kept.layers)
    return 2.0 * kept.slot_bytes, matrix_operations(spec) * elements + convolved


def teams_of(host: Host, binding: EngineBinding) -> tuple[NodeTeam, ...]:
    """The threads of an engine by node and memory node. A thread without a CPU of its own is on the first node there
    is."""
    first = min(host.node_by_id, default=0)
    found: dict[tuple[int, int], list[int]] = {}
    for at, cpu in enumerate(binding.team):
        known = host.cpu_by_id.get(cpu)
        node = known.node if known is not None and known.node is not None else first
        found.setdefault((node, _memory_of(host, binding, at, node)), []).append(cpu)
    return tuple(
        NodeTeam(node, memory, tuple(cpus), _node_bytes(host, memory)) for (node, memory), cpus in found.items()
    )


def link_of(host: Host, bindings: Sequence[EngineBinding], speeds: Speeds) -> Link:
    """Between workers of one host: two meetings, and bytes at the slowest way from one's node to another's memory."""
    by_node: dict[int, NodeTeam] = {}
    for team in (team for binding in bindings for team in teams_of(host, binding)):
        before = by_node.get(team.node)
        by_node[team.node] = team if before is None else replace(team, cpus=(*before.cpus, *team.cpus))
    machine: MachineSpeed = machine_speed(tuple(by_node.values()), host, speeds.measured)
    slowest = min(machine.bandwidth(reader, other.memory) for reader in machine.nodes for other in machine.nodes)
    barrier = machine.barrier_across_us if len(machine.nodes) > 1 else machine.barrier_us
    return Link(2 * barrier / 1e6, 1 / (slowest * 1e9))


def _memory_of(host: Host, binding: EngineBinding, at: int, node: int) -> int:
    if binding.thread_memory:
        return binding.thread_memory[at]
    if binding.memory_nodes and node not in binding.memory_nodes:
        return binding.memory_nodes[0]
    return next(iter(memory_nodes(host, (node,))), node)


def _node_bytes(host: Host, node: int) -> int | None:
    known = host.node_by_id.get(node)
    return None if known is None else known.memory if known.free is None else known.free
