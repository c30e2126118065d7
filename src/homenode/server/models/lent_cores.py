"""The cores that models of one server lend each other. Pure.

The plan of all models gives each cores of its own, as if all were loaded. A model that is not loaded and that nobody
has asked for in some time lends its cores: they are divided among the loaded models of its node, each of which computes
on them from the next time on that it is loaded. Before the owner is loaded they are given back, for which whoever has
them is loaded again on fewer, once it has no requests. One that is pinned, that settings give CPUs, or that takes turns
with others keeps its cores and gets none, so that it never moves for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


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
    known = sorted((each for each in owners if each.node is not None), key=lambda each: each.key)
    lent: dict[str, frozenset[int]] = {}
    for node in sorted({each.node for each in known if each.node is not None}):
        here = [each for each in known if each.node == node]
        takers = [each for each in here if each.loaded]
        lenders = [each for each in here if not each.loaded and each.lends_from <= now]
        for lender in sorted(lenders, key=lambda each: (-len(each.cpus), each.key)) if takers else ():
            cpus = frozenset(lender.cpus)
            least = min(
                takers,
                key=lambda each: (len(each.cpus) + len(lent.get(each.key, ())), not cpus <= each.lent, each.key),
            )
            lent[least.key] = lent.get(least.key, frozenset()) | cpus
    return lent
