"""A forward function for steps within limits: run on each step's tensors, or replayed where it was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from homenode.compute.ops import FloatArray, Ops, StepArrays, StepLimits, Tensor
from homenode.compute.ranks import RankGroup
from homenode.compute.torch.attention import Attention
from homenode.compute.torch.device import TorchDevice
from homenode.compute.torch.ops import Seen, TorchOps
from homenode.compute.torch.products import Product
from homenode.compute.torch.step import DeviceStep, check_ids, check_step


class TorchRows:
    """A program's result, [rows, columns] float32 on its device; `numpy.asarray` copies it to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.tensor.shape[0], self.tensor.shape[1]

    def __len__(self) -> int:
        return len(self.tensor)

    def __array__(self, dtype: npt.DTypeLike = None, copy: bool | None = None) -> npt.NDArray[Any]:
        rows: FloatArray = self.tensor.cpu().numpy()
        return np.array(rows, dtype) if copy else np.asarray(rows, dtype)


class TorchProgram:
    """`Program`. On an accelerator `run` returns when everything has been asked of the device; who looks at the rows waits for it."""

    def __init__(
        self,
        forward: Callable[[Ops], Tensor],
        limits: StepLimits,
        group: RankGroup | None,
        device: TorchDevice,
        product: Product,
        attention: Attention,
    ) -> None:
        self._forward, self._limits, self._group = forward, limits, group
        self._device, self._product, self._attention = device, product, attention
        self._seen = Seen()

    def run(self, arrays: StepArrays) -> TorchRows:
        """See `Program.run`. ValueError when the arrays contradict each other, the limits, or the KV memory."""
        cache = self._seen.cache
        check_step(arrays, self._limits, cache.geometry.block_size if cache else 0, cache.blocks if cache else 0)
        if self._seen.vocabulary is not None:
            check_ids(arrays.ids, self._seen.vocabulary)
        with torch.inference_mode():
            return TorchRows(self.forward(self._upload(arrays)))

    def forward(self, step: DeviceStep) -> torch.Tensor:
        """The forward function on this step's tensors."""
        ops = TorchOps(step, self._device, self._product, self._attention, self._group, self._seen)
        result: torch.Tensor = self._forward(ops)
        return result

    def _upload(self, arrays: StepArrays) -> DeviceStep:
        sequences = np.repeat(np.arange(len(arrays.context_len), dtype=np.int32), np.diff(arrays.query_start))
        given = (arrays.ids, arrays.positions, sequences, arrays.block_table, arrays.context_len, arrays.sample_rows)
        ids, positions, sequence, table, context, rows = (torch.from_numpy(a).to(self._device.device).long() for a in given)
        hidden = None if arrays.hidden is None else torch.from_numpy(arrays.hidden).to(self._device.device)
        return DeviceStep(arrays, ids, positions, sequence, table, context, rows, hidden)
