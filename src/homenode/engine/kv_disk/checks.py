"""The things that keep an engine from keeping its KV on disk as its settings say."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.compute.ops import KvGeometry
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU
from homenode.engine.disk_config import DiskConfig
from homenode.errors import UnsupportedError, UserError


def disk_problems(config: EngineConfig, geometry: KvGeometry, devices: Sequence[str], inline: bool) -> list[UserError]:
    """Return all of them; none where no KV is to be kept. `devices`: of the workers; `inline`: the one worker computes
    in the engine's own process.
    """
    if not config.disk.on:
        return []
    from homenode.engine.kv_disk.store_connectors import connector_of  # who keeps nothing starts sooner without

    connector = connector_of(config)
    found = [] if connector is None else [*connector.problems(), _key_problem(config.disk)]
    found.append(_compute_problem(config, geometry, devices, inline))
    return [problem for problem in found if problem is not None]


def _key_problem(config: DiskConfig) -> UserError | None:
    if config.kv_disk_key is None:
        return None
    from homenode.engine.kv_disk.key_file import read_key  # an engine that encrypts nothing starts sooner without

    try:
        read_key(config.kv_disk_key)
    except UserError as error:
        return error
    return None


def _compute_problem(
    config: EngineConfig, geometry: KvGeometry, devices: Sequence[str], inline: bool
) -> UserError | None:
    why = ""
    if config.compute.backend != "native" or any(device != CPU for device in devices):
        elsewhere = next((device for device in devices if device != CPU), f"--backend {config.compute.backend}")
        why = f"{elsewhere} keeps KV where it is not copied from; compute on CPUs with the native core"
    elif config.parallel.executor == "ray":
        why = "workers of other hosts have KV memory that is not here; leave --executor ray out"
    elif not inline and geometry.state is not None:
        why = (
            "a state that layers keep besides is kept on disk by one worker only; leave --tensor-parallel-size and "
            "--pipeline-parallel-size out"
        )
    elif not inline and len(geometry.shapes) > 1 and not geometry.is_even:
        why = (
            "layers of unlike shapes whose KV cannot be one memory are kept on disk by one worker only; leave "
            "--tensor-parallel-size and --pipeline-parallel-size out, or --kv-cache-dtype int8"
        )
    setting = "kv_park_size" if config.disk.kv_disk is None else "kv_disk"
    return UnsupportedError(f"--{setting.replace('_', '-')}: {why}", param=setting) if why else None
