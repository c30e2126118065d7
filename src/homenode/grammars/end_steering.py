"""Keeps the end of a text that is bound by a grammar within the tokens that are left.

Near the most tokens of an answer each token that was drawn is looked at before it counts: one after which the text
could not be completed any more gives way to the next token of a short end (`short_ends`). What is done depends on the
tokens of the answer only: an answer that is taken up again elsewhere, with its tokens so far, goes on as it would have.

A token brings the end nearer by one token at most, so an end that is out of reach stays so: after a search in vain the
next one waits until few tokens are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from homenode.grammars.short_ends import LONGEST_END, End, ShortEnds

if TYPE_CHECKING:
    from llguidance import LLMatcher

_LOOKS, _NEAR_LOOKS = 512, 16  # of a search, and of one for a path back to the end that was known
_LEAST_LOOKS, _LOOKS_A_TOKEN = 32, 4  # of a search where few tokens are left
_JOINED = (
    32  # tokens that a path may have beyond twice those that are left; those of an end are joined when it is found
)
_ALL_LOOKS = 2048  # of an answer
_ALL_TOKENS = 2**31
_PAUSE = 8  # tokens at least after a search in vain
_SURE = 16  # tokens beyond a known end, with which a token counts whose end was not found
_FARTHER = 16  # tokens by which an end moves away at most with a word in a text
_PATH_LENGTHS = (8, 64, LONGEST_END)  # tokens of the paths of a search, one length after the other


def short_end(ends: ShortEnds, matcher: LLMatcher, looks: int = _LOOKS) -> End | None:
    """Return a short end from where `matcher` is; None where none was found with so many looks, or somewhat more."""
    for longest in _PATH_LENGTHS:
        end, _ = ends.find(matcher, min(looks, 4 * longest), longest=longest)
        if end is not None:
            return end
    return None


def can_be_steered(ends: ShortEnds, matcher: LLMatcher) -> bool:
    """Return whether a matcher of this grammar, which is at its beginning, can take tokens back; llguidance cannot
    where parts have a limit of tokens or texts that stop them.
    """
    copy = matcher.deep_copy()
    token = ends.any_token(copy)
    if token is not None and copy.consume_token(token):
        copy.rollback(1)
    return not copy.is_error()


class _Known(NamedTuple):
    """A record of what is known of an answer's end. `end`: what completes it, None while that is not known; `looks`:
    that may still be taken; `later`: no search before so few tokens are left; `in_words`: whether the end was the same
    before and after the last token, a word, that was looked at; `unseen`: words that came since, and were not looked
    at.
    """

    end: End | None
    looks: int
    later: int = _ALL_TOKENS
    in_words: bool = False
    unseen: int = 0


class EndSteering:
    """The steering of one answer to its end."""

    def __init__(self, ends: ShortEnds, matcher: LLMatcher, left: int, end: End | None = None) -> None:
        """`left`: tokens that may still come. `end`: from where the matcher is, None where that is not known."""
        self._ends, self._known = ends, _Known(end, _ALL_LOOKS)
        if end is None:
            self._known = self._searched(matcher, left, self._known)

    @property
    def end(self) -> End | None:
        """Return what completes the text from where its matcher is, None while that is not known."""
        return self._known.end

    def follow(self, matcher: LLMatcher, token: int, left: int) -> None:
        """The matcher takes `token`, which counts. `left`: tokens that may come after it."""
        if matcher.consume_token(token):
            self._known = self._after(matcher, token, left)

    def admits(self, matcher: LLMatcher, token: int, left: int) -> bool:
        """Return whether the text can be completed with `left` tokens after `token`, or cannot be completed in time
        anyway. If so the matcher has taken it; else nothing has changed.
        """
        if not matcher.consume_token(token):
            return True
        before, after = self._known.end, self._after(matcher, token, left)
        admitted = before is None or len(before) > left + 1 or (after.end is not None and len(after.end) <= left)
        admitted = admitted or (after.end is None and left - len(before or ()) >= _SURE)
        if not admitted:
            matcher.rollback(1)
            if not self._known.unseen or self._ends.completes(matcher, before or ()):
                return False
            matcher.consume_token(token)
        self._known = after
        return True

    def _after(self, matcher: LLMatcher, token: int, left: int) -> _Known:
        """Return what is known after `token`, which the matcher has taken."""
        known, end = self._known, self._known.end
        if matcher.is_accepting():
            return known._replace(end=(), in_words=False, unseen=0)
        if not end:
            return self._searched(matcher, left, known)
        plain = self._ends.is_plain(token)
        if plain and known.in_words and len(end) + _FARTHER * (known.unseen + 1) <= left:
            return known._replace(unseen=known.unseen + 1)
        if not known.unseen and (rest := self._ends.begun(end, token)) is not None:
            return known._replace(end=rest, in_words=False)
        near = self._ends.carried(matcher, end, token)
        in_words, looks = plain and near == end, known.looks
        if near is None:
            near, taken = self._ends.find(matcher, min(_NEAR_LOOKS, looks), end)
            looks -= taken
        if near is not None and (len(near) <= left or len(end) <= left + 1):
            return known._replace(end=near, looks=looks, in_words=in_words, unseen=0)
        found = self._searched(matcher, left, known._replace(end=near, looks=looks, in_words=False, unseen=0))
        lost = found.end is None and len(end) <= left + 1
        return found._replace(later=left - _PAUSE) if lost else found

    def _searched(self, matcher: LLMatcher, left: int, known: _Known) -> _Known:
        """Return what is known with a shorter end, where one is found."""
        if left > known.later:
            return known._replace(end=None)
        most, looks, part = min(_LOOKS, _LEAST_LOOKS + _LOOKS_A_TOKEN * left), known.looks, 2
        for longest in (_JOINED + 2 * left, left):
            found, taken = self._ends.find(matcher, min(most, looks), longest=longest)
            looks -= taken
            if found is not None and len(found) <= left:
                return known._replace(end=found, looks=looks)
            most, part = min(most, 2 * left), part if found is None else 4  # which is out of reach
        return known._replace(end=None, looks=looks, later=min(left // part, left - _PAUSE))
