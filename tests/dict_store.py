"""A store of KV blocks that is no folder: a dict, which stands for a server of another host that several engines use.

It is a kind like any other: `memory://HOST/NAME`, and `memory+tls://HOST/NAME` where the connection would be encrypted.
 Without HOST blocks stay on this one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from homenode.engine.config import EngineConfig
from homenode.engine.kv_disk.block_format import HEADER_BYTES, DamagedBlockError
from homenode.engine.kv_disk.block_index import ModelBlocks, StoredBlock
from homenode.engine.kv_disk.block_store import Parts, StoredModel
from homenode.engine.kv_disk.store_connectors import STORE_CONNECTORS
from homenode.errors import UserError

Key = tuple[bytes, str]  # identity of the model, name of the block


@dataclass
class DictServer:
    """Blocks of all models. `most`: bytes of all; those that were used first give way. `lost`: nobody reaches it."""

    most: int = 1 << 30
    lost: bool = False
    blocks: dict[Key, bytes] = field(default_factory=dict)
    notes: dict[bytes, str] = field(default_factory=dict)  # what models are called
    pinned: dict[str, float] = field(default_factory=dict)  # seconds
    closed: int = 0  # stores
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total(self) -> int:
        return sum(map(len, self.blocks.values()))

    def use(self, key: Key, data: bytes | None = None) -> bytes | None:
        """What lies there, which is now the block that was used last; `data` is left there first, if given."""
        with self.lock:
            found = self.blocks.pop(key, None) if data is None else data
            if found is not None:
                self.blocks[key] = found
            while self.total > self.most:
                del self.blocks[next(iter(self.blocks))]
            return found


class DictStore:
    """See `block_store.BlockStore`."""

    def __init__(self, server: DictServer, model: StoredModel) -> None:
        self._server, self._model = server, model
        self.names = ModelBlocks()
        self.total = self.rejected = 0

    def start(self) -> None:
        self._server.notes[self._model.identity] = self._model.note.model
        self.refresh()

    def refresh(self) -> None:
        with self._server.lock:
            there = {} if self._server.lost else dict(self._server.blocks)
            self.total = self._server.total
        own = {name: data for (identity, name), data in there.items() if identity == self._model.identity}
        self.names.take_over({name: StoredBlock(len(data), 0.0) for name, data in own.items()})

    def set_rate(self, rate: float) -> None:
        self.names.rate = rate

    def read_ahead(self, name: str) -> None:
        pass

    def get(self, name: str, parts: Parts) -> bool:
        key = self._model.identity, name
        data = None if self._server.lost else self._server.use(key)
        if data is None:
            self.names.drop(name)
            return False
        header, body = data[:HEADER_BYTES], data[HEADER_BYTES:]
        try:
            self._model.form.check_header(header, bytes.fromhex(name), sum(part.nbytes for part in parts))
            self._model.form.fill(parts, header, body)
        except DamagedBlockError:
            self.rejected += 1
            self.names.drop(name)
            del self._server.blocks[key]
            return False
        return True

    def put(self, name: str, content: bytes | bytearray | memoryview) -> bool:
        if self._server.lost or name in self.names:
            return False
        assert len(content) in self._model.sizes
        header, body = self._model.form.encode(bytes.fromhex(name), content)
        self._server.use((self._model.identity, name), header + bytes(body))
        self.names.add(name, HEADER_BYTES + len(content), 0.0)
        self.total = self._server.total
        return True

    def touch(self, names: Sequence[str], pinned_s: float | None = None) -> None:
        for name in reversed(names):  # the first one is given up last
            self._server.use((self._model.identity, name))
            if pinned_s is not None:
                self._server.pinned[name] = pinned_s

    def close(self) -> None:
        self._server.closed += 1


class DictConnector:
    """See `store_connectors.StoreConnector`."""

    looks_at = ("kv_disk_key", "kv_session_ttl")

    def __init__(self, config: EngineConfig, servers: dict[str, DictServer]) -> None:
        self._text, self._servers = str(config.disk.kv_disk), servers
        scheme, _, rest = self._text.partition("://")
        self.host, _, self._name = rest.partition("/")
        self.encrypts = scheme == "memory+tls"

    def problems(self) -> list[UserError]:
        if self._name:
            return []
        return [UserError(f"--kv-disk {self._text}: wanted is memory://HOST/NAME", param="kv_disk")]

    def open(self, model: StoredModel) -> DictStore:
        return DictStore(self._servers.setdefault(self._name, DictServer()), model)


def add_kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, DictServer]:
    """Have --kv-disk know such stores while a test runs. The servers that there are, by NAME."""
    made: dict[str, DictServer] = {}
    for scheme in ("memory", "memory+tls"):
        monkeypatch.setitem(STORE_CONNECTORS, scheme, lambda config: DictConnector(config, made))
    return made
