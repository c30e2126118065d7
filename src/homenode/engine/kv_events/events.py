"""Events as they are sent: msgpack, with the fields and names that vLLM 0.33 has, so that its readers read them.

A batch is an array of a time, its events and the number of the engine; an event is a map with its kind under `type`.
Nothing is ever unpickled, and what readers send is a number of eight bytes.
"""

from __future__ import annotations

import msgspec

# Where a block is. The memory that steps compute with is called GPU by every reader, whatever it is of.
IN_KV_MEMORY, IN_COPIES, ON_DISK = "GPU", "CPU", "STORAGE"
_HASH_BYTES = 8


def public_hash(digest: bytes) -> int:
    """A digest as a number of 63 bits: readers take it as a signed or an unsigned one."""
    return int.from_bytes(digest[-_HASH_BYTES:], "big") >> 1


class BlockStored(msgspec.Struct, frozen=True, omit_defaults=True, tag="BlockStored"):
    """Blocks that follow one another can be found. `extra_keys`: what they are known by beside their tokens, one entry
    for each block; None where no block has any.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, omit_defaults=True, tag="BlockRemoved"):
    """Blocks cannot be found there any more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """No block can be found any more, in no group and nowhere."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
_encode = msgspec.msgpack.Encoder().encode


def encode_batch(at: float, events: list[msgspec.Raw], rank: int) -> bytes:
    """One message of events that `encode_event` made. `at`: seconds since the epoch."""
    return _encode([at, events, rank])


def encode_event(event: KvEvent) -> msgspec.Raw:
    """One event by itself: a large message is put together of small pieces, so that nobody waits long for it."""
    return msgspec.Raw(_encode(event))
