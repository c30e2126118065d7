"""KV memory as transfer sees it: see `homenode.compute.kv_memory`, where the native core can name the same structs."""

from homenode.compute.kv_memory import TILE_TOKENS, Copier, EpochWords, KvLayout, KvMemory, KvRegion

__all__ = ["TILE_TOKENS", "Copier", "EpochWords", "KvLayout", "KvMemory", "KvRegion"]
