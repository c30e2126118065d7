"""Thoughts as grammars: where they begin, and how they end within a number of tokens."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from homenode.chat.grammars.lark import LarkWriter, escape
from homenode.chat.syntax.reasoning import ThoughtForm, is_open


class ThoughtsBegin(enum.Enum):
    """The beginning of thoughts: the prompt has begun them, the model may, or there are none."""

    OPEN = enum.auto()
    FREE = enum.auto()
    CLOSED = enum.auto()


def thoughts_begin(form: ThoughtForm, prompt: str, begun: str = "") -> ThoughtsBegin:
    """Return how the thoughts of a text behind `prompt` begin, whose end `begun` is the beginning of the answer."""
    if begun.strip():
        return ThoughtsBegin.OPEN if is_open(form, prompt, begun) else ThoughtsBegin.CLOSED
    none = form.begin + form.end if form.tokens else form.end  # whose tokens other turns may end with, too
    if not form.begin or prompt.rstrip().endswith(none):
        return ThoughtsBegin.CLOSED
    return ThoughtsBegin.OPEN if is_open(form, prompt) else ThoughtsBegin.FREE


def open_thoughts(lark: LarkWriter, end: str, budget: int | None, excluded: Sequence[str] = ()) -> str:
    """The name of a rule: thoughts without any of the texts `excluded`, up to the mark `end`, which comes after at most
    `budget` tokens.
    """
    mark = lark.mark(end)
    if budget == 0:
        return lark.rule(mark)
    limits = [] if budget is None else [f"max_tokens={budget}"]
    inside = lark.without(map(escape, [end, *excluded]))
    cut = f"{lark.rule(inside, *limits)} {mark}" if limits or lark.has_token(end) else None
    if lark.has_token(end):
        return lark.rule(f"({cut} | {mark})")
    # At its limit the lexer takes the first terminal that is possible, so that the one which may end there is in front.
    ended = lark.rule(f"{inside} {mark}", *limits, "lazy")
    return lark.rule(f"{cut} | {ended}") if cut else ended
