"""An engine's plan where this process may bind no thread to CPUs: compute threads run anywhere, no memory is bound to
nodes that they may not be on, and nobody is told to keep clear of CPUs that it does not hold. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.engine.binding import EngineBinding
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.worker_layout import WorkerLayout
from homenode.errors import UserError
from homenode.host.topology.finding import Finding


def unbound(binding: EngineBinding, refusal: Finding | None) -> EngineBinding:
    """The place as it can be where `refusal` is what binding threads comes to; as it is where that is None.

    Raises UserError where pages that are not where they belong are a reason not to serve.
    """
    if refusal is None:
        return binding
    if binding.strict:
        raise UserError(
            f"--numa-strict cannot be met: {refusal.message}. {refusal.remedy} Or leave out --numa-strict",
            param="numa_strict",
        )
    return replace(
        binding,
        team=(UNPINNED,) * len(binding.team),
        others=(),
        spare=(),
        sets=(),
        roles=None,
        memory_nodes=(),
        numa=None,
        numa_why="",
        thread_memory=(),
        mirror_tensors=(),
        workers=tuple(unbound(worker, refusal) for worker in binding.workers),
    )


def unbound_layout(layout: WorkerLayout, refusal: Finding | None) -> WorkerLayout:
    """The same of all workers of an engine, which then share CPUs as the kernel has them."""
    if refusal is None:
        return layout
    workers = tuple(replace(worker, binding=unbound(worker.binding, refusal)) for worker in layout.workers)
    return replace(layout, workers=workers, loop=())
