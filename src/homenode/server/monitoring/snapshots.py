"""What a scrape looks at: an engine, a model, a server of a proxy at one moment, with their figures in the form in
which the rows of the table of metrics read them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from homenode.engine.messages import EngineReady, EngineStats
from homenode.server.monitoring.metric import Labelled
from homenode.transfer.scheduler_events import TransferStats


class ExpertCounts(msgspec.Struct):
    """`expert_table.figures` of an engine."""

    tokens: list[int]
    imbalance: list[tuple[int, float]]
    layers: list[list[int]] = []


class StageStats(msgspec.Struct):
    """A stage of an engine with several."""

    stage: int
    busy_s: float
    wait_s: float


class WorkerStates(msgspec.Struct):
    """Stages and workers of an engine whose own process is not its only worker."""

    stages: list[StageStats]
    workers: list[dict[str, Any]] = []
    restarts: int = 0

    def by_state(self) -> Labelled:
        """Count the workers in each state."""
        counts = Counter(str(worker["state"]) for worker in self.workers)
        return [((state,), counts[state]) for state in ("starting", "waiting", "ready")]


class WeightBytes(msgspec.Struct):
    """Weights that an engine keeps itself, and experts that it reads where another one keeps them."""

    weight_bytes: int = 0
    shared_weight_bytes: int = 0


@dataclass(frozen=True)
class EngineSnapshot:
    """One engine at a scrape. `hands_kv_over`: whether it has a part in that, which its figures tell late."""

    stats: EngineStats
    hands_kv_over: bool = False

    @property
    def transfer(self) -> TransferStats | None:
        """Figures of handing KV over, all 0 as long as nothing happened; None of an engine that never does."""
        return (self.stats.transfer or TransferStats()) if self.hands_kv_over else None

    @property
    def weights(self) -> WeightBytes:
        """Bytes of weights; 0 where the engine has not told."""
        return msgspec.convert(self.stats.compute, WeightBytes)

    @property
    def barrier_wait(self) -> float | None:
        """The share of steps in which threads wait for each other; None where nobody does, or it is not known."""
        share = self.stats.compute.get("barrier_wait_share")
        return share if isinstance(share, float) else None

    @property
    def workers(self) -> WorkerStates | None:
        """Stages and workers; None where the engine's process computes alone."""
        compute = self.stats.compute
        return msgspec.convert(compute, WorkerStates) if compute.get("stages") else None

    @property
    def experts(self) -> ExpertCounts | None:
        """How often experts were chosen; None of a model without."""
        compute = self.stats.compute
        return msgspec.convert(compute["experts"], ExpertCounts) if "experts" in compute else None


@dataclass(frozen=True)
class ModelSnapshot:
    """A model at a scrape, whichever engines compute it. `rejected`: requests by reason, of its engines and of the
    front; `start_phases`: (process, phase) and the second of its end, where the starts of processes do not overlap.
    `cache`: what does not change of its KV memory, by the label that it is shown as; empty where nothing is loaded.
    """

    rejected: Mapping[str, int]
    start_phases: Sequence[tuple[tuple[str, str], float]] = ()
    cache: Mapping[str, str] = field(default_factory=dict)


def cache_facts(ready: EngineReady) -> dict[str, str]:
    """The labels of `cache_config_info`, which routers read; `num_gpu_blocks` is their word for blocks of KV memory,
    whatever it is of.
    """
    return {
        "block_size": str(ready.block_size),
        "num_gpu_blocks": str(ready.num_blocks),
        "enable_prefix_caching": str(bool(ready.details.get("prefix_caching"))),
        "cache_dtype": str(ready.details.get("kv_dtype", "")),
    }


@dataclass(frozen=True)
class LifeSnapshot:
    """A model that is loaded when it is asked for, at a scrape. `states`: of all that there are, whether it is in it.
    `memory`: bytes by node that it may take now. `waiting`: requests that wait for it.
    """

    states: Mapping[str, bool]
    memory: Mapping[str, float]
    waiting: int
    loads: int
    unloads: int
    failures: int


@dataclass(frozen=True)
class ServerSnapshot:
    """One of the servers of a proxy at a scrape. `states`: of all that there are, whether it is in it."""

    states: Mapping[str, bool]
    breaker_open: bool
    lives: int
    requests: int
    waiting_tokens: float
    slowness: float


def memory_pages(now: EngineStats) -> Labelled:
    """Bytes of weights (`shared`: its own experts that other engines read, too) and KV memory by kind of page, as the
    kernel told after they were loaded, and of KV memory that grows now; none where it is not known.
    """
    for use in ("weight", "shared", "kv"):
        seen = now.compute.get(f"{use}_pages")
        if isinstance(seen, dict) and (use != "shared" or seen["present"]):
            yield (use, "huge"), seen["huge"]
            yield (use, "small"), seen["present"] - seen["huge"]


def local_pages(now: EngineStats) -> Labelled:
    """The share of what is planned for each node that is there; nothing where nothing is planned, or the kernel does
    not tell.
    """
    residency = now.compute.get("residency")
    for use, lines in residency.items() if isinstance(residency, dict) else ():
        for line in lines or ():
            node = "all" if line["node"] < 0 else str(line["node"])
            yield (use, node), line["local"] / line["present"] if line["present"] else 1.0
