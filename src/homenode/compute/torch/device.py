"""One torch device: opened by its name, refused by its name; and what is different from device to device."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from homenode.compute.devices import PLUGINS, parse_device, torch_missing
from homenode.errors import HostError, UserError


@dataclass(frozen=True)
class TorchDevice:
    """A device that is there.

    `exact`: products are made of pieces of one fixed shape, so that a row's bits do not depend on the rows beside it;
    on the CPU, where that costs little. `narrow`: matrices may be kept as bfloat16 and float16 and are multiplied in
    that type.
    """

    name: str
    device: torch.device
    exact: bool
    narrow: bool

    @property
    def accelerator(self) -> bool:
        """Return whether its memory is not the host's."""
        return str(self.device.type) != "cpu"

    @property
    def calls(self) -> Any:
        """`torch.cuda`, `torch.npu` and their like."""
        return getattr(torch, self.device.type)

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        """A tensor of host memory on the device: the same one on the CPU. From pinned memory the copy does not wait."""
        return host.to(self.device, non_blocking=True) if self.accelerator else host

    def staging(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device reads from or writes to: pinned where it is an accelerator's."""
        return torch.empty(elements, dtype=dtype, pin_memory=self.accelerator)

    def wait(self) -> None:
        """Wait until everything asked of the device is done."""
        if self.accelerator:
            self.calls.synchronize(self.device)

    def release(self) -> None:
        """Give cached memory back to the device."""
        if self.accelerator:
            self.calls.empty_cache()

    def describe(self) -> str:
        """The card, in words."""
        if not self.accelerator:
            return f"torch {torch.__version__} on the CPU"
        return f"torch {torch.__version__} on {self.calls.get_device_name(self.device)}"


def open_device(name: str) -> TorchDevice:
    """The device that `torch:cuda:0`, `cuda:0`, `torch:cpu`... names.

    UserError when torch cannot reach it, naming it; HostError when its plugin fails to load.
    """
    canonical = parse_device(name, accelerator_of=False)
    if missing := torch_missing(canonical):
        raise missing
    kind, _, index = canonical.removeprefix("torch:").partition(":")
    if kind == "cpu":
        return TorchDevice(canonical, torch.device("cpu"), exact=True, narrow=False)
    if plugin := PLUGINS.get(kind):
        try:
            importlib.import_module(plugin)
        except Exception as error:  # a plugin fails in as many ways as its driver
            raise HostError(f"{name} needs {plugin}, which cannot be loaded: {error}", device=name) from error
    calls = getattr(torch, kind, None)
    count = calls.device_count() if calls is not None and calls.is_available() else 0
    if int(index or 0) >= count:
        raise UserError(f"{name} is not there: torch sees {_counted(count, kind)}", param="stage_devices", device=name)
    device = torch.device(kind, int(index or 0))
    return TorchDevice(canonical, device, exact=False, narrow=True)


def _counted(count: int, kind: str) -> str:
    if not count:
        return f"no {kind} device"
    return (
        f"{count} {kind} device{'' if count == 1 else 's'}, {kind}:0{'' if count == 1 else f' to {kind}:{count - 1}'}"
    )
