"""How often drafted tokens are accepted, measured: by source and place for all requests, and for each by itself.

A place says how sure a source is: of a repetition how many tokens it has, of a model how many it has drafted already.
What is said is the share of drafted tokens that are accepted where all before them were. Older ones fade. A sequence of
which little is known is expected to be like the others, others like what is usual.
"""

from __future__ import annotations

from typing import Final, Literal

Source = Literal["prompt", "answers", "model", "grammar"]
SOURCES: Final[tuple[Source, ...]] = ("prompt", "answers", "model", "grammar")
LOOKUPS: Final[tuple[Source, ...]] = ("prompt", "answers")  # of which each token of a text tells whether it was right
Place = tuple[Source, int]

_LONGEST: Final = 14
_BELIEF: Final = 4.0  # tokens that what is usual counts for
_BELIEF_OF_ALL: Final = 2.0  # tokens that what all requests say counts for in one that is measured with each token
_KEPT: Final = 0.985  # of what all requests say, from one drafted token to the next...
_KEPT_OF_ONE: Final = 0.9  # ...and of what one says
_FADING: Final = 0.995
_USUAL: Final = {"prompt": 0.5, "answers": 0.4, "model": 0.6, "grammar": 0.9}


def place_of(source: Source, number: int) -> Place:
    """Return the place of a token behind a repetition of `number` tokens, or behind so many drafted ones."""
    if number < 4:
        return source, number
    bits = number.bit_length()
    return source, min(_LONGEST, 2 * bits - 2 + (number >> (bits - 2) & 1))


class _AcceptanceCounts:
    """Drafted tokens and those accepted of them, fading."""

    __slots__ = ("accepted", "drafted")

    def __init__(self) -> None:
        self.drafted = self.accepted = 0.0

    def add(self, accepted: bool, kept: float) -> None:
        self.drafted = kept * self.drafted + 1.0
        self.accepted = kept * self.accepted + accepted

    def estimate(self, usual: float, belief: float) -> float:
        return (self.accepted + belief * usual) / (self.drafted + belief)


class Acceptance:
    """The shares of all requests."""

    def __init__(self) -> None:
        self._shares: dict[Place, _AcceptanceCounts] = {}

    def share(self, place: Place) -> float:
        """Return what is expected of a drafted token."""
        source, number = place
        usual = _USUAL[source]
        if source in LOOKUPS:
            usual += (0.97 - usual) * number / _LONGEST
        known = self._shares.get(place)
        return usual if known is None else known.estimate(usual, _BELIEF)

    def learn(self, place: Place, accepted: bool) -> None:
        """Take in what became of one."""
        if place not in self._shares:
            self._shares[place] = _AcceptanceCounts()
        self._shares[place].add(accepted, _KEPT)

    def fade(self, place: Place) -> None:
        """A token could have been drafted there and was not: what is known grows old, so that it is tried again. What
        is looked up is measured all the same.
        """
        if place[0] not in LOOKUPS and (known := self._shares.get(place)) is not None:
            known.drafted *= _FADING
            known.accepted *= _FADING

    def shares(self) -> dict[Place, tuple[float, float]]:
        """Return by place what is expected, and of how many drafted tokens of late it follows."""
        return {place: (self.share(place), known.drafted) for place, known in sorted(self._shares.items())}


class OwnAcceptance:
    """The shares of one sequence: by source, and whether little or much is repeated."""

    __slots__ = ("_all", "_own")

    def __init__(self, of_all: Acceptance) -> None:
        self._all = of_all
        self._own: dict[tuple[Source, bool], _AcceptanceCounts] = {}

    def share(self, place: Place) -> float:
        """Return what is expected of a drafted token."""
        usual = self._all.share(place)
        known = self._own.get((place[0], place[1] > 5))
        return usual if known is None else known.estimate(usual, _BELIEF_OF_ALL if place[0] in LOOKUPS else _BELIEF)

    def learn(self, place: Place, accepted: bool) -> None:
        """Take in what became of one."""
        self._all.learn(place, accepted)
        key = (place[0], place[1] > 5)
        if key not in self._own:
            self._own[key] = _AcceptanceCounts()
        self._own[key].add(accepted, _KEPT_OF_ONE)
