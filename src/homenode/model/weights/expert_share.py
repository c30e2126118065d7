"""INTERIM, until the seam is merged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from homenode.compute.ops import Backend
from homenode.model.part import ModelPart
from homenode.model.weights.layout import WeightLayout


@dataclass(frozen=True)
class ExpertShare:
    """A worker's seat among those that keep experts in common. The memfd is not closed by who gets this."""

    fd: int
    member: int
    members: int
    timeout_s: float = 3600.0


def shares_experts(backend: Backend) -> bool:
    return False


_EXPERT = re.compile(r"\.layers\.(\d+)\..*\.experts\.(\d+)\.")


def expert_owners(layout: WeightLayout, part: ModelPart, members: int) -> Mapping[str, int]:
    found = {}
    for m in layout.matrices:
        if (seen := _EXPERT.search(m.name)) is not None:
            layer, expert = int(seen[1]), int(seen[2])
            at = part.experts[layer - part.layers.first].index(expert)
            before = sum(len(e) for e in part.experts[: layer - part.layers.first])
            found[m.name] = (at + before) % members
    return found


def own_bytes(layout: WeightLayout, part: ModelPart, member: int, members: int) -> int:
    owners = expert_owners(layout, part, members)
    return sum(m.target_bytes for m in layout.matrices if owners.get(m.name, member) == member) + layout.vector_bytes


def share_ready(fd: int, member: int) -> bool:
    return False
