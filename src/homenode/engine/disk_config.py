"""Settings of KV that is kept on disk, or in another store."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.options import option
from homenode.units import parse_bytes, parse_seconds


@dataclass(frozen=True)
class DiskConfig:
    """Where KV blocks are kept: in a folder, or in a store of another kind (`STORE_CONNECTORS`). Without `kv_disk` they
    are kept nowhere.
    """

    kv_disk: str | None = option(
        None,
        "Folder in which KV blocks of finished prompts and answers are kept, over restarts and for all engines of this "
        "host. Its parent has to be there.",
        metavar="DIR",
    )
    kv_disk_size: int | None = option(
        None,
        "Most bytes that lie in --kv-disk, such as 8GiB, whoever left them. Default: a tenth of what is free there, at "
        "most 32GiB.",
        parse=parse_bytes,
        minimum=1,
    )
    kv_disk_key: str | None = option(
        None,
        "File with 64 hexadecimal digits by which blocks in --kv-disk are encrypted (AES-256-GCM).",
        metavar="FILE",
    )

    kv_park_size: int = option(
        0,
        "Bytes of memory in which blocks of finished prompts and answers stay when KV memory needs their place, such "
        "as 2GiB, before --kv-disk or without it. 0: none.",
        parse=parse_bytes,
        minimum=0,
    )

    kv_session_ttl: float = option(
        3600.0,
        "Time after its last request for which the blocks of a named session (`session`) stay in --kv-disk while "
        "others are given up, such as 8h.",
        parse=parse_seconds,
        minimum=0,
    )

    @property
    def outlives(self) -> bool:
        """Return whether what is kept is there after the process, and for others: then the blocks of a model say what
        is in its files, so that none outlives a model that was changed.
        """
        return self.kv_disk is not None

    @property
    def on(self) -> bool:
        """Return whether KV is kept anywhere besides KV memory: on disk, or in other memory."""
        return self.outlives or self.kv_park_size > 0
