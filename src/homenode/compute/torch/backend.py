"""The torch backend: parameters and KV memory as tensors of one device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from homenode.compute.devices import attention_problem
from homenode.compute.ops import (
    IntArray,
    KvGeometry,
    MatrixPlacement,
    Ops,
    SampledRows,
    SamplingArrays,
    StateGeometry,
    StepLimits,
    Tensor,
)
from homenode.compute.ranks import RankGroup
from homenode.compute.reference.backend import StoredRows
from homenode.compute.reference.formats import DECODABLE
from homenode.compute.stored_matrix import StoredMatrix
from homenode.compute.torch import sampling, sdpa, tiled, varlen
from homenode.compute.torch.device import TorchDevice, open_device
from homenode.compute.torch.graphs import Capture, CudaCapture
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.products import in_tiles, whole
from homenode.compute.torch.profile import AloneOf, dearest_sampling, largest_step
from homenode.compute.torch.program import TorchProgram, TorchRows
from homenode.compute.torch.scoring import Attention
from homenode.compute.torch.state import TorchStateMemory
from homenode.compute.torch.weights import DENSE, MatrixReader
from homenode.dtypes import DType
from homenode.errors import UnsupportedError
from homenode.numa_policy import NumaPolicy


class TorchBackend:
    """`Backend` on one device of torch. Nothing of torch is set for the process: neither a default device nor a default
    type.

    Matrices are dense: float32 on the CPU; elsewhere as stored where that is float32, bfloat16 or float16, and bfloat16
    for formats in blocks.
    """

    name = "torch"
    tile_tokens = 1

    def __init__(self, device: TorchDevice, attention: str = "auto", capture: Capture | None = None) -> None:
        """`attention`: as --attention-backend; `capture`: how steps that only decode are captured, None:
        they are not.
        """
        self._device = device
        self._capture = capture
        self._attention_name = attention
        self._reader = MatrixReader(device)
        self._product = in_tiles if device.exact else whole
        self._attention = choose_attention(attention, device)
        self._weight_bytes = 0
        self._kv_bytes = 0

    def weight_types(self) -> frozenset[str]:
        """See `Backend.weight_types`."""
        return frozenset(DENSE) if self._device.narrow else frozenset({"F32"})

    def weight_from_file(
        self, stored: StoredMatrix, target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> torch.Tensor:
        """See `Backend.weight_from_file`. HostError when the file ends early, UnsupportedError for a target it has no
        type for.
        """
        return self._count(self._reader.read(stored, target))

    def weight_from_array(
        self, array: npt.NDArray[Any], target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> torch.Tensor:
        """See `Backend.weight_from_array`."""
        return self._count(self._reader.keep(np.asarray(array, np.float32), target))

    def vector(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """See `Backend.vector`."""
        return torch.tensor(np.asarray(array).reshape(-1), dtype=torch.float32, device=self._device.device)

    def kv_cache(self, geometry: KvGeometry, blocks: int) -> TorchKvCache:
        """See `Backend.kv_cache`. UserError when the chosen attention cannot read such keys."""
        if problem := attention_problem(self._attention_name, self._device.name, geometry.dtype):
            raise problem
        self._reader.done()
        cache = TorchKvCache(geometry, blocks, self._device)
        self._kv_bytes += cache.nbytes
        return cache

    def state_memory(self, geometry: StateGeometry, slots: int) -> TorchStateMemory:
        """See `Backend.state_memory`."""
        memory = TorchStateMemory(geometry, slots, self._device.device)
        self._kv_bytes += memory.nbytes
        return memory

    def stored_table(self, fd: int, offset: int, dtype: DType, rows: int, columns: int) -> StoredRows:
        """See `TableBackend.stored_table`; rows are decoded on the host."""
        if dtype.name not in DECODABLE:
            raise UnsupportedError(f"the torch backend cannot read rows of {dtype.name} from a file")
        return StoredRows(os.dup(fd), offset, dtype, rows, columns)

    def compile(
        self, forward: Callable[[Ops], Tensor], limits: StepLimits, group: RankGroup | None = None
    ) -> TorchProgram:
        """See `Backend.compile`."""
        return TorchProgram(forward, limits, group, self._device, self._product, self._attention, self._capture)

    def sample(self, logits: TorchRows, how: SamplingArrays, num_logprobs: int = -1) -> SampledRows:
        """See `Backend.sample`."""
        with torch.inference_mode():
            return sampling.sample_rows(logits.tensor, how, num_logprobs)

    def score(self, logits: TorchRows, rows: IntArray, targets: IntArray, num_logprobs: int) -> SampledRows:
        """See `Backend.score`."""
        with torch.inference_mode():
            chosen = logits.tensor[torch.from_numpy(rows).to(logits.tensor.device).long()]
            return sampling.score_rows(chosen, targets, num_logprobs)

    def kv_room(
        self,
        forward_of: Callable[[TorchKvCache, TorchStateMemory | None], Callable[[Ops], Tensor]],
        geometry: KvGeometry,
        limits: StepLimits,
        utilization: float,
        *,
        rank: int = 0,
        ranks: int = 1,
        hidden: int | None = None,
    ) -> int:
        """Bytes of the device that KV memory may take, the weights being there: `utilization` of all its memory less
        what is in use, by whoever, when a step at the limits has just been computed.

        The step is computed alone, whatever the group (`rank` of `ranks`). `hidden`: columns of the rows from the stage
        before, for stages that have one. For accelerators; the host's memory is divided by other rules.
        """
        device = self._device
        step = largest_step(limits, geometry.block_size, hidden)
        with torch.inference_mode():
            cache = TorchKvCache(geometry, step.block_table.shape[1], device)
            kept, state = cache.nbytes, None
            if geometry.state is not None:
                state = TorchStateMemory(geometry.state, len(step.context_len), device.device)
                kept += state.nbytes
            group = AloneOf(rank, ranks) if ranks > 1 else None
            program = TorchProgram(forward_of(cache, state), limits, group, device, self._product, self._attention)
            rows = program.run(step).tensor
            if rows.shape[0] == len(step.sample_rows) and torch.isfinite(rows).all():
                sampling.sample_rows(rows, dearest_sampling(rows.shape[0]), 0)
            device.wait()
            free, total = (int(size) for size in device.calls.mem_get_info(device.device))
            room = int(utilization * total) - (total - free) + kept
            del rows, program, cache, state
        device.release()
        return max(0, room)

    def statistics(self) -> dict[str, Any]:
        """See `Backend.statistics`."""
        return {
            "backend": self.name,
            "level": self._device.name,
            "device": self._device.describe(),
            **({} if self._device.accelerator else {"threads": torch.get_num_threads()}),
            "weight_bytes": self._weight_bytes,
            "kv_bytes": self._kv_bytes,
        }

    def _count(self, weight: torch.Tensor) -> torch.Tensor:
        self._weight_bytes += weight.nbytes
        return weight


def open_backend(
    device: str, *, attention: str = "auto", enforce_eager: bool = False, threads: int | None = None
) -> TorchBackend:
    """The backend on a device named as in `compute.devices`, with the settings of `ComputeConfig`.

    `threads`: of torch's own on the host, for the whole process: only for who owns it. UserError for a device that is
    not there.
    """
    opened = open_device(device)
    if problem := attention_problem(attention, opened.name, "bf16"):
        raise problem
    if threads is not None:
        torch.set_num_threads(threads)
    captures = opened.device.type == "cuda" and not enforce_eager
    return TorchBackend(opened, attention, CudaCapture(opened.device) if captures else None)


def choose_attention(name: str, device: TorchDevice) -> Attention:
    """Return what `--attention-backend` names; auto: tiled where results are to be exact, else sdpa. HostError when a
    package cannot be loaded.
    """
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
