"""The group of engines of a service that keep the experts of a model in common, and an engine's place in it. Pure.

With --enable-expert-parallel the workers of one number, one of each engine, have their experts in the same memory: each
reads some of them from the files, and all compute with all. That takes one host and the native core; elsewhere every
engine has all experts, which is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.engine.assignment import EngineAssignment
from homenode.engine.experts.usage_file import counts_problem
from homenode.errors import UserError
from homenode.host.topology.finding import Finding
from homenode.model.parts import check_experts
from homenode.model.spec import ModelSpec
from homenode.units import format_count


@dataclass(frozen=True)
class ExpertGroupRank:
    """`member` of the `members` engines that keep experts in common."""

    member: int
    members: int


def wants_shared_experts(assignment: EngineAssignment) -> bool:
    """Return whether the settings of one of several engines ask for experts in common and nothing in them is against
    it. Devices may be.
    """
    config = assignment.config
    return _asked(assignment) and config.parallel.executor != "ray" and config.compute.backend == "native"


def expert_group_rank(assignment: EngineAssignment, devices: Sequence[Sequence[str]]) -> ExpertGroupRank | None:
    """The engine's seat; None where it has all experts to itself. `devices`: of the workers of every engine of the
    service.
    """
    replica = assignment.replica
    return (
        None
        if replica is None or not wants_shared_experts(assignment) or not _all_native(devices)
        else ExpertGroupRank(replica.number, replica.count)
    )


def not_in_common(assignment: EngineAssignment, devices: Sequence[Sequence[str]]) -> tuple[Finding, ...]:
    """Return what to tell where experts were to be kept in common and cannot be."""
    if not _asked(assignment) or expert_group_rank(assignment, devices) is not None:
        return ()
    config = assignment.config
    if config.parallel.executor == "ray":
        why = "the workers of --executor ray may be on several hosts"
    elif config.compute.backend != "native":
        why = f"--backend {config.compute.backend} takes memory of its own for weights"
    else:
        why = f"PyTorch computes on {', '.join(sorted(_others(devices)))}"
    count = assignment.replica.count if assignment.replica else 1
    message = f"--enable-expert-parallel: each of the {format_count(count, 'engine')} keeps all experts, as {why}"
    return (Finding("warning", "experts_not_in_common", message, "Engines of CPU workers on one host keep them once."),)


def expert_problem(assignment: EngineAssignment, spec: ModelSpec) -> UserError | None:
    """Return why the engines of a service cannot keep the experts of this model in common, or divide them at all."""
    try:
        if _asked(assignment):
            check_experts(spec, assignment.config.parallel.tensor_parallel_size)
    except UserError as error:
        return error
    return None


def expert_settings_problem(assignment: EngineAssignment, spec: ModelSpec) -> UserError | None:
    """Return what is asked of experts and this model has not."""
    return expert_problem(assignment, spec) or counts_problem(assignment.config.parallel.expert_counts, spec)


def _asked(assignment: EngineAssignment) -> bool:
    several = assignment.replica is not None and assignment.replica.count > 1
    return assignment.config.parallel.enable_expert_parallel and several


def _all_native(devices: Sequence[Sequence[str]]) -> bool:
    return not _others(devices)


def _others(devices: Sequence[Sequence[str]]) -> set[str]:
    return {device.removeprefix("torch:") for engine in devices for device in engine if device != "cpu"}
