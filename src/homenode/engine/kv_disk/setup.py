"""KV on disk of one engine: made with it, started when it is known where answers go, closed with it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping

from homenode.engine.config import EngineConfig
from homenode.engine.disk_config import DiskConfig
from homenode.engine.kv_disk.block_format import VERSION, BlockFormat
from homenode.engine.kv_disk.block_store import BlockStore, ModelNote, StoredModel
from homenode.engine.kv_disk.disk_source import DiskSource
from homenode.engine.kv_disk.key_file import read_key
from homenode.engine.kv_disk.store_connectors import connector_of
from homenode.engine.kv_disk.store_thread import MovedBlocks, StoreThread
from homenode.engine.kv_events.events import IN_COPIES, ON_DISK
from homenode.engine.messages import DiskStats

_TOLD = ("architecture", "kv_dtype", "weights_kept_as")


class KvDiskSetup:
    """The parts of an engine that is made otherwise when its KV is kept on disk. `hash_seed`: for the identities of its
    blocks.
    """

    def __init__(
        self, config: EngineConfig, facts: Mapping[str, str], block_tokens: int, seed: bytes | None = None
    ) -> None:
        """`facts`: all that a key or value depends on, by name. `seed`: that other engines want for those identities;
        None: they are this store's own. UserError for a key file that is none.
        """
        self._config, self._tokens = config, block_tokens
        self._key = None if config.disk.kv_disk_key is None else read_key(config.disk.kv_disk_key)
        if not config.disk.outlives and seed is None:
            seed = secrets.token_bytes(32)
        self._facts = {**facts, "layout": str(VERSION), "block_tokens": str(block_tokens)}
        if seed is not None:
            self._facts["seed"] = hashlib.blake2b(seed, person=b"kv-disk-seed", digest_size=16).hexdigest()
        text = "\n".join(f"{name}={value}" for name, value in sorted(self._facts.items()))
        key = hashlib.blake2b(self._key or b"", person=b"kv-disk-key", digest_size=32).digest()
        self._identity = hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), key=key, person=b"kv-disk-model", digest_size=32
        ).digest()
        own = hashlib.blake2b(self._identity, key=key, person=b"kv-disk-chain", digest_size=32).digest()
        self.hash_seed = own if seed is None else seed

    def open(self, memory: MovedBlocks, busy: Callable[[], bool]) -> KvDiskLink:
        """The store, for this KV memory. `busy`: whether steps are computed. HostError when it cannot be used."""
        connector = connector_of(self._config)
        store = None if connector is None else connector.open(self._stored_model(memory))
        return KvDiskLink(store, memory, self._tokens, busy, self._config.disk)

    def _stored_model(self, memory: MovedBlocks) -> StoredModel:
        told = {name: self._facts[name] for name in _TOLD if name in self._facts}
        encrypted, identity = self._key is not None, self._identity
        note = ModelNote(self._config.model_name, identity.hex(), encrypted, told, self._tokens)
        sizes = [size for size in (memory.nbytes, memory.state_nbytes) if size]
        return StoredModel(identity, BlockFormat(identity, self._key), sizes, note)


class KvDiskLink:
    """KV on disk of an engine that is ready: `source` for its scheduler, and the thread behind it."""

    def __init__(
        self,
        store: BlockStore | None,
        memory: MovedBlocks,
        tokens: int,
        busy: Callable[[], bool],
        config: DiskConfig,
    ) -> None:
        """`store`: None where blocks are kept in memory alone."""
        self._store = store
        self._thread = StoreThread(store, memory, block_tokens=tokens, busy=busy, park_bytes=config.kv_park_size)
        self.source = DiskSource(self._thread, tokens, config.kv_session_ttl)
        if store is not None:
            store.start()

    def start(self, tell: Callable[[object], None]) -> None:
        """Begin to move blocks; `tell` takes what is left for the engine's loop."""
        self._thread.start(tell)

    def release_session(self, session: str) -> None:
        """Let the blocks of a session be given up like all others. For the thread of the engine's loop."""
        self.source.release_session(session)

    def begin_journal(self) -> Callable[[], Mapping[str, Mapping[bytes, bool]]]:
        """Note from now on what comes and goes. To be called before `start`. Returns what takes the changes, from any
        thread: by medium, of each block whether it is there now; the first time those that are there.
        """
        copies, stored = self._thread.begin_journals()
        return lambda: {IN_COPIES: _by_identity(copies.take()), ON_DISK: _by_identity(stored.take())}

    def figures(self) -> DiskStats:
        """Counters since the start, and gauges of now."""
        return self._thread.figures()

    def close(self, seconds: float) -> None:
        """Write what is left, as far as it goes in so many seconds, and give everything back."""
        if self._thread.close(seconds) and self._store is not None:  # else it is in use
            self._store.close()


def _by_identity(names: Mapping[str, bool]) -> dict[bytes, bool]:
    """Names are identities of blocks, and those of states, which are like none."""
    return {bytes.fromhex(name): there for name, there in names.items()}
