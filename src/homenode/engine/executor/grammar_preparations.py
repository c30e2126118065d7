"""Grammars that workers are told to have ready: which are on their way, and who is to hear when they are there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from homenode.engine.worker.grammar_masks import MOST_KEPT


@dataclass
class _Preparation:
    grammar: str
    missing: set[int]  # workers that have not answered
    ready: Callable[[], None]


class GrammarPreparations:
    """Preparations of all workers that draw tokens. Pure, but for the callbacks; for one thread at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()  # that all workers have, as far as is known here
        self._on_the_way: dict[int, _Preparation] = {}
        self._count = 0

    def is_known(self, grammar: str) -> bool:
        """Return whether all workers were told of it, have answered, and keep it still."""
        known = grammar in self._known
        if known:
            self._known.move_to_end(grammar)
        return known

    def begin(self, grammar: str, workers: Collection[int], ready: Callable[[], None]) -> int:
        """A number for the question that these workers are asked; `ready` is called when the last has answered."""
        self._count += 1
        self._on_the_way[self._count] = _Preparation(grammar, set(workers), ready)
        return self._count

    def answered(self, number: int, worker: int) -> None:
        """A worker has it ready. Questions that were forgotten are ignored."""
        asked = self._on_the_way.get(number)
        if asked is None:
            return
        asked.missing.discard(worker)
        if not asked.missing:
            del self._on_the_way[number]
            self._known[asked.grammar] = None
            if len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
            asked.ready()

    def forget(self) -> None:
        """Workers were lost: nobody waits any more, and whoever comes in their places knows nothing."""
        waiting, self._on_the_way = self._on_the_way, {}
        self._known.clear()
        for each in waiting.values():
            each.ready()
