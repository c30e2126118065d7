"""Experts that several engines of one host keep in common: who owns which, and what is in memory already.

Workers of the same number in D engines have the same experts (`ModelPart.experts`). Each of the D owns some of them,
which it reads, packs and so first touches on its own node; the others map what it made, and read it in place. Memory
that they share outlives each of them (`expert_memory`); dense matrices stay each engine's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from homenode.compute.ops import Backend, SharingBackend
from homenode.model.part import ModelPart
from homenode.model.weights.expert_header import STATE_READY, WORD_BYTES, state_of, state_word
from homenode.model.weights.layout import WeightLayout


@dataclass(frozen=True)
class ExpertShare:
    """A worker's place among those that keep experts in common. The memfd is not closed by who gets this.

    `fd`: a memfd sealed against shrinking, of one page of zeros when nobody has used it yet. `timeout_s`: how long to
    wait for the other members.
    """

    fd: int
    member: int
    members: int
    timeout_s: float = 3600.0


def shares_experts(backend: Backend) -> bool:
    """Return whether this backend can keep experts in common with others; where not, every engine has all of them."""
    return isinstance(backend, SharingBackend)


def expert_owners(layout: WeightLayout, part: ModelPart, members: int) -> Mapping[str, int]:
    """The member that owns each matrix kept in common, by its name; a matrix that is missing everybody has for himself.

    Experts are given out in turn, layer after layer, in the order the part has them: so in every layer and in all no
    member has more than one more than another. An expert's matrices are together.
    """
    owned = expert_owners_of(part, members)
    return {
        m.name: owned[m.layer, m.expert].owner for m in layout.matrices if m.layer is not None and m.expert is not None
    }


@dataclass(frozen=True, slots=True)
class ExpertOwner:
    """The owner of an expert; and `turn`, how many of its layer the owner has that come before it."""

    owner: int
    turn: int


def expert_owners_of(part: ModelPart, members: int) -> dict[tuple[int, int], ExpertOwner]:
    """Return the owner for each layer and expert of a part."""
    before = accumulate(map(len, part.experts), initial=0)
    return {
        (layer, expert): ExpertOwner((count + place) % members, place // members)
        for layer, (count, experts) in enumerate(zip(before, part.experts, strict=False), part.layers.first)
        for place, expert in enumerate(experts)
    }


def own_bytes(layout: WeightLayout, part: ModelPart, member: int, members: int) -> int:
    """Bytes that a member takes in memory: its share of the experts, and all that is not shared. Where kernels pad, it
    is a little more.
    """
    owners = expert_owners(layout, part, members)
    return layout.vector_bytes + sum(m.target_bytes for m in layout.matrices if owners.get(m.name, member) == member)


def share_ready(fd: int, member: int) -> bool:
    """Return whether the share of this member is in the memory already, or it has come to know that it has none; False
    for memory that nobody has used.
    """
    word = os.pread(fd, WORD_BYTES, WORD_BYTES * state_word(member))
    return len(word) == WORD_BYTES and state_of(int.from_bytes(word, sys.byteorder)).state == STATE_READY
