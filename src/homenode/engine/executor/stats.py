"""The figures of an engine's workers together, as `Backend.statistics` gives them of one, and of its stages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homenode.engine.experts.usage import EXPERT_USES, Table, of_engine
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

_SUMS = ("threads", "weight_bytes", "shared_weight_bytes", "kv_bytes", "program_bytes")
_PAGES = ("weight_pages", "shared_pages", "kv_pages")


def combined_stats(
    workers: Sequence[tuple[WorkerPlan, str, Mapping[str, Any]]], stages: Sequence[Mapping[str, Any]], restarts: int
) -> dict[str, Any]:
    """`workers`: each with its state and its backend's statistics. Sums of what adds up, lists of what does not, and
    `stages`, `workers`, `restarts`.
    """
    each = [figures for _, _, figures in workers]
    first = next((figures for figures in each if figures), {})
    found: dict[str, Any] = {key: first[key] for key in ("backend", "level", "levels", "spin_us") if key in first}
    found["cpus"] = [cpu for figures in each for cpu in figures.get("cpus", ())]
    found["lost_cpu_shares"] = [share for figures in each for share in figures.get("lost_cpu_shares", ())]
    waits = [share for figures in each if (share := figures.get("barrier_wait_share")) is not None]
    found["barrier_wait_share"] = max(waits, default=None)
    found |= {key: sum(int(figures.get(key) or 0) for figures in each) for key in _SUMS}
    found |= {key: _pages([figures[key] for figures in each if figures.get(key)]) for key in _PAGES}
    found["residency"] = _residency([figures["residency"] for figures in each if figures.get("residency")])
    found["stages"] = list(stages)
    found["workers"] = [
        {"number": plan.number, "stage": plan.stage, "device": plan.device, "state": state}
        for plan, state, _ in workers
    ]
    found["restarts"] = restarts
    return found


def uses_of(parts: Sequence[tuple[ModelPart, Table | None]], spec: ModelSpec | None) -> dict[str, Table]:
    """Return how often experts were used, as part of the figures; nothing where they are not counted."""
    return (
        {EXPERT_USES: of_engine([(part, uses) for part, uses in parts if uses is not None], spec)}
        if spec is not None
        else {}
    )


def _pages(seen: Sequence[Mapping[str, int]]) -> dict[str, int] | None:
    return {key: sum(one[key] for one in seen) for key in seen[0]} if seen else None


def _residency(seen: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A line for each node that any of them planned for."""
    if not seen:
        return None
    uses: dict[str, dict[int, dict[str, int]]] = {}
    for residency in seen:
        for use, lines in residency.items():
            for line in lines or ():
                sums = uses.setdefault(use, {}).setdefault(
                    line["node"], {"node": line["node"], "present": 0, "local": 0}
                )
                for key in ("present", "local"):
                    sums[key] += line[key]
    return {use: list(nodes.values()) for use, nodes in uses.items()}
