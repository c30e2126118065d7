"""The number of layers that the memory of each node and device has room for, before anything is loaded. Pure.

Beside layers a worker has the embedding table (first stage), the output matrix (last stage), the buffers of a step, and
its `--kv-cache-memory`; where that is not set, KV memory for one sequence of full length has to fit as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.compute.ops import KvGeometry
from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.memory.sizing import model_length, step_bytes
from homenode.engine.plan.stages.layers import LayerCapacity
from homenode.engine.plan.stages.stage_cost import in_layers, is_embedding, is_output
from homenode.host.topology.host import Host
from homenode.model.spec import ModelSpec
from homenode.model.weights.layout import WeightLayout


@dataclass(frozen=True)
class Needs:
    """Bytes of one worker of several ranks: for its share of a layer, and for what it has besides, by stage."""

    share: int
    besides: tuple[int, ...]


def weight_needs(spec: ModelSpec, layout: WeightLayout, stages: int, ranks: int) -> Needs:
    """Return the needs of the weights alone. `layout`: of the whole model."""
    first = sum(m.target_bytes for m in layout.matrices if is_embedding(m.name))
    last = sum(m.target_bytes for m in layout.matrices if is_output(m.name, spec))
    besides = [first * (stage == 0) + last * (stage == stages - 1) for stage in range(stages)]
    if stages == 1 and spec.tie_word_embeddings:
        besides = [first]
    return Needs(-(-in_layers(layout) // (spec.num_layers * ranks)), tuple(-(-size // ranks) for size in besides))


def with_the_rest(
    needs: Needs, config: EngineConfig, spec: ModelSpec, geometry: KvGeometry, kv_memory: int | None
) -> Needs:
    """The same with KV memory and buffers. `geometry`: of the whole model's KV memory."""
    ranks, share, rest = config.parallel.tensor_parallel_size, needs.share, step_bytes(config, spec)
    if kv_memory is None:
        blocks = -(-min(model_length(config, spec), spec.max_position) // geometry.block_size)
        of_layers = (kv.token_bytes(geometry.dtype) / min(ranks, kv.kv_heads) for kv in geometry.layers)
        layer = blocks * geometry.block_size * sum(of_layers) / spec.num_layers
        share += int(layer / config.kv.kv_cache_fraction)
    else:
        rest += kv_memory
    return Needs(share, tuple(size + rest for size in needs.besides))


def layer_capacities(
    host: Host,
    config: EngineConfig,
    devices: Sequence[str],
    bindings: Sequence[EngineBinding],
    devices_memory: Mapping[str, int],
    needs: Needs,
    share: int | None,
) -> tuple[LayerCapacity, ...]:
    """Return the capacities of the nodes that memory is bound to, of all that the process may take, and of each
    accelerator in `devices_memory` (bytes it has free, or may take). What nobody tells of, as a recording of what is
    free, has no bounds and is missing. `share`: bytes that this one of several engines may take in all, None for one
    that is alone.
    """
    ranks = config.parallel.tensor_parallel_size
    own = [n for n, device in enumerate(devices) if is_accelerator(device)]
    rest = [n for n in range(len(devices)) if n not in own]
    found = [
        _capacity_of(devices[n].removeprefix("torch:"), devices_memory.get(devices[n]), [n], ranks, needs) for n in own
    ]
    for nodes in dict.fromkeys(frozenset(bindings[n].memory_nodes) for n in rest):
        within = [n for n in rest if bindings[n].memory_nodes and nodes.issuperset(bindings[n].memory_nodes)]
        if within:
            found.append(
                _capacity_of(f"memory of NUMA node {format_cpu_list(nodes)}", _free(host, nodes), within, ranks, needs)
            )
    total = host.allowance.memory_available or None
    if share is not None:
        total = min(total or share, share)
    if rest:
        found.append(_capacity_of("memory of this host", total, rest, ranks, needs))
    return tuple(room for room in found if room is not None)


def _free(host: Host, nodes: frozenset[int]) -> int | None:
    free = [node.free for node in host.nodes if node.id in nodes]
    return None if None in free else sum(size for size in free if size is not None)


def _capacity_of(
    where: str, size: int | None, workers: Sequence[int], ranks: int, needs: Needs
) -> LayerCapacity | None:
    if size is None:
        return None
    takers = tuple(sum(n // ranks == stage for n in workers) for stage in range(len(needs.besides)))
    left = size - sum(count * besides for count, besides in zip(takers, needs.besides, strict=True))
    return LayerCapacity(where, takers, max(-1, left // max(1, needs.share)))
