"""The memory that engines take which keep experts in common: of the experts each keeps its share, and reads the others'
where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from homenode.engine.experts.group import ExpertGroupRank
from homenode.model.part import ModelPart
from homenode.model.weights.expert_share import ExpertShare, expert_owners, share_ready
from homenode.model.weights.layout import OtherParts, WeightLayout


@dataclass(frozen=True)
class ExpertSharing:
    """The seat of an engine. `memories`: the memfd of each of its workers, by their numbers; empty while settings are
    only looked at.
    """

    group_rank: ExpertGroupRank
    memories: Mapping[int, int] = field(default_factory=dict)

    def share(self, worker: int) -> ExpertShare:
        """Return what a worker loads with."""
        return ExpertShare(self.memories[worker], self.group_rank.member, self.group_rank.members)

    def owners(self, layout: WeightLayout, part: ModelPart) -> Mapping[str, int]:
        """Return who keeps each matrix that is not everybody's own."""
        return expert_owners(layout, part, self.group_rank.members)

    def is_there(self, worker: int) -> bool:
        """Return whether the worker's share is in memory already: it had been filled before the worker, or its engine,
        was started again.
        """
        memory = self.memories.get(worker)
        return memory is not None and share_ready(memory, self.group_rank.member)


@dataclass(frozen=True)
class Kept:
    """Bytes of a worker's weights that it keeps itself: `own`, of which `resident` are in memory already. `common`: of
    experts that others keep.
    """

    own: int
    resident: int = 0
    common: int = 0


def kept_of(layout: WeightLayout, part: ModelPart, experts: ExpertSharing | None, worker: int = 0) -> Kept:
    """Return what a worker of this number keeps of the matrices that it computes with."""
    if experts is None:
        return Kept(layout.target_bytes)
    own = own_layout(layout, part, experts).target_bytes
    resident = own - missing_layout(layout, part, experts, worker).target_bytes
    return Kept(own, resident, layout.target_bytes - own)


def own_layout(layout: WeightLayout, part: ModelPart, experts: ExpertSharing | None) -> WeightLayout:
    """The matrices that a worker keeps itself."""
    if experts is None:
        return layout
    owners, member = experts.owners(layout, part), experts.group_rank.member
    return _less(layout, {name for name, owner in owners.items() if owner != member})


def missing_layout(
    layout: WeightLayout, part: ModelPart, experts: ExpertSharing | None, worker: int = 0
) -> WeightLayout:
    """Return, of them, those that memory is still to be taken for."""
    if experts is None or not experts.is_there(worker):
        return own_layout(layout, part, experts)
    return _less(layout, set(experts.owners(layout, part)))


def _less(layout: WeightLayout, names: set[str]) -> WeightLayout:
    left = tuple(m for m in layout.matrices if m.name not in names)
    rest = [m for m in layout.matrices if m.name in names]
    float32 = layout.other_parts.float32 and all(m.target == "F32" for m in rest)
    return replace(
        layout, matrices=left, other_parts=OtherParts((*layout.other_parts.names, *(m.name for m in rest)), float32)
    )
