"""Draws whole conversations: which kinds, how many turns, with or without a system message."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import calendar, homenode, numa, numbers, serving, smalltalk, stories, words, world
from .facts import Topic
from .phrasing import Exchange

Maker = Callable[[random.Random, bool], Exchange]

TOPICS: tuple[Topic, ...] = homenode.TOPICS + numa.TOPICS + serving.TOPICS + smalltalk.TOPICS

# Weights relative to the topics above, of which one counts 1.
_MAKERS: tuple[tuple[Maker, float], ...] = (
    (numbers.add, 24),
    (numbers.subtract, 22),
    (numbers.multiply, 3),
    (numbers.compare, 6),
    (numbers.is_bigger, 5),
    (numbers.count, 7),
    (numbers.neighbour, 6),
    (numbers.even, 2),
    (numbers.sequence, 2),
    (calendar.neighbour, 7),
    (calendar.whole, 1.5),
    (calendar.how_many, 3.5),
    (calendar.ordinal, 2),
    (words.spell, 15),
    (words.letter, 9),
    (words.repeat, 8),
    (words.opposite, 7),
    (words.plural, 6),
    (words.rhyme, 1.5),
    (words.use_in_sentence, 1),
    (world.colour, 6),
    (world.sound, 4),
    (world.capital, 9),
    (world.listing, 5),
    (world.truth, 8),
    (world.has, 3),
    (stories.story, 6),
    (stories.poem, 3),
    (smalltalk.unknown, 8),
    (smalltalk.cannot, 5),
)
_PLAIN_TEXT = 0.05
# Answers that are whole sentences, and so make plain text on their own.
_SENTENCES = (
    world.capital,
    world.colour,
    world.sound,
    words.opposite,
    words.plural,
    calendar.neighbour,
    numbers.neighbour,
)
_SYSTEM_MESSAGES = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are homenode.", "Answer briefly.", "You are a friendly assistant.", "You are a small language model.", "Be kind and brief.", "Answer in English.", "You are a helpful AI assistant.", "Please answer the questions of the user.",
)  # fmt: skip


@dataclass(frozen=True)
class Conversation:
    """The turns of a chat, or, with no turns, a plain text."""

    turns: tuple[Exchange, ...]
    system: str | None = None
    text: str = ""


class Source:
    """An endless, reproducible stream of conversations. `held` draws the wordings kept aside for evaluation."""

    def __init__(self, seed: int, held: bool = False) -> None:
        self._random = random.Random(seed)
        self._held = held
        self._makers: list[Maker] = [topic.exchange for topic in TOPICS] + [maker for maker, _ in _MAKERS]
        self._weights = [topic.weight for topic in TOPICS] + [weight for _, weight in _MAKERS]

    def exchange(self) -> Exchange:
        """One question with its answer."""
        maker = self._random.choices(self._makers, self._weights)[0]
        return maker(self._random, self._held)

    def each_kind(self, count: int) -> list[Exchange]:
        """`count` questions from every maker, for an even evaluation."""
        return [maker(self._random, self._held) for maker in self._makers for _ in range(count)]

    def conversation(self) -> Conversation:
        """A chat of one to ten turns, or plain text."""
        rng = self._random
        if rng.random() < _PLAIN_TEXT:
            return self.plain()
        turns = rng.choices((1, 2, 3, rng.randint(4, 10)), (86, 8, 4, 2))[0]
        system = rng.choice(_SYSTEM_MESSAGES) if rng.random() < 0.08 else None
        exchanges: list[Exchange] = []
        for _ in range(turns):
            previous = exchanges[-1] if exchanges else None
            following = follow_up(rng, previous) if previous is not None and rng.random() < 0.25 else None
            exchanges.append(following or self.exchange())
        return Conversation(tuple(exchanges), system)

    def plain(self) -> Conversation:
        """A text without a chat around it: a story, or a few sentences."""
        return Conversation(
            (), text=stories.plain_story(self._random) if self._random.random() < 0.55 else self._sentences()
        )

    def _sentences(self) -> str:
        """One to three answers without their questions, so that a text begun with one is completed."""
        rng = self._random
        topics = homenode.TOPICS + numa.TOPICS + serving.TOPICS
        chosen = [
            rng.choice(topics).exchange if rng.random() < 0.5 else rng.choice(_SENTENCES)
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        return " ".join(maker(rng, self._held).answer for maker in chosen)


def follow_up(rng: random.Random, previous: Exchange) -> Exchange | None:
    """A short question that is only understood after `previous`, where its kind allows one."""
    if previous.kind == "capital":
        country, city = rng.choice(tuple(world.CAPITALS.items()))
        question = rng.choice(
            ("And of {}?", "What about {}?", "and {}?", "And the capital of {}?", "and what is it for {}?")
        ).format(country)
        return Exchange("capital", question, f"The capital of {country} is {city}.".replace("..", "."), city)
    if previous.kind == "add":
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        question = rng.choice(("And {} + {}?", "and {} plus {}?", "What about {} + {}?", "now {} + {}")).format(a, b)
        return Exchange("add", question, f"{a} + {b} = {a + b}.", str(a + b))
    if previous.kind == "day_after":
        at = rng.randrange(7)
        question = rng.choice(("And after {}?", "What about {}?", "and {}?")).format(calendar.DAYS[at])
        found = calendar.DAYS[(at + 1) % 7]
        return Exchange("day_after", question, f"{found} comes after {calendar.DAYS[at]}.", found)
    if previous.kind in ("greeting", "how_are_you"):
        chosen = next(
            topic
            for topic in TOPICS
            if topic.kind == rng.choice(("how_are_you", "abilities", "identity")) or topic.kind == "identity"
        )
        return chosen.exchange(rng, False)
    return None
