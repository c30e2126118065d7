"""Whether the KV memory of an engine is taken when it is used, or whole at the start, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homenode.compute.ops import Backend, GrowingBackend
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU
from homenode.engine.kv.chunks import PageChange


def taken_whole_because(config: EngineConfig, devices: Sequence[str]) -> str | None:
    """Why all of it is taken at the start; None: it grows. `devices`: of the engine's workers."""
    if config.kv.kv_cache_prealloc:
        return "--kv-cache-prealloc asks for it"
    if config.transfer.on:
        return "other engines map it or register it with a network card (--pd-role)"
    if config.parallel.executor == "ray":
        return "the memory of other hosts is not looked at from here (--executor ray)"
    if config.compute.backend != "native" or CPU not in devices:
        return "only the native core reserves memory without taking it"
    return None


def growing_backend(config: EngineConfig, backend: Backend, devices: Sequence[str]) -> GrowingBackend | None:
    """The backend, if its KV memory is to be taken when it is used."""
    grows = taken_whole_because(config, devices) is None
    return backend if grows and isinstance(backend, GrowingBackend) else None


def page_changer(backend: GrowingBackend) -> Callable[[Sequence[PageChange]], None]:
    """What carries out changes of the pages of a backend's KV memory."""
    return lambda changes: backend.change_kv_pages([(c.first, c.past, bool(c.presence)) for c in changes])
