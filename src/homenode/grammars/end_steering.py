"""Keeps the end of a text that is bound by a grammar within the tokens that are left.

Near the most tokens of an answer each token that was drawn is looked at before it counts: one after which the text
could not be completed any more gives way to the next token of a short end (`short_ends`). What is done depends on the
tokens of the answer only: an answer that is taken up again elsewhere, with its tokens so far, goes on as it would have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from homenode.grammars.short_ends import End, ShortEnds

if TYPE_CHECKING:
    from llguidance import LLMatcher

_LOOKS, _NEAR_LOOKS = 512, 16  # of a search, and of one for a way back to the end that was known
_LEAST_LOOKS, _LOOKS_A_TOKEN = 32, 4  # of a search where few tokens are left
_ALL_LOOKS = 2048  # of an answer
_PAUSE = 8  # tokens after a search in vain, or with an end that is too far away
_SURE = 16  # tokens beyond a known end, with which a token counts whose end was not found


def ends_from(ends: ShortEnds, matcher: LLMatcher, looks: int = _LOOKS) -> int:
    """Tokens of a short end from where `matcher` is; 0 where none was found with so many looks."""
    return 0 if matcher.is_accepting() else len(ends.find(matcher, looks)[0] or ())


def can_be_steered(ends: ShortEnds, matcher: LLMatcher) -> bool:
    """Whether a matcher of this grammar, which is at its beginning, can take tokens back; llguidance cannot where parts
    have a limit of tokens or texts that stop them.
    """
    copy = matcher.deep_copy()
    token = ends.any_token(copy)
    if token is not None and copy.consume_token(token):
        copy.rollback(1)
    return not copy.is_error()


class EndSteering:
    """Of one answer. `end`: what completes it from where its matcher is, None while that is not known."""

    def __init__(self, ends: ShortEnds, matcher: LLMatcher, left: int) -> None:
        """`left`: tokens that may still come."""
        self._ends, self._looks, self._pause = ends, _ALL_LOOKS, 0
        self.end: End | None = () if matcher.is_accepting() else self._search(matcher, left)

    def follow(self, matcher: LLMatcher, token: int, left: int) -> None:
        """The matcher takes `token`, which counts. `left`: tokens that may come after it."""
        if matcher.consume_token(token):
            self.end = self._end_after(matcher, token, left)

    def admits(self, matcher: LLMatcher, token: int, left: int) -> bool:
        """Whether the text can be completed with `left` tokens after `token`, or cannot be completed in time anyway. If
        so the matcher has taken it; else nothing has changed.
        """
        before = self.end, self._looks, self._pause
        if not matcher.consume_token(token):
            return True
        self.end = self._end_after(matcher, token, left)
        end = before[0]
        if end is None or len(end) > left + 1 or (self.end is not None and len(self.end) <= left):
            return True
        if self.end is None and left - len(end) >= _SURE:
            return True
        self.end, self._looks, self._pause = before
        matcher.rollback(1)
        return False

    def _end_after(self, matcher: LLMatcher, token: int, left: int) -> End | None:
        self._pause = max(0, self._pause - 1)
        if matcher.is_accepting():
            return ()
        if not self.end:
            return self._search(matcher, left)
        near = self._ends.carried(matcher, self.end, token)
        if near is None:
            near, looks = self._ends.find(matcher, min(_NEAR_LOOKS, self._looks), self.end)
            self._looks -= looks
        return near if near is not None and len(near) <= left else self._search(matcher, left) or near

    def _search(self, matcher: LLMatcher, left: int) -> End | None:
        if self._pause:
            return None
        # Ways that are much longer than what is left end nothing; tokens of an end may be joined when it is found.
        most = min(_LOOKS, self._looks, _LEAST_LOOKS + _LOOKS_A_TOKEN * left)
        found, looks = self._ends.find(matcher, most, longest=_LEAST_LOOKS + 2 * left)
        self._looks -= looks
        if found is None or len(found) > left:
            self._pause = _PAUSE
        return found
