"""The part of an accelerator's memory that KV memory may take: what a step at the limits leaves of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homenode.compute.ops import FloatArray, SamplingArrays, StepArrays, StepLimits


class AloneOf:
    """A `RankGroup` without the others: sums are this rank's values, gathers have zeros for theirs. What a rank
    measures alone needs no lock step.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, values: FloatArray) -> None:
        """Leave `values` as they are."""

    def gather(self, values: FloatArray, widths: Sequence[int]) -> FloatArray:
        """See `RankGroup.gather`."""
        rows = np.zeros((len(values), sum(widths)), np.float32)
        first = sum(widths[: self.rank])
        rows[:, first : first + widths[self.rank]] = values
        return rows

    def leave(self) -> None:
        """Nobody is told."""


def largest_step(limits: StepLimits, block_size: int, hidden: int | None) -> StepArrays:
    """A step of as many tokens as `limits` allow, in as few sequences as hold them, all writing to the same blocks.

    `hidden`: columns of the rows from the stage before; None for the first stage.
    """
    longest = limits.max_blocks_per_sequence * block_size
    sequences = min(limits.max_sequences, max(1, -(-limits.max_tokens // longest)))
    tokens = min(limits.max_tokens, sequences * longest)
    counts = np.array([tokens // sequences + (i < tokens % sequences) for i in range(sequences)], np.int32)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    positions = np.concatenate([np.arange(count) for count in counts]).astype(np.int32)
    widest = -(-int(counts.max()) // block_size)
    sampled = min(limits.max_sampled_rows, tokens)
    return StepArrays(
        ids=np.zeros(tokens, np.int32),
        positions=positions,
        query_start=starts,
        context_len=counts,
        block_table=np.tile(np.arange(widest, dtype=np.int32), (sequences, 1)),
        sample_rows=np.arange(sampled, dtype=np.int32),
        hidden=None if hidden is None else np.zeros((tokens, hidden), np.float32),
        state_slot=np.arange(sequences, dtype=np.int32),
        state_fresh=np.ones(sequences, np.int32),
    )


def dearest_sampling(rows: int) -> SamplingArrays:
    """Ways to draw that need everything the sampler can: a sorted vocabulary for every row."""
    return SamplingArrays.of(rows, top_n_sigma=3.0, top_k=50, top_p=0.9, min_p=0.01)
