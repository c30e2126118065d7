"""The first message to a worker of a plan."""

from __future__ import annotations

from homenode.engine.channels.messages import Join
from homenode.engine.devices import is_accelerator
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.worker_layout import WorkerPlan, config_of_workers


def join_of(planned: EnginePlan, worker: WorkerPlan) -> Join:
    """The message to a worker that is started for the first time."""
    config, layout, common = planned.config, planned.worker_layout, planned.common
    capacity = planned.node_capacity if planned.executor == "inline" else None
    return Join(
        worker.number,
        0,
        config_of_workers(config, layout),
        worker.device,
        worker.part,
        worker.binding,
        [],
        config.kv.kv_cache_memory if is_accelerator(worker.device) else planned.kv_memory,
        experts=common.group_rank if common is not None and common.memories else None,
        memory_share=planned.assignment.memory_share if planned.executor == "inline" else worker.memory,
        allowed_cpus=list(_allowed(planned)),
        numa_decision=planned.assignment.numa_decision,
        nodes_memory=None if capacity is None else capacity.size,
        texts=planned.checkpoint.files.texts,
        drafts=any(planned.drafting),
    )


def _allowed(planned: EnginePlan) -> tuple[int, ...]:
    """The CPUs that the engine was allowed when it began, where its workers would inherit those that it has moved
    to."""
    if planned.executor == "inline":
        return ()
    if planned.replica:
        return planned.replica.allowed
    return planned.host.allowance.cpus if planned.worker_layout.loop else ()
