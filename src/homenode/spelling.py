"""The word, of several known ones, that somebody may have meant by one that is not among them."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 64  # characters; what is longer is no mistyped word, and comparing takes time that grows with the square
_MOST = 3  # words suggested at once


def closest(word: str, known: Iterable[str]) -> list[str]:
    """The known words that are fewest typing mistakes away from `word`, at most three; none where all are too far.

    A mistake is a letter too many, one too few, another one, or two that changed places. There may be one in three
    letters. Dashes in front and the case do not count, and an underscore is a dash. Where no word is near, those that
    begin with `word` are taken, or with which it begins.
    """
    typed = _plain(word)
    if not typed or len(typed) > _LONGEST:
        return []
    names = {name: _plain(name) for name in known}
    mistakes = {name: _mistakes(typed, plain) for name, plain in names.items() if len(plain) <= _LONGEST}
    fewest = min(mistakes.values(), default=len(typed))
    if fewest <= max(1, len(typed) // 3) and fewest < len(typed):
        return [name for name, count in mistakes.items() if count == fewest][:_MOST]
    longer = [name for name, plain in names.items() if len(typed) > 2 and plain.startswith(typed)]
    shorter = [name for name, plain in names.items() if plain and typed.startswith(f"{plain}-")]
    return (longer or sorted(shorter, key=len, reverse=True)[:1])[:_MOST]


def with_suggestion(message: str, word: str, known: Iterable[str]) -> str:
    """`message` about an unknown word, and behind it `Did you mean serve?`; the message alone where no word is near."""
    found = closest(word, known)
    return f"{message.rstrip('.')}. Did you mean {' or '.join(found)}?" if found else message


def _plain(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")


def _mistakes(typed: str, known: str) -> int:
    """The optimal string alignment distance of two words."""
    before: list[int] = []
    above = list(range(len(known) + 1))
    for i, letter in enumerate(typed, 1):
        row = [i]
        for j, wanted in enumerate(known, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == known[j - 2] and typed[i - 2] == wanted:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, above = above, row
    return above[-1]
