"""Pools of a plan as people write them, for comparisons in tests."""

from __future__ import annotations

from homenode.cpuset import format_cpu_list
from homenode.host.plan.plan import Plan


def pools_of(plan: Plan) -> dict[int, str]:
    """CPU list by device."""
    return {device: format_cpu_list(cpus) for device, cpus in plan.pools.items()}


def roles_of(plan: Plan, local_rank: int = 0) -> dict[str, str]:
    """CPU list by role of one worker."""
    worker = plan.worker_of(local_rank)
    assert worker is not None
    return {role: format_cpu_list(cpus) for role, cpus in worker.roles.items()}


def memory_of(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Memory nodes by device."""
    return {worker.device: worker.memory_nodes for worker in plan.workers}


def codes_of(plan: Plan) -> list[str]:
    """Codes of its findings."""
    return [finding.code for finding in plan.findings]
