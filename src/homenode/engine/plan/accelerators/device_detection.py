"""Detection of the device that each worker of an engine has on this host: asks for what is there only where the
settings name more than the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.compute.devices import accelerators, attention_problem, device_memory, device_problems
from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator, is_torch, worker_devices


def devices_of(assignment: EngineAssignment) -> tuple[str, ...]:
    """The device of each worker. Raises as `worker_devices`, UserError for devices that are not there, and HostError
    when nobody can tell.
    """
    return devices_of_service(assignment)[assignment.number]


def devices_of_service(assignment: EngineAssignment) -> tuple[tuple[str, ...], ...]:
    """Return those of the workers of every engine that is started with this one. Raises as `devices_of`, for the
    devices of this engine.
    """
    config, replica = assignment.config, assignment.replica
    parallel, text = config.parallel, config.parallel.stage_devices
    there = accelerators() if text.strip() == "auto" and config.compute.backend == "native" else ()
    engine, engines = (replica.number, replica.count) if replica else (0, parallel.data_parallel_size)
    stages, ranks = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
    everybody = tuple(worker_devices(text, stages, ranks, there, number, engines) for number in range(engines))
    devices = everybody[engine]
    if text.strip() != "auto" and (problems := device_problems(devices)):
        raise problems[0]
    kept = config.kv.kv_cache_dtype
    for device in devices:
        problem = (
            attention_problem(config.compute.attention_backend, device, "bf16" if kept == "auto" else kept)
            if is_torch(device)
            else None
        )
        if problem is not None:
            raise problem
    return everybody


def memory_of_devices(devices: Sequence[str], config: EngineConfig) -> dict[str, int]:
    """Bytes that the worker of each accelerator among these may take, as far as torch tells; asked only where the
    layers of stages depend on it.
    """
    there = sorted({device for device in devices if is_accelerator(device)})
    parallel = config.parallel
    if not there or parallel.pipeline_parallel_size == 1 or parallel.layer_split != "auto":
        return {}
    share = config.compute.gpu_memory_utilization
    return {device: min(free, int(total * share)) for device, (free, total) in device_memory(there).items()}
