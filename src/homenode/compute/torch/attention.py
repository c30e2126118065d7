"""Choosing the kernels of attention on torch."""

from __future__ import annotations

from homenode.compute.torch import sdpa, tiled, varlen
from homenode.compute.torch.device import TorchDevice
from homenode.compute.torch.scoring import Attention


def choose_attention(name: str, device: TorchDevice) -> Attention:
    """What `--attention-backend` names; auto: tiled where results are to be exact, else sdpa. HostError when a package cannot be loaded."""
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
