"""What every engine is asked to do, and how the figures are named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

SHAPES = ("qwen2.5-0.5b", "llama-3.2-1b")
FORMATS = ("Q8_0", "Q4_0", "Q4_K_M", "BF16")

# Tokens a second of all sequences, by case: "prefill", or "batch 8" for decoding.
Rates = dict[str, float]


def batch_case(batch: int) -> str:
    """The name of decoding `batch` sequences at once."""
    return f"batch {batch}"


@dataclass(frozen=True)
class Workload:
    """One prompt of `prompt` tokens into an empty context (0: none); then for each batch size `steps` tokens for every
    sequence, after `context` others.
    """

    prompt: int = 512
    context: int = 16
    steps: int = 32
    batches: tuple[int, ...] = (1, 4, 8, 32)
    threads: int = 2

    @property
    def cases(self) -> tuple[str, ...]:
        """In the order of the table's columns."""
        return (*(("prefill",) if self.prompt else ()), *(batch_case(b) for b in self.batches))

    def parts(self) -> list[Workload]:
        """Cut into its cases: the shorter a pair of measurements, the less often does the host move the CPUs
        meanwhile."""
        return [*([self._piece(self.prompt, ())] if self.prompt else ()), *(self._piece(0, (b,)) for b in self.batches)]

    def _piece(self, prompt: int, batches: Iterable[int]) -> Workload:
        return replace(self, prompt=prompt, batches=tuple(batches))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Workload:
        """The inverse of `to_json`."""
        return cls(**{**value, "batches": tuple(value["batches"])})
