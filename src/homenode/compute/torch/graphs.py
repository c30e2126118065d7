"""Steps that only decode, captured once for each size and replayed: one call instead of hundreds of launches.

A graph is made for so many sequences of so many blocks at most (`bucket`, and a power of two); smaller steps are filled
up with sequences that compute the token 0 of nobody, in the KV memory's last block and the state memory's last slot,
which are nobody's. Everything a replay reads lies in one buffer of int32, which one copy fills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from homenode.compute.ops import StepArrays, StepLimits
from homenode.compute.torch.device import TorchDevice
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.state import StateStep, TorchStateMemory
from homenode.compute.torch.step import DeviceStep

_MOST_GRAPHS = 48  # each holds some MiB of the device's memory
Compute = Callable[[DeviceStep], torch.Tensor]


class Capture(Protocol):
    """The way in which a device records calls."""

    def record(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Record what `compute` asks of the device. The result: what does it again, and the tensor that then has the
        new values.
        """


class CudaCapture:
    """CUDA graphs, which share one pool of memory: two of them never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """See `Capture.record`."""
        with torch.cuda.device(self._device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                compute()  # libraries set themselves up in the first call, which cannot be recorded
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                result = compute()
        return graph.replay, result


@dataclass(frozen=True)
class Graph:
    """A captured step of `sequences` x `width` blocks. `inputs` int32 on the device: ids, positions, contexts, slots of
    states and whether these are fresh, where there are states, then the block table.
    """

    sequences: int
    width: int
    inputs: torch.Tensor
    hidden: torch.Tensor | None
    state: StateStep | None  # a replay reads its tensors
    replay: Callable[[], None]
    result: torch.Tensor


class StepGraphs:
    """The graphs of one program, made when a step of their size first comes."""

    def __init__(
        self,
        compute: Compute,
        device: TorchDevice,
        capture: Capture,
        limits: StepLimits,
        cache: TorchKvCache,
        hidden: int | None,
        state: TorchStateMemory | None = None,
    ) -> None:
        """`hidden`: columns of the rows from the stage before; None for the first stage. `state`: None: no layer keeps
        a state.
        """
        self._compute, self._device, self._capture = compute, device, capture
        self._limits, self._cache, self._hidden, self._state = limits, cache, hidden, state
        self._columns = 3 if state is None else 5
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._staged = device.staging(0, torch.int32)
        self.failure: str | None = None  # why nothing is captured any more

    def run(self, arrays: StepArrays) -> torch.Tensor | None:
        """The result of a step that was checked; None when it is none of these steps, and is to be computed
        otherwise.
        """
        graph = self._graph_for(arrays)
        if graph is None:
            return None
        count = len(arrays.context_len)
        self._fill(graph, arrays, count)
        if graph.hidden is not None and arrays.hidden is not None:
            graph.hidden[:count].copy_(torch.from_numpy(arrays.hidden))
        graph.replay()
        self._copy_states(arrays)
        return graph.result[:count]

    def __len__(self) -> int:
        return len(self._graphs)

    def _graph_for(self, arrays: StepArrays) -> Graph | None:
        count = len(arrays.context_len)
        if (
            self.failure
            or count == 0
            or arrays.row_places is not None
            or arrays.rope_positions is not None
            or len(arrays.ids) != count
            or not np.array_equal(arrays.sample_rows, np.arange(count))
        ):
            return None
        blocks = -(-int(arrays.context_len.max()) // self._cache.geometry.block_size)
        size = (bucket(count, self._limits.max_sequences), 1 << (blocks - 1).bit_length())
        if size not in self._graphs and len(self._graphs) < _MOST_GRAPHS:
            try:
                self._graphs[size] = self._make(*size)
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                self.failure = f"steps are not captured: {error}"
        return self._graphs.get(size)

    def _make(self, sequences: int, width: int) -> Graph:
        inputs = torch.zeros(sequences * (self._columns + width), dtype=torch.int32, device=self._device.device)
        hidden = None if self._hidden is None else torch.zeros((sequences, self._hidden), device=self._device.device)
        inputs.copy_(torch.from_numpy(self._nobody(sequences, width)))
        state = self._state_step(inputs, sequences)
        replay, result = self._capture.record(lambda: self._compute(self._step(inputs, sequences, hidden, state)))
        return Graph(sequences, width, inputs, hidden, state, replay, result)

    def _state_step(self, inputs: torch.Tensor, sequences: int) -> StateStep | None:
        """Return the step of sequences with a row each. What it works out in the first call stands for the recorded
        one.
        """
        if self._state is None:
            return None
        slots, fresh = inputs[: 5 * sequences].view(5, sequences)[3:]
        return StateStep(slots, fresh, np.arange(sequences, dtype=np.int32), np.ones(sequences, np.int32), {})

    def _copy_states(self, arrays: StepArrays) -> None:
        """The copies of states that a step asks for, each after its sequence's one row."""
        if self._state is not None and arrays.state_copies is not None and arrays.state_slot is not None:
            for sequence, slot, _ in arrays.state_copies.tolist():
                self._state.copy_slot(int(arrays.state_slot[sequence]), slot)

    def _step(
        self, inputs: torch.Tensor, sequences: int, hidden: torch.Tensor | None, state: StateStep | None
    ) -> DeviceStep:
        ids, positions, context = inputs[: 3 * sequences].view(3, sequences).long()
        table = inputs[self._columns * sequences :].view(sequences, -1).long()
        everybody = torch.arange(sequences, device=inputs.device)
        nothing = np.empty(0, np.int32)
        host = StepArrays(nothing, nothing, nothing, nothing, nothing.reshape(0, 0), nothing)
        return DeviceStep(host, ids, positions, everybody, table, context, everybody, hidden, state, captured=True)

    def _nobody(self, sequences: int, width: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Inputs of sequences that are nobody's: token 0 at position 0, in the last block and the last slot."""
        inputs = np.zeros(sequences * (self._columns + width), np.int32)
        inputs[2 * sequences : 3 * sequences] = 1
        if self._state is not None:
            inputs[3 * sequences : 4 * sequences] = self._state.slots
            inputs[4 * sequences : 5 * sequences] = 1
        inputs[self._columns * sequences :] = self._cache.blocks
        return inputs

    def _fill(self, graph: Graph, arrays: StepArrays, count: int) -> None:
        """Copy a step's inputs to the device, through staged memory that the copy before has left."""
        self._device.wait()
        size = graph.inputs.shape[0]
        if self._staged.shape[0] < size:
            self._staged = self._device.staging(size, torch.int32)
        inputs = self._staged[:size].numpy()
        inputs[:] = self._nobody(graph.sequences, graph.width)
        columns = inputs[: self._columns * graph.sequences].reshape(self._columns, graph.sequences)
        columns[:3, :count] = arrays.ids, arrays.positions, arrays.context_len
        if self._state is not None:
            columns[3:, :count] = arrays.state_slot, arrays.state_fresh
        table = inputs[self._columns * graph.sequences :].reshape(graph.sequences, graph.width)
        widest = min(graph.width, arrays.block_table.shape[1])
        used = np.arange(widest) < -(-arrays.context_len // self._cache.geometry.block_size)[:, None]
        table[:count, :widest] = np.where(used, arrays.block_table[:, :widest], self._cache.blocks)
        graph.inputs.copy_(self._staged[:size], non_blocking=True)


def bucket(sequences: int, limit: int) -> int:
    """The number of sequences a graph is made for: a power of two up to 8, then steps of 8, from 64 on of 32; at most
    `limit`.
    """
    if sequences <= 8:
        size = 1 << (sequences - 1).bit_length()
    else:
        step = 8 if sequences <= 64 else 32
        size = -(-sequences // step) * step
    return min(size, limit)
