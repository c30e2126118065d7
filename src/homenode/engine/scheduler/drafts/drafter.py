"""Drafted tokens of a step: guesses of what follows the tokens of sequences, as far as it has room for them. Pure.

A guess costs a row, and brings a token where it is right; nobody is preempted and nothing cached is given up for the
sake of one. A row beside a prompt costs as much as a token of it, so guesses have a small share of what prompts could
have, in tokens and in seconds: a step is as long as without them, and the prompt is there nearly as soon. Sources of
guesses are behind `Drafter`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Final, Protocol

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler.steps.budget import StepPlan
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, MeasuredStep, StepLoad
from homenode.engine.scheduler.steps.time_bound import FIRST_PIECE

BESIDE_PROMPTS: Final = 1 / 16  # of what the decodes of a step leave to prompts, the share of guesses


class Drafter(Protocol):
    """Source of guesses."""

    @property
    @abstractmethod
    def max_drafted(self) -> int:
        """Return how many guesses there are of one sequence in one step, at most."""

    @property
    def asks_workers(self) -> bool:
        """Return whether there may be sequences for which workers are to guess."""
        return False

    def awaits(self, running: List[Sequence]) -> bool:
        """Tell whether the next step is to be planned when all tokens are known that steps in flight draw, so that it
        can hold guesses of what follows these.
        """

    def drafts(self, decoding: List[Sequence], load: StepLoad, room: int) -> Mapping[int, tuple[int, ...]]:
        """Guesses for a step in which these sequences decode, which asks so much of the workers without: of the tokens
        behind the last one of each, by the index of the sequence. `room`: that of the step, for guesses of all of them.
        """

    def expected(self, sequence: Sequence, sequences: int) -> int:
        """Return how many tokens a worker is to guess behind the one that this sequence draws, one of so many
        that decode. Of a prompt that goes on after the step: not 0 where it is to be ready for that.
        """
        return 0

    def prepare(self, sequence: Sequence, count: int) -> None:
        """Be told that a step computes so many tokens of this sequence's prompt."""
        return

    def learn(self, sequence: Sequence, drafted: tuple[int, ...], accepted: int) -> None:
        """Take in that the first `accepted` tokens of these guesses were right."""
        return

    def measured(self, step: MeasuredStep) -> None:
        """Take in what a step took."""
        return

    def ended(self, sequence: Sequence) -> None:
        """Be told that a request has ended."""
        return


class WorkerDrafts(Drafter):
    """Guesses that come with each `Advance`."""

    def __init__(self, max_drafted: int) -> None:
        """`max_drafted`: of one sequence."""
        self._max_drafted = max_drafted

    @property
    def max_drafted(self) -> int:
        """Return how many come of one sequence, at most."""
        return self._max_drafted

    def awaits(self, running: List[Sequence]) -> bool:
        """Always: every result has some."""
        return True

    def drafts(self, decoding: List[Sequence], load: StepLoad, room: int) -> Mapping[int, tuple[int, ...]]:
        """All that came."""
        found = {index: sequence.drafted for index, sequence in enumerate(decoding) if sequence.drafted}
        for index in found:
            decoding[index].drafted = ()
        return found


def drafts_room(
    plan: StepPlan, costs: StepCosts, max_drafted: int, *, beside_prompts: bool, whole: bool = False
) -> int:
    """Return how many guesses a step has room for that has its decodes and its bound of time. `max_drafted`: guesses
    that one sequence may have. `beside_prompts`: prompts may be in the step, `whole`: which are not cut.
    """
    room = min(plan.tokens_left, plan.rows_left)
    if not beside_prompts:
        return room
    if whole:
        return 0
    share = min(room, math.ceil(BESIDE_PROMPTS * room), max_drafted * len(plan.decoding))
    if not costs.known:
        return min(share, int(BESIDE_PROMPTS * FIRST_PIECE))
    if plan.bound is None:
        return share
    # Of a mixture the prompts read experts anyway: guesses are given what they read besides.
    prompts = plan.bound.fitting(plan.answers, NO_LOAD, 0, plan.tokens_left, scored=False)
    return costs.rows_fitting(plan.answers, prompts, share, BESIDE_PROMPTS * plan.bound.left(plan.answers, NO_LOAD))


def plan_expected(plan: StepPlan, drafter: Drafter) -> None:
    """Say for each sequence that decodes how many tokens its worker is to guess."""
    for index, sequence in enumerate(plan.decoding):
        sequence.expected = drafter.expected(sequence, len(plan.decoding))
        if sequence.expected:
            plan.expect(index, sequence.expected)


def plan_drafts(plan: StepPlan, drafter: Drafter, allocator: KvAllocator, room: int) -> None:
    """Add guesses to a step that has its decodes and room for so many. Where a step in flight draws the last token of
    each, nobody is asked: nobody knows what guesses are to follow.
    """
    known = (r.scheduled == len(s.tokens) for s, r in zip(plan.decoding, plan.allocations, strict=False))
    if not any(known):
        return
    for index, guessed in drafter.drafts(plan.decoding, plan.answers, room).items():
        sequence, allocation = plan.decoding[index], plan.allocations[index]
        if allocation.scheduled != len(sequence.tokens):
            continue  # a step in flight draws its last token
        count = min(len(guessed), room, sequence.last - len(sequence.tokens) - 1)
        if allocator.states is not None and count > 0:
            count = allocator.states.num_checkpoints(allocation.scheduled, count)
        if count > 0 and (count := allocator.extend(allocation, count)) > 0:
            plan.draft(index, guessed[:count], allocator.states)
            room -= count
