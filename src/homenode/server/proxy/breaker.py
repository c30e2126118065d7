"""The rule when a server whose requests fail is left alone, and when it is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_PAUSE_S = 30.0


@dataclass
class CircuitBreaker:
    """Opens after `failures` in a row, for `pause_s` at first. After the pause one request probes; twice as long a
    pause follows when it fails.
    """

    failures: int
    pause_s: float
    _in_row: int = 0
    _pauses: int = 0
    _until: float | None = None
    _probing: bool = False

    def open(self, now: float) -> bool:
        """Return whether no request is to be sent to the server now."""
        return self._until is not None and (now < self._until or self._probing)

    def sent(self, now: float) -> None:
        """A request goes there: the probe, if the pause is over."""
        if self._until is not None and now >= self._until:
            self._probing = True

    def succeeded(self) -> None:
        """A request was answered."""
        self._in_row, self._pauses, self._until, self._probing = 0, 0, None, False

    def spared(self) -> None:
        """A request ended without telling anything about the server."""
        self._probing = False

    def failed(self, now: float) -> None:
        """A request failed there."""
        self._in_row += 1
        probe, self._probing = self._probing, False
        if probe or (self._until is None and self._in_row >= self.failures):
            self._until = now + min(LONGEST_PAUSE_S, self.pause_s * 2 ** min(self._pauses, 16))
            self._pauses += 1
