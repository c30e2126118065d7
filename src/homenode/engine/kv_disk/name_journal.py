"""Names of blocks that came to a place and went from it, for who tells others of them."""

from __future__ import annotations

import threading


class NameJournal:
    """The changes since they were last taken: at most one for each name, so that it stays bounded also where nobody
    takes them. From any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed: dict[str, bool] = {}

    def note(self, name: str, there: bool) -> None:
        """Note that a name came, or went. What came and went again was never there, and the other way round."""
        with self._lock:
            if self._changed.pop(name, there) is there:
                self._changed[name] = there

    def take(self) -> dict[str, bool]:
        """Return what has changed since the last call: of each name whether it is there now."""
        if not self._changed:
            return {}
        with self._lock:
            changed, self._changed = self._changed, {}
        return changed
