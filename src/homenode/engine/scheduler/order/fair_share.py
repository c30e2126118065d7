"""The share that each API key had of the machine in the last minute, and whose requests go first because of that.

Cost is measured, in seconds of steps: a step's time goes to the keys in it by their tokens. Who had less goes first.
Keys whose costs differ by less than `EQUAL_S` are equals, and take turns (`queue.WaitingQueue`). The order
of steps changes no token of any request.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

from homenode.engine.scheduler.steps.pending_steps import PendingStep

EQUAL_S: Final = 0.25
AGED_S: Final = 20.0  # who waits longer has a fourth of what prompts have, whatever its key has had
RECENT_S: Final = 10.0  # behind its last request steps are still kept short for a key
QUANTUM: Final = 256  # prompt tokens of a turn among equals
_MINUTE_S = 60.0
_BUCKET_S = 1.0  # in which costs are added up


class _KeyCost:
    """Seconds of steps that one key had, by when."""

    __slots__ = ("_buckets", "_seconds", "last_used")

    def __init__(self, now: float) -> None:
        self._buckets: deque[list[float]] = deque()  # [when it began, seconds of steps]
        self._seconds = 0.0
        self.last_used = now

    def add(self, seconds: float, now: float) -> None:
        self.last_used = now
        if not self._buckets or self._buckets[-1][0] + _BUCKET_S <= now:
            self._buckets.append([now, 0.0])
        self._buckets[-1][1] += seconds
        self._seconds += seconds

    def seconds(self, now: float) -> float:
        while self._buckets and self._buckets[0][0] + _MINUTE_S <= now:
            self._seconds -= self._buckets.popleft()[1]
        if not self._buckets:
            self._seconds = 0.0  # sums of fractions need not come out even
        return self._seconds


class KeyShares:
    """The keys that asked for something in the last minute. `now`: the time of the last event; the scheduler sets
    it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[str, _KeyCost] = {}

    @property
    def several(self) -> bool:
        """Return whether there is more than one key to share the machine among."""
        return len(self._keys) > 1

    def arrived(self, key: str) -> None:
        """A request of `key` has come."""
        if (known := self._keys.get(key)) is not None:
            known.last_used = self.now
            return
        self._keys = {name: cost for name, cost in self._keys.items() if cost.last_used + _MINUTE_S > self.now}
        self._keys[key] = _KeyCost(self.now)

    def charge(self, step: PendingStep, seconds: float) -> None:
        """A step has come back that took so long."""
        if seconds <= 0:
            return
        if len(self._keys) == 1:  # all that is computed is its
            next(iter(self._keys.values())).add(seconds, self.now)
            return
        tokens = Counter(sequence.request.key for sequence in step.decoding)
        if step.drafts:
            for sequence, allocation in zip(step.decoding, step.allocations, strict=True):
                tokens[sequence.request.key] += len(step.drafts.get(allocation.seq, ()))
        for sequence, _, item in step.parts:
            tokens[sequence.request.key] += item.count
        a_token = seconds / step.num_tokens
        for key, count in tokens.items():
            self._keys.setdefault(key, _KeyCost(self.now)).add(count * a_token, self.now)

    def cost(self, key: str) -> float:
        """Seconds that `key` had in the last minute."""
        known = self._keys.get(key)
        return 0.0 if known is None else known.seconds(self.now)

    def ahead(self, key: str, other: str) -> bool:
        """Return whether `key` has had less than `other`, and so goes first."""
        return key != other and self.cost(key) + EQUAL_S < self.cost(other)

    def yields(self, key: str, within_s: float = _MINUTE_S) -> bool:
        """Return whether some key that asked for something within the last `within_s` is ahead of `key`."""
        if not self.several:
            return False
        recent = (cost for cost in self._keys.values() if cost.last_used + within_s > self.now)
        least = min((cost.seconds(self.now) for cost in recent), default=math.inf)
        return least + EQUAL_S < self.cost(key)
