"""KV memories of the native core with random bytes in them."""

from __future__ import annotations

from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeKvMemory
from homenode.compute.ops import KvGeometry
from tests.native.kv_bytes import fill

GEOMETRY = KvGeometry.uniform(2, 3, 16, 64, "bf16")


def shared_cache(backend: NativeBackend, geometry: KvGeometry, blocks: int, seed: int = 1) -> NativeKvMemory:
    memory = backend.kv_memory(backend.kv_cache(geometry, blocks, shared=True))
    fill(memory, seed)
    return memory


def pool(backend: NativeBackend, geometry: KvGeometry, blocks: int, seed: int = 2) -> NativeKvMemory:
    memory = backend.kv_pool(geometry, blocks)
    fill(memory, seed)
    return memory
