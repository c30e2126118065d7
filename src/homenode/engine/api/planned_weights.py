"""The nodes on which a model's weights would lie on a host, and how fast each policy would be; headers are read, no
weight is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homenode.engine.backend import make_backend
from homenode.engine.config import ComputeConfig
from homenode.engine.plan.placement import UNPINNED
from homenode.host.plan.numa.policy import numa_plan
from homenode.host.plan.numa.settings import NumaSettings
from homenode.host.topology.host import Host
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.hub.locate import locate
from homenode.model.part import ModelPart
from homenode.model.parts import check_experts
from homenode.model.weights.expert_share import expert_owners
from homenode.model.weights.load import kv_geometry_of, plan_model
from homenode.model.weights.numa_choice import cost_choice, measured_speeds
from homenode.model.weights.numa_layout import NumaLayout, numa_layout, packed_group_bytes

_KV_BLOCK = 64  # tokens


@dataclass(frozen=True)
class WeightWishes:
    """The model whose weights are to be placed, as `homenode serve` would be told of it. `batch` sequences of `context`
    tokens are what --numa auto is to be fast for. `reserve`: cores that are kept free; None: as many as usual.
    """

    model: str
    settings: NumaSettings = field(default_factory=NumaSettings)
    threads: int | None = None
    reserve: int | None = None
    quantize: str | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    batch: int = 1
    context: int = 1024
    experts_apart: bool = False


def planned_weights(host: Host, wishes: WeightWishes) -> NumaLayout:
    """The layout of a model's weights on a host. Raises what reading the model and planning raise."""
    settings = wishes.settings
    checkpoint = open_checkpoint(locate(wishes.model, offline=True))
    backend = make_backend(ComputeConfig(), (UNPINNED,))
    layout = plan_model(checkpoint, backend, quantize=wishes.quantize, dtype=wishes.dtype)
    geometry = kv_geometry_of(checkpoint.spec, layout, _KV_BLOCK, wishes.kv_cache_dtype)
    measured = measured_speeds(settings.numa_measured)
    choose = cost_choice(host, checkpoint.spec, layout, geometry, wishes.batch, wishes.context, measured)
    demand = settings.demand(wishes.threads, wishes.reserve)
    owners: Mapping[str, int] = {}
    if wishes.experts_apart:  # of the engines of --numa replicate, one for each team
        check_experts(checkpoint.spec, 1)
        owners = expert_owners(layout, ModelPart.whole(checkpoint.spec), len(numa_plan(host, demand, choose).teams))
    return numa_layout(layout, host, demand, choose, packed_group_bytes(backend), owners)


def weight_summary(host: Host, model: str) -> dict[str, Any]:
    """The policy that would be chosen, why, and bytes by node, of a model as it is served without settings."""
    made = planned_weights(host, WeightWishes(model))
    told = made.weights.to_json()
    return {name: value for name, value in told.items() if name != "parameters"}
