"""Attention by the packages flash-attn and flashinfer, whose kernels take sequences of different lengths at once.

Neither is needed; each is loaded when it was chosen. Keys and values have to be bfloat16 (`devices.attention_problem`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.scoring import Scoring
from homenode.compute.torch.step import DeviceStep
from homenode.errors import HostError, UnsupportedError

_PAGE = 256  # flash-attn reads keys in place from blocks of a multiple of this
_WORKSPACE_BYTES = 128 * 2**20  # what flashinfer's documentation advises


@dataclass(frozen=True)
class Lengths:
    """The beginnings of sequences among queries and among keys, int32 [s + 1] each, and their longest; slots of all
    keys one after another.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    most_queries: int
    most_keys: int
    slots: torch.Tensor | None  # None where keys are read in place


class FlashAttention:
    """flash-attn's `flash_attn_varlen_func`: keys in place where a block is a multiple of 256 tokens, else gathered
    without padding.
    """

    def __init__(self) -> None:
        self._call = _load("flash_attn").flash_attn_varlen_func

    def __call__(
        self, q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring
    ) -> torch.Tensor:
        """See `Attention`."""
        _refuse_more(how, "flash_attn")
        in_place = cache.geometry.block_size % _PAGE == 0
        if "lengths" not in step.planned:
            step.planned["lengths"] = _lengths(step, cache.geometry.block_size, in_place)
        lengths: Lengths = step.planned["lengths"]
        if lengths.slots is None:
            keys, values, table = cache.keys[layer], cache.values[layer], step.table.int()
        else:
            (keys, values), table = cache.gather(layer, lengths.slots), None
        found = self._call(
            q.reshape(q.shape[0], -1, q.shape[3]).to(keys.dtype), keys, values, lengths.queries, lengths.keys,
            lengths.most_queries, lengths.most_keys, softmax_scale=how.scale, causal=True,
            window_size=(-1, -1) if how.window is None else (how.window - 1, 0), softcap=how.softcap or 0.0,
            block_table=table,
        )  # fmt: skip
        return torch.as_tensor(found).reshape(q.shape).float()


class FlashInfer:
    """flashinfer's `BatchPrefillWithPagedKVCacheWrapper`: keys in place, one plan a step for each way of scoring."""

    def __init__(self, device: torch.device) -> None:
        self._wrapper = _load("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def __call__(
        self, q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring
    ) -> torch.Tensor:
        """See `Attention`."""
        _refuse_more(how, "flashinfer")
        step.by_values = True
        plan = ("flashinfer", how, q.shape[1:])
        if plan not in step.planned:
            step.planned[plan] = self._plan(q, cache, step, how)
        found = step.planned[plan].run(
            q.reshape(q.shape[0], -1, q.shape[3]).to(cache.reads), (cache.keys[layer], cache.values[layer])
        )
        return torch.as_tensor(found).reshape(q.shape).float()

    def _plan(self, q: torch.Tensor, cache: TorchKvCache, step: DeviceStep, how: Scoring) -> Any:
        size, host = cache.geometry.block_size, step.host
        used = -(-host.context_len // size)
        pages = host.block_table[np.arange(host.block_table.shape[1]) < used[:, None]]
        starts = np.concatenate([[0], np.cumsum(used)])
        last = host.context_len - (used - 1) * size
        indptr, page_starts, indices, last_lengths = (
            torch.from_numpy(np.asarray(a, np.int32)).to(q.device) for a in (host.query_start, starts, pages, last)
        )
        planned = self._wrapper(self._workspace, "NHD")
        planned.plan(
            indptr, page_starts, indices, last_lengths, q.shape[1] * q.shape[2], q.shape[1], q.shape[3], size,
            causal=True, sm_scale=how.scale, window_left=-1 if how.window is None else how.window - 1,
            logits_soft_cap=how.softcap, q_data_type=cache.reads, kv_data_type=cache.reads,
        )  # fmt: skip
        return planned


def _lengths(step: DeviceStep, block_size: int, in_place: bool) -> Lengths:
    device = step.ids.device
    if step.captured:
        queries = torch.arange(step.ids.shape[0] + 1, device=device, dtype=torch.int32)
        keys = torch.nn.functional.pad(step.context.cumsum(0), (1, 0)).int()
        return Lengths(queries, keys, 1, step.table.shape[1] * block_size, None)
    contexts, starts = step.host.context_len.astype(np.int64), step.host.query_start
    ends = np.cumsum(contexts)
    queries, keys = (
        torch.from_numpy(np.asarray(a, np.int32)).to(device) for a in (starts, np.concatenate([[0], ends]))
    )
    slots = None
    if not in_place:
        step.by_values = True
        sequences = np.repeat(np.arange(len(contexts)), contexts)
        positions = np.arange(ends[-1]) - np.repeat(ends - contexts, contexts)
        slots = step.slots(torch.from_numpy(sequences).to(device), torch.from_numpy(positions).to(device), block_size)
    return Lengths(queries, keys, int(np.diff(starts).max()), int(contexts.max()), slots)


def _refuse_more(how: Scoring, package: str) -> None:
    chunks = None if how.window_kind == "sliding" else how.window
    behind = None if how.mask == "causal" else how.mask
    lacking = (
        ("sinks", how.sinks),
        ("slopes (ALiBi)", how.slopes),
        ("with biases by distance", how.biases),
        ("in chunks", chunks),
        ("to what comes behind", behind),
    )
    for what, wanted in lacking:
        if wanted is not None:
            raise UnsupportedError(
                f"--attention-backend {package} has no attention {what}, which this model needs; take sdpa"
            )


def _load(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except Exception as error:  # built for another torch or another card it fails in many ways
        raise HostError(f"--attention-backend needs the package {package}, which cannot be loaded: {error}") from error
