"""A forward function for steps within limits: run on each step's tensors, or replayed where it was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from homenode.compute.expert_usage import Counts
from homenode.compute.ops import FloatArray, Ops, StepArrays, StepLimits, Tensor
from homenode.compute.ranks import RankGroup
from homenode.compute.torch.device import TorchDevice
from homenode.compute.torch.graphs import Capture, StepGraphs
from homenode.compute.torch.ops import Seen, TorchOps
from homenode.compute.torch.products import Product
from homenode.compute.torch.scoring import Attention
from homenode.compute.torch.state import state_step
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

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        rows: FloatArray = self.tensor.cpu().numpy()
        return np.array(rows, dtype) if copy else np.asarray(rows, dtype)


class TorchProgram:
    """`Program`. On an accelerator `run` returns when everything has been asked of the device; who looks at the rows
    waits for it.
    """

    def __init__(
        self,
        forward: Callable[[Ops], Tensor],
        limits: StepLimits,
        group: RankGroup | None,
        device: TorchDevice,
        product: Product,
        attention: Attention,
        capture: Capture | None = None,
    ) -> None:
        """`capture`: how steps that only decode are captured; None: they are not."""
        self._forward, self._limits, self._group = forward, limits, group
        self._device, self._product, self._attention = device, product, attention
        self._capture = capture
        self._seen = Seen()
        self._graphs: StepGraphs | None = None

    @property
    def graphs(self) -> int:
        """Captured steps there are."""
        return 0 if self._graphs is None else len(self._graphs)

    def expert_usage(self) -> Counts:
        """See `Program.expert_usage`."""
        return self._seen.usage.table()

    def run(self, arrays: StepArrays) -> TorchRows:
        """See `Program.run`. ValueError when the arrays contradict each other, the limits, or the KV memory."""
        cache = self._seen.cache
        check_step(arrays, self._limits, cache.geometry.block_size if cache else 0, cache.blocks if cache else 0)
        if self._seen.vocabulary is not None:
            check_ids(arrays.ids, self._seen.vocabulary)
        with torch.inference_mode():
            captured = None if self._graphs is None else self._graphs.run(arrays)
            return TorchRows(self._eager(arrays) if captured is None else captured)

    def _eager(self, arrays: StepArrays) -> torch.Tensor:
        """Run the step, and learn from the first one whether those that only decode can be captured."""
        step = self._upload(arrays)
        result = self._compute(step)
        cache, capture, self._capture = self._seen.cache, self._capture, None
        if capture is not None and cache is not None and not step.by_values:
            seen = self._seen
            self._graphs = StepGraphs(
                self._compute, self._device, capture, self._limits, cache, seen.hidden, seen.state
            )
        return result

    def _compute(self, step: DeviceStep) -> torch.Tensor:
        ops = TorchOps(step, self._device, self._product, self._attention, self._group, self._seen)
        result: torch.Tensor = self._forward(ops)
        return result

    def _upload(self, arrays: StepArrays) -> DeviceStep:
        sequences = np.repeat(np.arange(len(arrays.context_len), dtype=np.int32), np.diff(arrays.query_start))
        given = (arrays.ids, arrays.positions, sequences, arrays.block_table, arrays.context_len, arrays.sample_rows)
        ids, positions, sequence, table, context, rows = (
            torch.from_numpy(a).to(self._device.device).long() for a in given
        )
        hidden = None if arrays.hidden is None else torch.from_numpy(arrays.hidden).to(self._device.device)
        state = state_step(arrays, self._device.device)
        return DeviceStep(arrays, ids, positions, sequence, table, context, rows, hidden, state)
