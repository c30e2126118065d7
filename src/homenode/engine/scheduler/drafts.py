"""Drafted tokens of a step: guesses of what follows the tokens of sequences, as far as it has room for them. Pure.

A guess costs a row, and brings a token where it is right; nobody is preempted, nothing cached is given up and no prompt
is kept from getting on for the sake of one. Sources of guesses are behind `Drafter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Protocol

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler.budget import StepPlan
from homenode.engine.scheduler.step_load import StepLoad


class Drafter(Protocol):
    """Source of guesses."""

    def awaits(self, running: List[Sequence]) -> bool:
        """Tell whether the next step is to be planned when all tokens are known that steps in flight draw, so that it
        can hold guesses of what follows these.
        """

    def drafts(self, decoding: List[Sequence], load: StepLoad, most: int) -> Mapping[int, tuple[int, ...]]:
        """Guesses for a step in which these sequences decode, which asks so much of the workers without: of the tokens
        behind the last one of each, by the index of the sequence. The step has room for `most` at all.
        """

    def learn(self, sequence: Sequence, drafted: tuple[int, ...], accepted: int) -> None:
        """Take in that the first `accepted` tokens of these guesses were right."""


class WorkerDrafts:
    """Guesses that come with each `Advance`."""

    def awaits(self, running: List[Sequence]) -> bool:
        """Always: every result has some."""
        return True

    def drafts(self, decoding: List[Sequence], load: StepLoad, most: int) -> Mapping[int, tuple[int, ...]]:
        """All that came."""
        return {index: sequence.drafted for index, sequence in enumerate(decoding) if sequence.drafted}

    def learn(self, sequence: Sequence, drafted: tuple[int, ...], accepted: int) -> None:
        """Nothing: whoever computes them knows."""


def plan_drafts(plan: StepPlan, drafter: Drafter, allocator: KvAllocator, most: int) -> None:
    """Add guesses, `most` at all, to a step that has its decodes."""
    for index, guessed in drafter.drafts(plan.decoding, plan.answers, most).items():
        sequence, allocation = plan.decoding[index], plan.allocations[index]
        if allocation.scheduled != len(sequence.tokens):
            continue  # a step in flight draws its last token: nobody knows what they are to follow
        count = min(len(guessed), most, sequence.last - len(sequence.tokens) - 1)
        if allocator.states is not None and count > 0:
            count = allocator.states.num_checkpoints(allocation.scheduled, count)
        if count > 0 and (count := allocator.extend(allocation, count)) > 0:
            plan.draft(index, guessed[:count], allocator.states)
            most -= count
