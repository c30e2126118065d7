"""Drafted tokens of bound answers: where a grammar leaves one text only, its tokens are known before they are drawn.

Which tokens spell that text is the model's choice, and stays it: they are drafted as its vocabulary would mostly cut
them, and drawn all the same. The last one is left out, since what follows may belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from homenode.engine.step import Advance, StepItem
from homenode.engine.worker.sequences import SequenceTable

if TYPE_CHECKING:
    from homenode.engine.worker.grammar_masks import GrammarMasks


def add_forced_drafts(
    items: Sequence[StepItem], advances: Sequence[Advance], grammars: GrammarMasks, table: SequenceTable
) -> list[Advance]:
    """Return the advances of a step with what their grammars force behind them, as far as items ask for that."""
    wanted = {item.seq: item.expected for item in items if item.expected and item.draws}
    found = list(advances)
    for index, advance in enumerate(advances):
        slot = table.find(advance.seq)
        if advance.seq in wanted and advance.tokens and slot is not None:
            forced = tuple(grammars.forced_after(slot, table, wanted[advance.seq]))
            if forced:
                found[index] = structs.replace(advance, drafted=forced, forced_drafts=len(forced))
    return found
