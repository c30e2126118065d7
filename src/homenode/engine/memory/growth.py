"""The decision whether the KV memory of an engine is taken when it is used, or whole at the start, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU


def taken_whole_because(config: EngineConfig, devices: Sequence[str]) -> str | None:
    """Return why all of it is taken at the start; None: it grows. `devices`: of the engine's workers."""
    if config.kv.kv_cache_prealloc:
        return "--kv-cache-prealloc asks for it"
    if config.transfer.on:
        return "other engines map it or register it with a network card (--pd-role)"
    if config.disk.on:
        return "blocks come from disk into it beside the steps (--kv-disk, --kv-park-size)"
    if config.parallel.executor == "ray":
        return "the memory of other hosts is not looked at from here (--executor ray)"
    if config.compute.backend != "native" or CPU not in devices:
        return "only the native core reserves memory without taking it"
    return None
