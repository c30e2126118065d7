"""The workers of a plan, behind one executor."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.engine.channels.base import Channels, MakeChannels
from homenode.engine.channels.messages import Join
from homenode.engine.devices import is_accelerator
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.worker_process import PROGRAM
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.layout import WorkerPlan, config_of_workers
from homenode.model.spec import ModelSpec


def join_of(planned: EnginePlan, worker: WorkerPlan) -> Join:
    """What a worker of the plan is told first, when it is started for the first time."""
    config, layout, common = planned.config, planned.layout, planned.common
    # The engine has moved to the CPUs of `layout.loop`, which its workers would inherit.
    allowed = planned.replica.allowed if planned.replica else planned.host.allowance.cpus if layout.loop else ()
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
        memory_share=worker.memory,
        allowed_cpus=list(allowed),
        numa_decision=planned.assignment.numa_decision,
    )


def make_executor(
    planned: EnginePlan, make_channels: MakeChannels | None = None, program: str = PROGRAM
) -> ProcessExecutor:
    """The workers of a plan, not started yet. `make_channels` and `program`: what they have in place of shared memory,
    and run.
    """
    config, layout, common = planned.config, planned.layout, planned.common

    def memories_of(worker: WorkerPlan) -> Sequence[int]:
        return () if common is None or not common.memories else (common.memories[worker.number],)

    def shared(generation: int) -> Channels:
        from homenode.engine.channels.shared import SharedChannels  # maps memory by the native core

        return SharedChannels(
            layout.workers, planned.checkpoint.spec.hidden_size, config.scheduler.max_num_batched_tokens
        )

    if config.parallel.executor == "ray" and make_channels is None:
        return _on_ray(planned)
    return ProcessExecutor(
        layout.workers,
        lambda worker: join_of(planned, worker),
        make_channels or shared,
        config.parallel.worker_timeout,
        program,
        experts=_counted(planned),
        memories_of=memories_of,
        exports_kv=config.transfer.on,
    )


def _on_ray(planned: EnginePlan) -> ProcessExecutor:
    from homenode.engine.channels.tcp import TcpChannels
    from homenode.engine.executor.ray import RayLauncher  # needs an extra

    workers, parallel = planned.layout.workers, planned.config.parallel
    launcher = RayLauncher(workers, parallel, planned.replica)

    def channels(generation: int) -> Channels:
        return TcpChannels(workers, generation, launcher.rendezvous.forget)

    return ProcessExecutor(
        workers,
        lambda worker: join_of(planned, worker),
        channels,
        parallel.worker_timeout,
        launch=launcher,
        on_end=launcher.close,
        experts=_counted(planned),
    )


def _counted(planned: EnginePlan) -> ModelSpec | None:
    """The model, if it has experts."""
    return planned.checkpoint.spec if planned.checkpoint.spec.moe else None
