"""The part of the KV memory that holds states that are not keys and values, and how often snapshots of them are kept.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.compute.ops import KvGeometry
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU
from homenode.errors import CapacityError, UnsupportedError
from homenode.model.kv_cells import kv_cells
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.state import floats_of_kv_head, state_by_kv_head
from homenode.units import format_bytes, format_count

_SHARE = 0.5  # of the KV memory: an engine with much of one kind and little of the other can serve few requests
_SLOTS_PER_SEQUENCE = 3  # its own, and snapshots at the ends of its prompt and of its answer


def state_slots(config: EngineConfig, geometry: KvGeometry, kv_bytes: int) -> int:
    """Slots of the state memory within `kv_bytes` for both pools: at most half of it, or as many as one sequence wants
    where that is more, and no more than as many as --max-num-seqs sequences and their snapshots take. 0 where no layer
    keeps a state.
    """
    if geometry.state is None:
        return 0
    least, size = _slots_per_sequence(config), geometry.state.slot_bytes
    return min(least * config.scheduler.max_num_seqs, max(int(kv_bytes * _SHARE) // size, min(least, kv_bytes // size)))


def least_kv_memory(config: EngineConfig, geometry: KvGeometry, sequence: int) -> int:
    """Bytes for both pools that suffice for one sequence whose keys and values take `sequence` bytes."""
    states = state_bytes(geometry, _slots_per_sequence(config))
    return sequence + (max(sequence, states) if states else 0)


def _slots_per_sequence(config: EngineConfig) -> int:
    return _SLOTS_PER_SEQUENCE if config.kv.enable_prefix_caching else 1


def state_bytes(geometry: KvGeometry, slots: int) -> int:
    """Bytes of so many slots."""
    return 0 if geometry.state is None else slots * geometry.state.slot_bytes


def state_interval(config: EngineConfig, geometry: KvGeometry) -> int:
    """Positions between two snapshots of a state, a multiple of the block size. `geometry`: of the whole model. Where
    the settings give none: as many as take as much KV memory as a snapshot takes, so that snapshots double a prompt's
    share of the memory at most.
    """
    if geometry.state is None:
        return 0
    size = geometry.block_size
    wanted = config.kv.state_snapshot_interval or -(-geometry.state.slot_bytes // geometry.block_bytes) * size
    return -(-wanted // size) * size


def state_pages(spec: ModelSpec, parts: Sequence[ModelPart], geometries: Sequence[KvGeometry]) -> int:
    """KV blocks in which a state is handed over to another engine, of which each worker holds what it has of the state
    in what it has of the blocks. `parts`, `geometries`: of the workers. 0 where no layer keeps a state.
    """
    return max((_pages(spec, *worker) for worker in zip(parts, geometries, strict=True)), default=0)


def _pages(spec: ModelSpec, part: ModelPart, geometry: KvGeometry) -> int:
    held = None if geometry.state is None else state_by_kv_head(spec, part)
    if geometry.state is None or held is None:  # `state_handover_problem` has told why
        return 0
    return -(-4 * part.kv_heads.count * floats_of_kv_head(held, geometry.state) // geometry.block_bytes)


def state_form(spec: ModelSpec, parts: Sequence[ModelPart], geometries: Sequence[KvGeometry]) -> dict[str, str]:
    """The fact in which engines that hand states over must agree, by its name: how a state lies in KV blocks. It lies
    by KV heads, so that ranks may be more or fewer at the other side, and in the blocks of its stage's layers.
    """
    if not (pages := state_pages(spec, parts, geometries)):
        return {}
    ends = " ".join(map(str, sorted({part.layers.end for part in parts})))
    block = geometries[0].block_size
    held = f"{format_count(pages, 'block')} of {format_count(block, 'token')}"
    return {"states": f"{held}, stages end at layers {ends}"}


def state_handover_problem(
    config: EngineConfig,
    spec: ModelSpec,
    parts: Sequence[ModelPart],
    geometries: Sequence[KvGeometry],
    devices: Sequence[str],
) -> UnsupportedError | None:
    """Return why what is handed over of a model cannot be as the settings say, beside what is so of all models.
    `parts`, `geometries`, `devices`: of the workers.
    """
    if not config.transfer.on:
        return None
    if config.transfer.pd_in_place and (spec.layer_states or kv_cells(spec) is not None):
        why = "a state comes with" if spec.layer_states else "layers have unlike shapes of"
        return UnsupportedError(
            f"pd_in_place (--pd-in-place): {why} the keys and values of this model, which are not read in place; "
            "leave it out",
            param="pd_in_place",
        )
    if not spec.layer_states:
        return None
    if elsewhere := [device for device in devices if device != CPU]:
        return UnsupportedError(
            f"--pd-role {config.transfer.pd_role}: layers of {spec.architecture} models keep a state beside keys and "
            f"values, and {elsewhere[0]} keeps it where no other engine reads it; compute on CPUs (--stage-devices "
            "cpu)",
            param="stage_devices",
        )
    what = f"--pd-role {config.transfer.pd_role}: a state is handed over in KV blocks, a part with each KV head"
    problem = None
    if all(spec.kv_of(layer) is None for layer in range(spec.num_layers)):
        problem = "no keys and values"
    elif len({kv.kv_heads for layer in range(spec.num_layers) if (kv := spec.kv_of(layer)) is not None}) > 1:
        problem = "layers of unlike KV heads"
    elif spec.state_groups % spec.num_kv_heads:
        groups, heads = format_count(spec.state_groups, "group"), format_count(spec.num_kv_heads, "KV head")
        problem = f"{groups} of it and {heads}, which do not go together"
    if problem is not None:
        return UnsupportedError(f"{what}, and this model has {problem}; serve it without --pd-role", param="pd_role")
    for part, geometry in zip(parts, geometries, strict=True):
        layers = range(part.layers.first, part.layers.end)
        if geometry.state is not None and all(spec.kv_of(layer) is None for layer in layers):
            return UnsupportedError(
                f"{what}, and stage {part.stage} has no layer with keys and values; cut the layers otherwise "
                "(--layer-split)",
                param="layer_split",
            )
        if geometry.state is not None and state_by_kv_head(spec, part) is None:
            return UnsupportedError(
                f"{what}, and with --tensor-parallel-size {part.ranks} rank {part.rank} has "
                f"{format_count(part.state_groups.count, 'group')} of it and "
                f"{format_count(part.kv_heads.count, 'KV head')}, which do not go together; have fewer ranks",
                param="tensor_parallel_size",
            )
    return None


def state_memory_problem(
    config: EngineConfig, geometry: KvGeometry, kv_bytes: int, sequence: int
) -> CapacityError | None:
    """Return why not even one sequence's state fits, and its snapshots where any are kept, if so. `sequence`: bytes of
    its keys and values.
    """
    least = _slots_per_sequence(config)
    if geometry.state is None or state_slots(config, geometry, kv_bytes) >= least:
        return None
    kept = " and snapshots of it" if least > 1 else ""
    return CapacityError(
        f"the state of one sequence{kept}, beside keys and values, takes {format_bytes(state_bytes(geometry, least))}, "
        f"and the KV memory has {format_bytes(kv_bytes)}; give --kv-cache-memory at least "
        f"{format_bytes(least_kv_memory(config, geometry, sequence))}",
        param="kv_cache_memory",
    )
