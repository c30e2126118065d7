"""The data of one step on a device, and what attention makes of it once for all layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from homenode.compute.ops import IntArray, StepArrays, StepLimits
from homenode.compute.torch.state import StateStep
from homenode.units import format_count


@dataclass
class DeviceStep:
    """A step's arrays as tensors of a device; `host` are the same where shapes are decided.

    `sequence` [n]: which sequence each token is of. `planned`: what is worked out from these once a step, by whoever
    needs it. `captured`: shapes stand for many steps, each sequence has one token, and nothing may be decided by
    values. `by_values`: set by whoever decided something by them on the host, or waited there for others: such a step
    cannot be captured.
    """

    host: StepArrays
    ids: torch.Tensor  # int64 [n]
    positions: torch.Tensor  # int64 [n]
    sequence: torch.Tensor  # int64 [n]
    table: torch.Tensor  # int64 [s, widest]
    context: torch.Tensor  # int64 [s]
    rows: torch.Tensor  # int64 [r]
    hidden: torch.Tensor | None
    state: StateStep | None = None
    captured: bool = False
    by_values: bool = False
    planned: dict[Any, Any] = field(default_factory=dict)

    def slots(self, sequences: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
        """Where the keys of `positions` [...] of `sequences` (of the same shape, or one it can be spread to) are: block
        * block_size + place.
        """
        blocks = self.table[sequences, positions // block_size]
        return blocks * block_size + positions % block_size


def check_step(arrays: StepArrays, limits: StepLimits, block_size: int, blocks: int) -> None:
    """ValueError, naming the array, unless the step is consistent in itself, within `limits`, and in blocks that exist
    (block_size 0: any).
    """
    tokens, sequences, sampled = len(arrays.ids), len(arrays.context_len), len(arrays.sample_rows)
    if tokens > limits.max_tokens or sequences > limits.max_sequences or sampled > limits.max_sampled_rows:
        raise ValueError(
            f"a step of {format_count(tokens, 'token')}, {format_count(sequences, 'sequence')} and {sampled} "
            f"sampled rows is beyond {limits}"
        )
    starts = arrays.query_start
    if len(starts) != sequences + 1 or starts[0] != 0 or starts[-1] != tokens or (np.diff(starts) < 0).any():
        raise ValueError(
            f"query_start {starts.tolist()} does not divide {format_count(tokens, 'token')} among "
            f"{format_count(sequences, 'sequence')}"
        )
    if len(arrays.positions) != tokens or len(arrays.block_table) != sequences:
        raise ValueError(
            f"{format_count(len(arrays.positions), 'position')} for {format_count(tokens, 'token')}, "
            f"{len(arrays.block_table)} block rows for {sequences}"
        )
    counts = np.diff(starts)
    expected = np.arange(tokens) + np.repeat(arrays.context_len - starts[1:], counts)
    if (wrong := np.flatnonzero((expected != arrays.positions) | (expected < 0))).size:
        at = int(wrong[0])
        raise ValueError(
            f"token {at} of the step has position {arrays.positions[at]}; its sequence's context says {expected[at]}"
        )
    if sampled and not 0 <= arrays.sample_rows.min() <= arrays.sample_rows.max() < tokens:
        raise ValueError(
            f"sample_rows {arrays.sample_rows.tolist()} are not rows of a step of {format_count(tokens, 'token')}"
        )
    if block_size:
        _check_blocks(arrays.block_table, arrays.context_len, block_size, blocks)


def check_ids(ids: IntArray, vocabulary: int) -> None:
    """ValueError for an id outside the vocabulary."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        raise ValueError(f"token ids from {ids.min()} to {ids.max()} are outside a vocabulary of {vocabulary}")


def _check_blocks(table: IntArray, context: IntArray, block_size: int, blocks: int) -> None:
    needed = -(-context // block_size)
    if needed.max(initial=0) > table.shape[1]:
        raise ValueError(
            f"{format_count(table.shape[1], 'block')} of {block_size} do not hold a context of {context.max()}"
        )
    used = np.arange(table.shape[1]) < needed[:, None]
    if (bad := used & ((table < 0) | (table >= blocks))).any():
        raise ValueError(f"block {table[bad][0]} does not exist: there are {blocks}")
