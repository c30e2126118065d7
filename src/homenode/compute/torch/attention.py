"""Ways to attend, and which of them can what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from homenode.compute.torch.device import TorchDevice
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.step import DeviceStep


@dataclass(frozen=True)
class Scoring:
    """What becomes of a score, and which keys have one: see `Ops.attention`."""

    scale: float
    window: int | None
    softcap: float | None


class Attention(Protocol):
    """Attends over keys and values that are stored already, those of the step among them."""

    def __call__(
        self, q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring
    ) -> torch.Tensor:
        """q [n, kv_heads, query heads of one, head_dim] float32 -> the same shape, float32."""


def choose_attention(name: str, device: TorchDevice) -> Attention:
    """What `--attention-backend` names; auto: tiled where results are to be exact, else sdpa. HostError when a package cannot be loaded."""
    from homenode.compute.torch import sdpa, tiled, varlen  # each names the protocol above

    match name:
        case "flash":
            return varlen.FlashAttention()
        case "flashinfer":
            return varlen.FlashInfer(device.device)
        case "tiled":
            return tiled.tiled_attention
        case "auto" if device.exact:
            return tiled.tiled_attention
    return sdpa.sdpa_attention
