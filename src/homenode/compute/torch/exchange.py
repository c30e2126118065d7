"""Sums and gathers over the ranks of a stage: on the device where the group can do that, else through host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch

from homenode.compute.ranks import RankGroup
from homenode.compute.torch.device import TorchDevice
from homenode.errors import InternalError


@runtime_checkable
class DeviceGroup(Protocol):
    """A `RankGroup` whose ranks all have devices that exchange rows among themselves."""

    def sum_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Sum as `RankGroup.sum`."""

    def gather_rows(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Gather as `RankGroup.gather`."""

    @property
    def capturable(self) -> bool:
        """Return whether its calls may stand in a captured graph."""


def sum_over_ranks(
    x: torch.Tensor, group: RankGroup | None, device: TorchDevice, waits: Callable[[], None]
) -> torch.Tensor:
    """See `Ops.sum`. `waits` is called where the host takes part."""
    if group is None:
        return x
    if isinstance(group, DeviceGroup):
        if not group.capturable:
            waits()
        return group.sum_rows(x)
    waits()
    host = _on_host(x, device)
    group.sum(host.numpy())
    return device.to_device(host)


def gather_columns(
    x: torch.Tensor, widths: Sequence[int], group: RankGroup | None, device: TorchDevice, waits: Callable[[], None]
) -> torch.Tensor:
    """See `Ops.gather`."""
    if group is None:
        if list(widths) != [x.shape[1]]:
            raise InternalError(f"columns of widths {list(widths)} are to be gathered, but there is no group")
        return x
    if isinstance(group, DeviceGroup):
        if not group.capturable:
            waits()
        return group.gather_rows(x, widths)
    waits()
    return device.to_device(torch.from_numpy(group.gather(_on_host(x, device).numpy(), widths)))


def _on_host(x: torch.Tensor, device: TorchDevice) -> torch.Tensor:
    """A copy of its own in host memory, whole when this returns."""
    host = device.staging(x.numel(), torch.float32).view(x.shape)
    host.copy_(x)
    return host
