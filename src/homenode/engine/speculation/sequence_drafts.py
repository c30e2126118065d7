"""What one sequence drafts from, and what became of it so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from homenode.engine.speculation.acceptance import LOOKUPS, Acceptance, OwnAcceptance, Place, Source, place_of
from homenode.engine.speculation.text_index import MOST_TOKENS, Repetition, TextIndex

_READ_AT_ONCE: Final = 2048  # tokens of a prompt that are looked at in one step
_SMALL: Final = 4096  # tokens of a text that are looked at where there are very many
_LONG: Final = 24  # tokens without anything worth drafting, after which a text is looked at...
_SELDOM: Final = 4  # ...once in so many tokens


class DraftedTokens(NamedTuple):
    """Tokens, and the place of each."""

    tokens: list[int]
    places: list[Place]


_LEAST_OF_OTHERS: Final = 3  # tokens of another answer that have to be repeated
_TOLD_SHARE: Final = 0.15  # of what was told on average, what counts of a new draft
_LEAST_TOLD: Final = 0.12  # tokens
_RENEWAL: Final = 0.002
_NOTHING: Final = DraftedTokens([], [])


class SequenceDrafts:
    """The sources of one sequence. `places`: of the tokens that were drafted last. `counted`: its capacity as
    whoever made it counts it.
    """

    __slots__ = (
        "_answers",
        "_least",
        "_prompt",
        "_shares",
        "_source",
        "_tokens",
        "_told",
        "_worth",
        "counted",
        "places",
    )

    def __init__(
        self,
        tokens: list[int],
        acceptance: Acceptance,
        lookup_min: int,
        answers: TextIndex | None,
        source: Source = "grammar",
        *,
        small: bool = False,
    ) -> None:
        """`tokens`: of the sequence, a list that grows. `lookup_min`: tokens that have to have stood before; 0: nothing
        is looked up. `answers`: to others, in which is looked up, too. `source`: of what workers draft.
        """
        self._tokens, self._least, self._shares = tokens, lookup_min, OwnAcceptance(acceptance)
        try:
            self._prompt = Repetition(TextIndex(tokens, most=_SMALL if small else MOST_TOKENS)) if lookup_min else None
        except MemoryError:
            self._prompt = None
        self._answers = Repetition(answers) if answers is not None else None
        self._source, self._told = source, 1.0
        self._worth = len(tokens)  # when anything was worth drafting
        self.places: list[Place] = []
        self.counted = 0

    @property
    def capacity(self) -> int:
        """Tokens that its own index has memory for."""
        return 0 if self._prompt is None else self._prompt.index.capacity

    def read(self, count: int) -> None:
        """Look at `count` tokens more of the text, or at a few more than that."""
        try:
            if self._prompt is not None:
                self._prompt.index.read_on(max(count, _READ_AT_ONCE))
        except MemoryError:
            self._prompt = None

    def found_worth(self) -> None:
        """Be told that what was found now is worth drafting."""
        self._worth = len(self._tokens)

    def rests(self) -> bool:
        """Return whether nothing is looked up now: in a text of which long nothing was worth drafting that is done
        every few tokens, since each look takes a little of the time of a step.
        """
        return len(self._tokens) - self._worth > _LONG and len(self._tokens) % _SELDOM != 0

    def drafted(self, most: int, expected: Sequence[int] = (), forced: int = 0) -> DraftedTokens:
        """Return at most `most` tokens that should follow those of the sequence. `expected`: those that workers
        drafted, of which the first `forced` follow from a grammar.
        """
        if most <= 0:
            return _NOTHING
        try:
            found = self._looked_up(most)
        except MemoryError:  # a guess is nothing that a request waits for, and its memory comes first
            self._prompt, self._answers, found = None, None, _NOTHING
        if not expected:
            return found
        of_model = DraftedTokens(
            list(expected[:most]),
            [place_of("grammar" if n < forced else "model", n) for n in range(min(most, len(expected)))],
        )
        first = min(forced, len(of_model.tokens))
        if found.tokens[:first] == of_model.tokens[:first]:
            found = DraftedTokens(found.tokens, of_model.places[:first] + found.places[first:])
        elif first:
            return of_model
        return max(found, of_model, key=lambda each: sum(self.chances(each)))

    def told(self, count: int) -> None:
        """Workers were asked for drafts, and told so many tokens."""
        self._told += _TOLD_SHARE * (count - self._told)

    def is_worth_asking(self) -> bool:
        """Return whether workers tell enough to be asked again; after a while they are in any case."""
        if self._told >= _LEAST_TOLD:
            return True
        self._told += _RENEWAL
        return False

    def expected_chances(self, most: int) -> list[float]:
        """Return the chance of each token of the draft that workers are about to tell."""
        number = min(most, math.ceil(self._told))
        chances = self.chances(DraftedTokens([], [place_of(self._source, n) for n in range(number)]))
        return [chance * min(1.0, self._told - n) for n, chance in enumerate(chances)]

    def model_chances(self, most: int) -> list[float]:
        """Return the chance of each token of a draft that a model makes."""
        return self.chances(DraftedTokens([], [place_of("model", number) for number in range(most)]))

    def chances(self, drafted: DraftedTokens) -> list[float]:
        """Return the chance that each of these tokens, and all before it, are accepted."""
        chance, found = 1.0, []
        for place in drafted.places:
            chance *= self._shares.share(place)
            found.append(chance)
        return found

    def learn(self, drafted: int, accepted: int) -> None:
        """Take in that the first `accepted` of `drafted` tokens, those that were drafted last, were right. What was
        looked up tells that itself, whether it was drafted or not.
        """
        for number, place in enumerate(self.places[: min(drafted, accepted + 1)]):
            if place[0] not in LOOKUPS:
                self._shares.learn(place, number < accepted)

    def _looked_up(self, most: int) -> DraftedTokens:
        """Return what followed where the most tokens of the end of the text stood before."""
        best: Repetition | None = None
        source: Source = "prompt"
        if self._prompt is not None and self._prompt.index.is_crowded:
            self._prompt = Repetition(TextIndex(self._tokens, len(self._tokens)))
        own, others = self._prompt, self._answers
        if own is not None and own.index.read_on(_READ_AT_ONCE):
            if own.follow(self._tokens, self._least):
                best = own
            self._take_outcomes("prompt", own)
        if others is not None:
            others.index.read_on(_READ_AT_ONCE)
        repeated = others is not None and others.follow(self._tokens, max(_LEAST_OF_OTHERS, self._least))
        if others is not None:
            self._take_outcomes("answers", others)
        if others is not None and repeated and (best is None or others.length > best.length + 2):
            best, source = others, "answers"
        if best is None:
            return _NOTHING
        found = best.following(most)
        return DraftedTokens(found, [place_of(source, best.length + n) for n in range(len(found))])

    def _take_outcomes(self, source: Source, repetition: Repetition) -> None:
        for number, right in repetition.outcomes:
            self._shares.learn(place_of(source, number), right)
        repetition.outcomes.clear()
