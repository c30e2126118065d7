"""Pools of a plan as people write them, for comparisons in tests."""

from __future__ import annotations

from homenode.cpuset import format_cpu_list
from homenode.host.placement.plan import Plan


def pools_of(plan: Plan) -> dict[int, str]:
    """CPU list by device."""
    return {device: format_cpu_list(cpus) for device, cpus in plan.pools.items()}
