"""Wordings: patterns with alternatives, and the small ways in which people write the same question differently.

A pattern is a sentence such as "(what is|what's) the capital of {country}": a round bracket holds alternatives (they may nest and may be
empty), a curly bracket names a slot. `ask` picks a pattern, expands it, varies opener, case and punctuation, and fills the slots last, so
that a word to be spelled or repeated is never changed by accident.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

_INNERMOST = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")

_OPENERS = (
    "(hi|hello|hey)(,|!|.|)", "please", "please tell me:", "can you tell me:", "(a |one |)quick question:", "i have a question:", "question:",
    "tell me,", "tell me:", "(ok|okay|alright|so|well)(,|)", "now", "i would like to know:", "could you help me?", "help me:",
    "i am curious:", "(good morning|good evening)(.|!|,)", "next question:", "one more:", "can you help me with this?", "excuse me,",
)  # fmt: skip
_CLOSERS = (
    "(,|) please", "(,|.|) thanks", ", thank you", "in one sentence", "briefly", "for me", "in a few words", "in short", "now", ", can you tell me",
)  # fmt: skip


@dataclass(frozen=True)
class Exchange:
    """One question, the answer to learn, and a regular expression (searched, case ignored) that any right answer matches."""

    kind: str
    question: str
    answer: str
    accept: str


@dataclass(frozen=True)
class Wordings:
    """The patterns of a kind: those trained on, and those kept aside for evaluation."""

    train: Sequence[str]
    held: Sequence[str]

    def of(self, held: bool) -> Sequence[str]:
        return self.held if held else self.train


def expand(rng: random.Random, pattern: str) -> str:
    """`pattern` with every bracket replaced by one of its alternatives, and spaces tidied."""
    while True:
        opened = _INNERMOST.sub(lambda match: rng.choice(match.group(1).split("|")), pattern)
        if opened == pattern:
            return " ".join(opened.split())
        pattern = opened


def ask(rng: random.Random, patterns: Sequence[str], keep: Sequence[str] = (), **slots: object) -> str:
    """A question from one of `patterns`. Slots named in `keep` are filled in exactly; the others follow the case of the sentence."""
    text = expand(rng, rng.choice(patterns))
    if rng.random() < 0.2:
        text = expand(rng, rng.choice(_OPENERS)) + " " + text
    if rng.random() < 0.1:
        closer = expand(rng, rng.choice(_CLOSERS))
        text = text.rstrip(".!?") + ("" if closer[0] in ",." else " ") + closer
    if rng.random() < 0.06:
        text = _mistype(rng, text)
    values = {name: str(value) for name, value in slots.items()}
    style = rng.random()
    if style < 0.35:
        text = _lower(text)
        values = {name: value if name in keep else value.lower() for name, value in values.items()}
    elif style < 0.38:
        text = "".join(part if _SLOT.fullmatch(part) else part.upper() for part in re.split(r"(\{\w+\})", text))
        values = {name: value if name in keep else value.upper() for name, value in values.items()}
    filled = _SLOT.sub(lambda match: values[match.group(1)], text)
    return _finish(rng, filled if style < 0.38 or text.startswith("{") else filled[0].upper() + filled[1:])


def _lower(text: str) -> str:
    return "".join(part if _SLOT.fullmatch(part) else part.lower() for part in re.split(r"(\{\w+\})", text))


def _finish(rng: random.Random, text: str) -> str:
    """Ends the sentence as people do: a question mark after a question mostly, a full stop after a request sometimes."""
    if text[-1] in ".!?:\"'":
        return text
    asks = re.match(
        r"(?:.*[,:!.?] )?(what|who|why|how|when|where|which|is|are|do|does|can|could|would|will|did|if)\b",
        text,
        re.IGNORECASE,
    )
    end = rng.choice(("?", "?", "?", "?", "", "", " ?", "??") if asks else (".", ".", ".", "", "", "", "!", "?"))
    return text + end


def _mistype(rng: random.Random, text: str) -> str:
    """One slip of the fingers in one longer word outside the slots."""
    words = text.split(" ")
    long = [place for place, word in enumerate(words) if len(word) >= 5 and word.isalpha()]
    if not long:
        return text
    place = rng.choice(long)
    word = words[place]
    at = rng.randrange(1, len(word) - 1)
    slips = (
        word[:at] + word[at + 1 :],
        word[:at] + word[at] + word[at:],
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
    )
    words[place] = rng.choice(slips)
    return " ".join(words)


def article(noun: str) -> str:
    """`noun` with the indefinite article in front."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def word_pattern(*words: str) -> str:
    """A regular expression that wants every one of `words`, whole, anywhere in the answer."""
    return "".join(rf"(?=[\s\S]*(?<!\w){re.escape(word)}(?!\w))" for word in words)
