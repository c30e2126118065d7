"""The choice of the model that is fetched: one that the memory here has room for, and of several the largest. Decided
from sizes and figures, before any weight is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.compute.ops import KvGeometry
from homenode.engine.config import EngineConfig
from homenode.engine.memory.sizing import problems
from homenode.errors import CapacityError
from homenode.model.hub.candidate import Candidate
from homenode.model.part import ModelPart
from homenode.model.weights.load import layers_kv
from homenode.units import format_bytes, format_count


@dataclass(frozen=True)
class Rated:
    """A model that could be fetched, and why it does not fit; empty where it does."""

    candidate: Candidate
    problem: str = ""


def rate(candidates: Sequence[Candidate], config: EngineConfig, available: int) -> list[Rated]:
    """Return of each whether the disk has room for it and `available` bytes of memory for its weights, a step's buffers
    and KV for one full context.
    """
    return [Rated(c, c.problem or memory_problem(c, config, available)) for c in candidates]


def memory_problem(candidate: Candidate, config: EngineConfig, available: int) -> str:
    """Return why `available` bytes of memory are too few for an engine with this model, if so."""
    if candidate.size > available:
        return (
            f"not enough memory: its weights take {format_bytes(candidate.size)}, and {format_bytes(available)} are "
            "available; "
            "take a smaller model or quantisation, or keep the weights smaller (--quantize)"
        )
    if candidate.spec is None:
        return ""
    kv = "bf16" if config.kv.kv_cache_dtype == "auto" else config.kv.kv_cache_dtype
    spec = candidate.spec
    geometry = KvGeometry(layers_kv(spec, ModelPart.whole(spec)), config.kv.block_size, kv)
    found = problems(config, spec, geometry, available - candidate.size)
    short = next((problem.message for problem in found if isinstance(problem, CapacityError)), "")
    return f"not enough memory beside its weights of {format_bytes(candidate.size)}: {short}" if short else ""


def take_largest(rated: Sequence[Rated]) -> Candidate:
    """The largest model that fits. CapacityError, which names the smallest and what it lacks, where none does."""
    if fitting := [one.candidate for one in rated if not one.problem]:
        return max(fitting, key=lambda candidate: candidate.size)
    smallest = min(rated, key=lambda one: one.candidate.size)
    of = f" (smallest of {format_count(len(rated), 'GGUF file')}: {smallest.candidate.file})" if len(rated) > 1 else ""
    raise CapacityError(f"model {smallest.candidate.repository}{of}: {smallest.problem}", param="model")


def describe_choice(rated: Sequence[Rated], taken: Candidate) -> str:
    """Describe for people: what was taken of several, why, and what there was beside it."""
    others = (
        f"{one.candidate.file} ({format_bytes(one.candidate.size)}, "
        f"{f'does not fit: {one.problem}' if one.problem else 'smaller'})"
        for one in sorted(rated, key=lambda one: one.candidate.size)
        if one.candidate is not taken
    )
    return (
        f"{taken.repository} holds GGUF files only: {taken.file} ({format_bytes(taken.size)}) is taken, the largest "
        "that fits the memory of this machine "
        f"with KV for one full context; others: {'; '.join(others)}. {taken.repository}:FILE picks another one"
    )
