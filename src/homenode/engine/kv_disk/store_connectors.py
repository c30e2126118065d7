"""The kinds of stores that --kv-disk may name. Whatever depends on the kind is asked of its connector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from homenode.engine.config import EngineConfig
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.engine.kv_disk.block_store import BlockStore, StoredModel


class StoreConnector(Protocol):
    """The way to a store, as settings say it. Making one reads these alone, and never fails: what is wrong with them is
    one of `problems`.
    """

    @property
    def host(self) -> str:
        """The host that blocks are sent to; empty: they stay on this one."""

    @property
    def encrypts(self) -> bool:
        """Return whether what is sent there is encrypted, and the host known by more than its address."""

    @property
    def looks_at(self) -> Collection[str]:
        """The settings of `DiskConfig` beside --kv-disk that have an effect there."""

    def problems(self) -> Sequence[UserError]:
        """Return what keeps blocks from being kept there, as far as it can be told without changing anything."""

    def open(self, model: StoredModel) -> BlockStore:
        """Open the store for the blocks of a model. HostError where that cannot be."""


def _folder(config: EngineConfig) -> StoreConnector:
    from homenode.engine.kv_disk.folder_connector import FolderConnector

    return FolderConnector(config.disk)


FOLDER = ""
# By what stands before `://`; a folder has none. Each imports its own modules: an engine needs no others.
STORE_CONNECTORS: dict[str, Callable[[EngineConfig], StoreConnector]] = {FOLDER: _folder}


def connector_of(config: EngineConfig) -> StoreConnector | None:
    """Return that of what --kv-disk names; None: it names nothing. What begins like no other kind is a folder."""
    if config.disk.kv_disk is None:
        return None
    scheme, mark, _ = config.disk.kv_disk.partition("://")
    return STORE_CONNECTORS.get(scheme if mark else FOLDER, STORE_CONNECTORS[FOLDER])(config)
