"""KV on disk of one engine: made with it, started when it is known where answers go, closed with it."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from homenode.engine.disk_config import DiskConfig
from homenode.engine.kv_disk.block_format import VERSION, BlockFormat
from homenode.engine.kv_disk.block_store import BlockStore, ModelNote, folder_name
from homenode.engine.kv_disk.disk_source import DiskSource
from homenode.engine.kv_disk.folder import StoreFolder
from homenode.engine.kv_disk.key_file import read_key
from homenode.engine.kv_disk.store_thread import MovedBlocks, StoreThread
from homenode.engine.kv_events.events import IN_COPIES, ON_DISK
from homenode.engine.messages import DiskStats
from homenode.errors import HostError
from homenode.host.discovery.file_systems import is_shared, kind_of
from homenode.units import format_bytes

_log = logging.getLogger(__name__)
_SHARE_OF_FREE, _MOST = 10, 32 << 30
_TOLD = ("architecture", "kv_dtype", "weights_kept_as")


class KvDiskSetup:
    """The parts of an engine that is made otherwise when its KV is kept on disk. `hash_seed`: for the identities of its
    blocks.
    """

    def __init__(
        self, config: DiskConfig, model: str, facts: Mapping[str, str], block_tokens: int, seed: bytes | None = None
    ) -> None:
        """`model`: as it is called in public. `facts`: all that a key or value depends on, by name. `seed`: that other
        engines want for those identities; None: they are this folder's own. UserError for a key file that is none.
        """
        self._config, self._model, self._tokens = config, model, block_tokens
        self._key = None if config.kv_disk_key is None else read_key(config.kv_disk_key)
        if not config.outlives and seed is None:
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
        """The folder, for this KV memory. `busy`: whether steps are computed. HostError when it cannot be used."""
        if self._config.kv_disk is None:
            return KvDiskLink(None, memory, self._tokens, busy, None, self._config)
        path = Path(str(self._config.kv_disk))
        try:
            folder = StoreFolder.make(path)
        except OSError as error:
            raise HostError(f"--kv-disk {path} cannot be used: {error.strerror}") from error
        if is_shared(kind := kind_of(path)):
            _log.warning(
                "--kv-disk %s is on %s, which other hosts may share: what they write there counts for nobody here, and "
                "reading may take longer than computing; a disk of this host is better",
                path, kind,
            )  # fmt: skip
        told = {name: self._facts[name] for name in _TOLD if name in self._facts}
        note = ModelNote(self._model, self._identity.hex(), self._key is not None, told, self._tokens)
        model = folder_name(self._identity)
        form = BlockFormat(self._identity, self._key)
        sizes = [size for size in (memory.nbytes, memory.state_nbytes) if size]
        store = BlockStore(folder, model, form, sizes, self._limit(folder), note)
        return KvDiskLink(store, memory, self._tokens, busy, folder, self._config)

    def _limit(self, folder: StoreFolder) -> int:
        """Bytes that may lie there."""
        free = folder.free_bytes()
        used = folder.read_usage()
        room = free + (0 if used is None else used.nbytes)
        wanted = self._config.kv_disk_size
        if wanted is None:
            return min(room // _SHARE_OF_FREE, _MOST)
        if wanted > room:
            _log.warning(
                "--kv-disk-size %s is more than the %s that %s has for it: the disk will be full before",
                format_bytes(wanted), format_bytes(room), folder.path,
            )  # fmt: skip
        return wanted


class KvDiskLink:
    """KV on disk of an engine that is ready: `source` for its scheduler, and the thread behind it."""

    def __init__(
        self,
        store: BlockStore | None,
        memory: MovedBlocks,
        tokens: int,
        busy: Callable[[], bool],
        folder: StoreFolder | None,
        config: DiskConfig,
    ) -> None:
        """`store` and `folder`: None where blocks are kept in memory alone."""
        self._folder = folder
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
        if self._thread.close(seconds) and self._folder is not None:  # else its descriptors are in use
            self._folder.close()


def _by_identity(names: Mapping[str, bool]) -> dict[bytes, bool]:
    """Names are identities of blocks, and those of states, which are like none."""
    return {bytes.fromhex(name): there for name, there in names.items()}
