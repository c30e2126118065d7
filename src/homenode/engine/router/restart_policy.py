"""The policy for how long an engine may be silent, and how often and when it is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """`look_every_s`: between two looks at an engine. `silent_after_s`: without an answer from its loop for so long it
    gets no new requests, and `lost_after_s` after that it is ended and started again.

    `tries`: starts in a row that may fail, and `first_tries` before the first that did not, of engines that others wait
    for. `first_delay_s` is waited before the first, twice as long before each further one, at most `longest_delay_s`.
    An engine that worked for `steady_s` has all its tries again. `losses`: engines that may be lost under one request:
    a third try would let a request that kills engines take them all.
    """

    look_every_s: float = 0.5
    silent_after_s: float = 2.0
    lost_after_s: float = 30.0
    tries: int = 6
    first_tries: int = 2
    first_delay_s: float = 0.2
    longest_delay_s: float = 30.0
    steady_s: float = 60.0
    losses: int = 2

    def delay(self, failures: int) -> float | None:
        """Seconds to wait before the next start after so many failures in a row, the loss itself counted; None: no more
        tries.
        """
        if failures > self.tries:
            return None
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** (failures - 1))
