"""The cores that models of one server lend each other. Pure.

The plan of all models gives each cores of its own, as if all were loaded. A model that is not loaded and that nobody
has asked for in some time lends its cores: they are divided among the loaded models of its node, each of which computes
on them from the next time on that it is loaded. Before the owner is loaded they are given back, for which whoever has
them is loaded again on fewer, once it has no requests. One that is pinned, that settings give CPUs, or that takes turns
with others keeps its cores and gets none, so that it never moves for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from homenode.server.models.model_entry import PlannedModel


@dataclass(frozen=True)
class CoreOwner:
    """A model and its own CPUs. `node`: on which they are; None: it lies on several, or neither lends nor borrows.
    `loaded`: it is, or is to be. `lends_from`: the time from which it lends, if it is not. `lent`: CPUs of others that
    it computes on.
    """

    key: str
    cpus: tuple[int, ...]
    node: int | None
    loaded: bool
    lends_from: float = float("inf")
    lent: frozenset[int] = frozenset()


def lent_cpus(owners: Iterable[CoreOwner], now: float) -> Mapping[str, frozenset[int]]:
    """Return the CPUs beside its own that each loaded model would have if it were loaded now. Whole models' cores are
    dealt, the most first, to who has least so far; what others have more than that they have until they are loaded
    again. The order of `owners` changes nothing.
    """
    owners = list(owners)
    dealt = _deal(owners, now)
    return {
        each.key: dealt.get(each.key, frozenset()).difference(*(other.lent for other in owners if other is not each))
        for each in owners
        if each.loaded
    }


def _deal(owners: Iterable[CoreOwner], now: float) -> dict[str, frozenset[int]]:
    owners = list(owners)
    used = {cpu for each in owners if each.loaded for cpu in each.cpus}  # by versions and places that overlap, too
    known = sorted((each for each in owners if each.node is not None), key=lambda each: each.key)
    lent: dict[str, frozenset[int]] = {}
    for node in sorted({each.node for each in known if each.node is not None}):
        here = [each for each in known if each.node == node]
        takers = [each for each in here if each.loaded]
        lenders = [each for each in here if not each.loaded and each.lends_from <= now and used.isdisjoint(each.cpus)]
        for lender in sorted(lenders, key=lambda each: (-len(each.cpus), each.key)) if takers else ():
            cpus = frozenset(lender.cpus)
            least = min(
                takers,
                key=lambda each: (len(each.cpus) + len(lent.get(each.key, ())), not cpus <= each.lent, each.key),
            )
            lent[least.key] = lent.get(least.key, frozenset()) | cpus
    return lent


def lending_node(planned: PlannedModel) -> int | None:
    """Return the node on which a model lends and borrows; None where it does neither."""
    entry = planned.entry
    stays = entry.pin or entry.cpus or planned.shares_cpus or planned.config.compute.threads is not None
    return None if stays or len(planned.nodes) != 1 else planned.nodes[0]


def lent_alone(models: Sequence[PlannedModel]) -> dict[str, frozenset[int]]:
    """Return the CPUs beside its own that each model has while nobody asks for the others, where there are any."""
    found = {}
    for one in models:
        owners = [
            CoreOwner(
                each.name,
                each.cpus,
                lending_node(each),
                each is one or not each.entry.on_demand,
                0.0 if each.entry.on_demand else float("inf"),
            )
            for each in models
        ]
        if lent := lent_cpus(owners, 0.0)[one.name]:
            found[one.name] = lent
    return found
