"""Deadlines after this process was stopped, or its machine was: what the others said meanwhile is heard before it is
said that they were silent."""

from __future__ import annotations

LATE_S = 0.25  # nobody who is awake, and has a CPU, comes so late to a deadline
GRACE_S = 0.5  # the others may have been stopped too, and go on no sooner than this process


class Grace:
    """Puts deadlines off, once for each time that they were missed by much. So each wait still ends in bounded time."""

    def __init__(self) -> None:
        self._until: float | None = None

    def not_before(self, due: float) -> float:
        """When to see to what is due then."""
        return due if self._until is None else max(due, self._until)

    def given(self, due: float | None, now: float) -> bool:
        """Whether what is due (None: nothing is) has to wait."""
        if due is None or now < due or (self._until is not None and now >= self._until):
            self._until = None  # what was missed has come after all, or has had its time
            return False
        if self._until is None and now - due > LATE_S:
            self._until = now + GRACE_S
        return self._until is not None
