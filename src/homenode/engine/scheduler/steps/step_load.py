"""The load that a step puts on whoever computes it, in numbers that its seconds follow from. Pure."""

from __future__ import annotations

from operator import add
from typing import NamedTuple

import msgspec

from homenode.engine.step import Step


class StepLoad(msgspec.Struct, frozen=True, gc=False):
    """The load of a step on any worker: tokens; rows of logits; sequences' positions to be read; positions looked at,
    over all tokens; and sequences. `scanned`: positions whose keys indexers read; `scored`: those that they score,
    over all tokens. `unread`, `unattended`: what layers that attend to all have besides `read` and `attended`.
    """

    tokens: int
    rows: int
    read: int
    attended: int
    sequences: int = 1
    scanned: int = 0
    scored: int = 0
    unread: int = 0
    unattended: int = 0

    @classmethod
    def of_sequence(cls, start: int, count: int, rows: int, chosen: int | None = None) -> StepLoad:
        """Return the load of positions start .. start + count - 1 of one sequence. `chosen`: how many tokens each looks
        at where an indexer chooses them; None: all up to its own.
        """
        end, attended = start + count, _sum_of(start + 1, start + count)
        if chosen is None or end <= chosen:
            return cls(count, rows, end, attended)
        first = max(start, chosen)  # whose context is longer than that
        scored = _sum_of(first + 1, end)
        unattended, read = scored - (end - first) * chosen, min(end, count * chosen)
        return cls(count, rows, read, attended - unattended, 1, end, scored, end - read, unattended)

    @classmethod
    def of_drafts(cls, start: int, count: int) -> StepLoad:
        """Return the load of positions start .. start + count - 1, which a sequence of the step computes besides those
        before them.
        """
        return cls(count, count, count, _sum_of(start + 1, start + count), 0)

    @classmethod
    def of(cls, step: Step, chosen: int | None = None) -> StepLoad:
        """Return the load of a real step of the scheduler. `chosen`: as for `of_sequence`."""
        loads = [cls.of_sequence(item.start, item.count, item.draws, chosen) for item in step.items]
        return cls(*(sum(getattr(load, each) for load in loads) for each in cls.__struct_fields__))

    def plus(self, other: StepLoad) -> StepLoad:
        """Both in one step."""
        return StepLoad(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


NO_LOAD = StepLoad(0, 0, 0, 0, 0)


class MeasuredStep(NamedTuple):
    """A step that has come back: its load, and its seconds.

    `seconds`: without those of drafting, which are `draft_seconds` for up to `depth` tokens of a sequence. `came`: when
    its result did. `awaited`: it was planned when the one before it was there.
    """

    answers: StepLoad
    prompts: StepLoad
    seconds: float
    came: float = 0.0
    awaited: bool = False
    draft_seconds: float = 0.0
    depth: int = 0


def _sum_of(first: int, last: int) -> int:
    """first + (first + 1) + ... + last."""
    return (last - first + 1) * (first + last) // 2
