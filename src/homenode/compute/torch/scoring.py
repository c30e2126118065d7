"""The requests that attention on torch answers: how scores become weights, and the call that every way to attend
answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from homenode.compute.ops import AttentionMask, WindowKind
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.step import DeviceStep

Position = TypeVar("Position", int, torch.Tensor)


@dataclass(frozen=True)
class Scoring:
    """The rule for what becomes of a score, and which keys have one: see `Ops.attention`."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None = field(default=None, compare=False)
    slopes: torch.Tensor | None = field(default=None, compare=False)
    biases: torch.Tensor | None = field(default=None, compare=False)  # [query heads, distances -reach .. reach]
    window_kind: WindowKind = "sliding"
    mask: AttentionMask = "causal"

    def first_seen(self, position: Position) -> Position:
        """The first position that one sees, or one before all where it sees them all."""
        if self.window is None:
            return position * 0
        return position // self.window * self.window if self.window_kind == "chunked" else position - self.window + 1


class Attention(Protocol):
    """Attends over keys and values that are stored already, those of the step among them."""

    def __call__(
        self, q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring
    ) -> torch.Tensor:
        """q [n, kv_heads, query heads of one, head_dim] float32 -> the same shape, float32."""
