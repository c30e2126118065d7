"""How much of the KV memory holds states that are not keys and values, and how often snapshots of them are kept. Pure."""

from __future__ import annotations

from homenode.compute.ops import KvGeometry
from homenode.engine.config import EngineConfig
from homenode.errors import CapacityError, UnsupportedError, UserError
from homenode.model.spec import ModelSpec
from homenode.units import format_bytes

_SHARE = 0.5  # of the KV memory: an engine with much of one kind and little of the other can serve few requests
_SLOTS_PER_SEQUENCE = 3  # its own, and snapshots at the ends of its prompt and of its answer


def state_slots(config: EngineConfig, geometry: KvGeometry, kv_bytes: int) -> int:
    """Slots of the state memory within `kv_bytes` for both pools: at most half of it, and no more than as many as
    --max-num-seqs sequences and their snapshots take. 0 where no layer keeps a state.
    """
    if geometry.state is None:
        return 0
    return min(
        _slots_per_sequence(config) * config.scheduler.max_num_seqs, int(kv_bytes * _SHARE) // geometry.state.slot_bytes
    )


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


def state_memory_problem(config: EngineConfig, geometry: KvGeometry, kv_bytes: int) -> CapacityError | None:
    """Why not even one sequence's state fits, and a snapshot of it where any is kept, if so."""
    least = _slots_per_sequence(config)
    if geometry.state is None or state_slots(config, geometry, kv_bytes) >= least:
        return None
    needed = least * geometry.state.slot_bytes
    return CapacityError(
        f"the state of one sequence{' and a snapshot of it' if least > 1 else ''}, beside keys and values, takes {format_bytes(needed)}, and half of the "
        f"{format_bytes(kv_bytes)} of KV memory is for states; give --kv-cache-memory at least "
        f"{format_bytes(int(needed / _SHARE))}",
        param="kv_cache_memory",
    )


def state_support_problem(config: EngineConfig, spec: ModelSpec, devices: tuple[str, ...]) -> UserError | None:
    """Why a model whose layers keep a state cannot be served by these settings, if so."""
    if not spec.layer_states:
        return None
    what = f"layers of {spec.architecture} models keep a state beside keys and values"
    if config.transfer.on:
        return UnsupportedError(
            f"--pd-role {config.transfer.pd_role}: {what}, which is not handed over between engines yet; serve the "
            "model without --pd-role",
            param="pd_role",
        )
    if config.compute.backend == "torch" or any(device != "cpu" for device in devices):
        return UnsupportedError(
            f"{what}, for which the torch backend has no memory; serve the model on CPU threads", param="backend"
        )
    return None
