"""The keys that are in force: from what a request brings to its caller."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator, Sequence

from homenode.server.doors.watched_files import WatchedFiles
from homenode.server.keys.caller import KeyHolder
from homenode.server.keys.counts import KeyCounts
from homenode.server.keys.key_file import KeyRows, read_key_file, readable_by_others
from homenode.server.keys.named_key import NamedKey, digest_of, unnamed_keys

_LOG = logging.getLogger("homenode.server")

Keys = tuple[NamedKey, ...]


class KeySource:
    """The keys of the settings and of their file. `keys`: as they were read last."""

    def __init__(self, secrets: Sequence[str], path: str | None) -> None:
        """`secrets`: of --api-key; `path`: of --api-key-file. Raises UserError for a file that cannot be used."""
        self._unnamed = unnamed_keys(secrets)
        self._file: WatchedFiles[Keys] | None = None
        if path is not None:
            rows = KeyRows()
            self._file = WatchedFiles((path,), lambda: read_key_file(path, rows, self._unnamed))
            if readable_by_others(path):
                _LOG.warning("--api-key-file %s can be read by other users of this machine; chmod 600 it", path)

    @property
    def keys(self) -> Keys:
        """All of them."""
        return self._unnamed + (self._file.value if self._file is not None else ())

    @property
    def counts(self) -> bool:
        """Return whether what keys use is counted: they have names."""
        return self._file is not None

    async def watch(self, changed: Callable[[Keys], object]) -> None:
        """`changed` hears of all keys whenever the file has changed; returns at once where there is none."""
        if self._file is not None:
            await self._file.watch(lambda keys: changed(self._unnamed + keys))


class Keyring:
    """The keys of one front. `counts`: what all fronts count; None: nothing is counted."""

    def __init__(self, keys: Keys = (), counts: KeyCounts | None = None) -> None:
        self._counts = counts
        self._keys: list[tuple[bytes, KeyHolder]] = []
        self._names: dict[str, int] = {}  # rows
        self.replace(keys)

    def replace(self, keys: Keys) -> None:
        """Replace the keys: from now on requests need one of these. Requests under way go on, and what a name has used
        stays.
        """
        self._keys = [(key.digest, KeyHolder(key, self._counts)) for key in keys]
        self._names = {key.name: key.row for key in keys if key.name}

    @property
    def asked(self) -> bool:
        """Return whether requests need a key."""
        return bool(self._keys)

    def caller_of(self, given: Sequence[str]) -> KeyHolder | None:
        """Return whose key is among those that a request brings; None: nobody's. Every key is compared, in constant
        time, so that the time tells nothing.
        """
        found = None
        for digest in map(digest_of, given):
            matches = [caller for known, caller in self._keys if hmac.compare_digest(digest, known)]
            found = matches[0] if matches and found is None else found
        return found

    def named(self, name: str) -> KeyHolder | None:
        """The key of this name; None where there is none any more. The empty name is that of keys without one."""
        if not self._keys:
            return None if name else KeyHolder()
        return next((holder for _, holder in self._keys if holder.name == name), None)

    def figures(self) -> Iterator[tuple[str, KeyCounts, int]]:
        """The name of each key that is counted, and where it is."""
        if self._counts is not None:
            yield from ((name, self._counts, row) for name, row in self._names.items())
