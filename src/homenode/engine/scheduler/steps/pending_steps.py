"""The steps that were sent and not answered, oldest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.scheduler.steps.step_load import StepLoad
from homenode.engine.step import Step, StepItem


class PendingStep(msgspec.Struct, frozen=True):
    """A step the worker has not answered yet: first the decodes, then parts of prompts. `prefill`: tokens of those.
    `answers` and `prompts`: what both ask of the workers; `seconds`: what it is expected to take. `drafts`: drafted
    tokens of decodes that have some, by handle. `awaited`: it was planned when no other was in flight.
    """

    step: Step
    decoding: list[Sequence]
    allocations: list[BlockAllocation]  # of those
    parts: list[tuple[Sequence, BlockAllocation, StepItem]]
    prefill: int
    answers: StepLoad
    prompts: StepLoad
    seconds: float
    drafts: Mapping[int, tuple[int, ...]]
    awaited: bool = False

    @property
    def draws(self) -> bool:
        """Return whether it brings back tokens."""
        return bool(self.decoding) or any(item.draws for _, _, item in self.parts)

    @property
    def depth(self) -> int:
        """Tokens that workers draft for a sequence, at most."""
        return max((item.expected for item in self.step.items if item.draws), default=0)

    @property
    def num_tokens(self) -> int:
        """Positions it computes."""
        return self.answers.tokens + self.prefill

    def drawing(self) -> list[int]:
        """The handles of those it draws a token for, in order."""
        handles = [allocation.seq for allocation in self.allocations]
        return handles + [item.seq for _, _, item in self.parts if item.draws] if self.parts else handles

    def last_page_tickets(self) -> tuple[str, ...]:
        """Tickets of which it computes the last pages."""
        kv_exports = [(sequence.kv_export, item) for sequence, _, item in self.parts if sequence.kv_export is not None]
        return tuple(
            kv_export.key
            for kv_export, item in kv_exports
            if not kv_export.closed and item.start + item.count >= kv_export.tokens
        )

    def members(self) -> Iterator[tuple[Sequence, BlockAllocation]]:
        """All it computes, in order."""
        yield from zip(self.decoding, self.allocations, strict=True)
        yield from ((sequence, allocation) for sequence, allocation, _ in self.parts)


class PendingSteps:
    """A queue of them."""

    def __init__(self) -> None:
        self._pending_steps: deque[PendingStep] = deque()

    def __len__(self) -> int:
        return len(self._pending_steps)

    @property
    def oldest(self) -> int:
        """The number of the step whose result comes next; -1: none is in flight."""
        return self._pending_steps[0].step.number if self._pending_steps else -1

    @property
    def newest(self) -> PendingStep:
        """The one that was sent last; there is one."""
        return self._pending_steps[-1]

    def next_last_page_tickets(self) -> tuple[str, ...]:
        """Tickets of which the next result brings the last pages."""
        return self._pending_steps[0].last_page_tickets() if self._pending_steps else ()

    @property
    def draw(self) -> bool:
        """Return whether any of them brings back a token."""
        return any(pending_step.draws for pending_step in self._pending_steps)

    @property
    def drafted(self) -> bool:
        """Some of them hold drafted tokens."""
        return any(pending_step.drafts for pending_step in self._pending_steps)

    @property
    def prefill(self) -> int:
        """Prompt tokens of all."""
        return sum(pending_step.prefill for pending_step in self._pending_steps)

    @property
    def seconds(self) -> float:
        """Return what all of them are expected to take."""
        return sum(pending_step.seconds for pending_step in self._pending_steps)

    def add(self, pending_step: PendingStep) -> None:
        """The newest."""
        self._pending_steps.append(pending_step)

    def take(self) -> PendingStep:
        """The oldest, which is in flight no more."""
        return self._pending_steps.popleft()

    def take_all(self) -> list[PendingStep]:
        """All of them, oldest first."""
        pending = list(self._pending_steps)
        self._pending_steps.clear()
        return pending
