"""Which device each worker of an engine has on this host: reads what is there only where the settings ask for more than the CPU."""

from __future__ import annotations

import importlib.util

from homenode.engine.config import EngineConfig
from homenode.engine.workers.devices import DeviceFacts, worker_devices
from homenode.host.topology.read import read_host
from homenode.host.topology.source import LiveSource


def devices_of(config: EngineConfig) -> tuple[str, ...]:
    """The device of each worker. Raises as `worker_devices`."""
    parallel, text = config.parallel, config.parallel.stage_devices
    named = {word.strip() for word in text.split(",")}
    facts = DeviceFacts() if named == {"cpu"} else _facts()
    engine, engines = (config.replica.number, config.replica.count) if config.replica else (0, parallel.data_parallel_size)
    return worker_devices(text, parallel.pipeline_parallel_size, parallel.tensor_parallel_size, facts, engine, engines)


def _facts() -> DeviceFacts:
    if importlib.util.find_spec("torch") is None:
        return DeviceFacts()
    found = read_host(LiveSource()).accelerators
    kinds = {"rocm": "cuda"}  # as PyTorch calls them
    return DeviceFacts(tuple(f"{kinds.get(chip.kind, chip.kind)}:{chip.id}" for chip in found.chips), torch=True)
