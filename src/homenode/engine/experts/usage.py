"""Counts of how often each expert of each layer was chosen, put together from what programs count. Pure.

A table is [layers, experts]: tokens for which an expert was computed, zeros in layers without experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.model.part import ModelPart, every_expert
from homenode.model.spec import ModelSpec

EXPERT_USES = "expert_uses"  # of an executor's statistics: a `Table`

Table = npt.NDArray[np.uint64]


def of_part(part: ModelPart, spec: ModelSpec, uses: Table) -> Table:
    """The table of a part's layers. `uses`: a row for each mixture of its program, see `Program.expert_usage`; for the
    first ones only where its first step is still being computed.
    """
    table = empty(part.layers.count, spec)
    mixtures = [layer for layer in range(part.layers.count) if every_expert(spec, part.layers.first + layer)]
    if len(uses):
        table[mixtures[: len(uses)]] = uses[:, : table.shape[1]]  # what returns a row as it is counts for nothing
    return table


def of_engine(parts: Sequence[tuple[ModelPart, Table]], spec: ModelSpec) -> Table:
    """The table of a model from those of its parts. Ranks that divide experts as wholes each have counted their own,
    others have all counted the same, or will have in a moment: of the ranks of a stage the largest count is that of the
    stage.
    """
    table = empty(spec.num_layers, spec)
    for part, own in parts:
        rows = table[part.layers.first : part.layers.end]
        np.maximum(rows, own, out=rows)
    return table


def empty(layers: int, spec: ModelSpec) -> Table:
    """Nothing was counted yet."""
    return np.zeros((layers, spec.moe.num_experts if spec.moe else 0), np.uint64)


def read_table(counts: object, layers: int, spec: ModelSpec) -> Table | None:
    """Return what another process tells of a part with so many layers; None where it is no such table."""
    try:
        table = np.array(counts, np.uint64)
    except (TypeError, ValueError, OverflowError):
        return None
    return table if table.shape == empty(layers, spec).shape else None


def usage_stats(table: Table, whole: bool) -> dict[str, Any]:
    """Plain values: `tokens` of each expert over all layers; `imbalance` of each layer with any, [layer, how many times
    the mean the most used expert has]; with `whole` the table itself as `layers`.
    """
    most, mean = table.max(axis=1, initial=0), table.mean(axis=1)
    found: dict[str, Any] = {
        "tokens": table.sum(axis=0).tolist(),
        "imbalance": [[int(layer), round(float(most[layer] / mean[layer]), 4)] for layer in np.flatnonzero(most)],
    }
    if whole:
        found["layers"] = table.tolist()
    return found
