"""Counters that the scheduler keeps since its start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from homenode.engine.scheduler.steps.step_times import StepSizes, StepTimes


@dataclass(slots=True)
class SchedulerCounters:
    """Counters of `messages.EngineStats`, still counting."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    step_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    handed_tokens: int = 0
    recomputed_tokens: int = 0
    step_times: StepTimes = field(default_factory=StepTimes)
    step_sizes: StepSizes = field(default_factory=StepSizes)
    rejected: Counter[str] = field(default_factory=Counter)
