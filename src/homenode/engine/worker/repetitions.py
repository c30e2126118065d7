"""DRY: what is taken from the logits of tokens that would go on with a repetition ("don't repeat yourself", by p-e-w).

The longest end of the text that stood somewhere before was followed there by some token: if that token came now, the
repetition would be one longer. A repetition of n tokens costs multiplier * base ** (n - allowed length).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import NO_TOKEN, FloatArray, IntArray
from homenode.sampling import SamplingParams

_LONGEST = 50  # tokens of a repetition that are counted: the penalty is beyond all logits long before
_LARGEST_PENALTY = 1e6


class RepetitionPenalty:
    """One sequence under DRY: its tokens so far, and what they cost the next ones."""

    def __init__(self, params: SamplingParams, tokens: IntArray) -> None:
        self._multiplier, self._base, self._allowed = params.dry_multiplier, params.dry_base, params.dry_allowed_length
        self._window = params.dry_penalty_last_n
        # Where a row stands in place of an embedding there is no token to repeat.
        self._breakers = frozenset(params.dry_breaker_ids) | {NO_TOKEN}
        self._tokens: IntArray = tokens.astype(np.int32)
        self._length = len(tokens)

    def add(self, token: int) -> None:
        """A token that was drawn."""
        if self._length == len(self._tokens):
            larger = np.zeros(2 * self._length + 16, np.int32)
            larger[: self._length] = self._tokens
            self._tokens = larger
        self._tokens[self._length] = token
        self._length += 1

    def penalties(self) -> tuple[IntArray, FloatArray]:
        """Tokens, and what is added to their logits, below 0. O(tokens + ends of equal tokens * length of
        repetitions)."""
        tokens = self._tokens[max(0, self._length - self._window) if self._window >= 0 else 0 : self._length]
        last = len(tokens) - 1
        if last < 1 or int(tokens[last]) in self._breakers:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        ends = np.flatnonzero(tokens[:last] == tokens[last])  # each is followed by a token
        lengths = self._lengths(tokens, ends)
        counted = lengths >= max(1, self._allowed)
        found, costs = tokens[ends[counted] + 1], lengths[counted]
        longest: dict[int, int] = {}
        for token, length in zip(found.tolist(), costs.tolist(), strict=True):
            if token not in self._breakers:
                longest[token] = max(length, longest.get(token, 0))
        values = [
            -min(_LARGEST_PENALTY, self._multiplier * self._base ** (length - self._allowed))
            for length in longest.values()
        ]
        return np.array(list(longest), np.int32), np.array(values, np.float32)

    def _lengths(self, tokens: IntArray, ends: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return how many tokens up to each of `ends` are those up to the last."""
        lengths, last = np.ones(len(ends), np.intp), len(tokens) - 1
        alive = np.arange(len(ends))
        for back in range(1, min(_LONGEST, last + 1)):
            if int(tokens[last - back]) in self._breakers:
                break
            alive = alive[ends[alive] >= back]
            alive = alive[tokens[ends[alive] - back] == tokens[last - back]]
            if not len(alive):
                break
            lengths[alive] += 1
        return lengths
