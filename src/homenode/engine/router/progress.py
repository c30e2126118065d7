"""Progress of several engines that load at once, as one."""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """Adds up how far the engines have loaded, and tells `report` (bytes done, bytes in all)."""

    def __init__(self, count: int, report: Callable[[int, int], None] | None) -> None:
        self._done, self._total, self._report = [0] * count, [0] * count, report

    def of(self, number: int) -> Callable[[int, int], None]:
        """Told by one engine: (bytes done, bytes in all)."""

        def take(done: int, total: int) -> None:
            self._done[number], self._total[number] = done, total
            if self._report is not None:
                # All read the same files, or parts of them.
                self._report(sum(self._done), sum(each or max(self._total) for each in self._total))

        return take
