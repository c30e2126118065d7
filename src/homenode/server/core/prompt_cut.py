"""A prompt that is longer than the context, cut by tokens as Ollama does: its first ones stay, what follows is left
out, and its end stays. Pure.

Ollama fills its context with such a prompt, and moves what it holds as the answer comes; here there is room for an
answer instead, as where turns are dropped (`truncation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_ROOM = 4  # an answer has at most this part of the context where a prompt is cut for it


@dataclass(frozen=True)
class PromptCut:
    """`keep`: of its first tokens, not counting one that begins every text; below zero: as many as there is place for.
    `field`: the request's, as whose the tokens that are left out are told."""

    keep: int
    field: str


def room_for_answer(max_tokens: int | None, context: int) -> int:
    """Tokens that are left to an answer of at most `max_tokens`."""
    return min(max_tokens or context, context // _ROOM)


def cut_tokens(
    ids: Sequence[int], cut: PromptCut, *, most: int, context: int, max_tokens: int | None, begins: int = 0
) -> list[int]:
    """All of them where there are at most `most`; else so few that the context has room for an answer. `begins`: tokens
    that begin every text, which the prompt has at its front."""
    if len(ids) <= most:
        return list(ids)
    length = max(1, context - room_for_answer(max_tokens, context))
    keep = length - 1 if cut.keep < 0 else min(cut.keep + begins, length - 1)
    return [*ids[:keep], *ids[len(ids) - length + keep :]]
