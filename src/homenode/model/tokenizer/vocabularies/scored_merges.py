"""The merges of a SentencePiece vocabulary that has scores alone: every split of one of its tokens into two of them.

A token may be as long as its file allows, so tokens are not cut at every place. Of tokens in alphabetical order those
that are beginnings of others lie on the way to them, which gives every token its shorter beginnings in the vocabulary,
and read backwards its endings; the time is that of reading and sorting them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from homenode.errors import CheckpointError

MOST_MERGES = 2**21  # three times those of the largest vocabularies; more would take minutes and gigabytes


def scored_merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every split of a token into two tokens, best score of the whole first.

    Among equal scores the lower id comes first, then the shorter beginning.

    Raises CheckpointError for a vocabulary with more than MOST_MERGES splits.
    """
    beginnings = _longest_beginnings(vocabulary)
    endings = {whole[::-1]: part[::-1] for whole, part in _longest_beginnings([t[::-1] for t in vocabulary]).items()}
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in vocabulary.items():
        ends = {len(part): part for part in _chain(endings, token)}
        for part in _chain(beginnings, token) if ends else ():
            if (rest := ends.get(len(token) - len(part))) is not None:
                found.append((-float(scores[index]), index, len(part), part, rest))
        if len(found) > MOST_MERGES:
            raise CheckpointError(
                f"the vocabulary has more than {MOST_MERGES} ways to divide its tokens; no tokenizer needs as many"
            )
    return [(part, rest) for _, _, _, part, rest in sorted(found)]


def _longest_beginnings(tokens: Collection[str]) -> dict[str, str]:
    """Return of each token the longest shorter one that it begins with, where there is one."""
    found: dict[str, str] = {}
    open_tokens: list[str] = []  # each begins with the one before
    for token in sorted(tokens):
        while open_tokens and not token.startswith(open_tokens[-1]):
            open_tokens.pop()
        if open_tokens and open_tokens[-1]:
            found[token] = open_tokens[-1]
        open_tokens.append(token)
    return found


def _chain(longest: Mapping[str, str], token: str) -> list[str]:
    """The parts of `token` at one of its ends that are tokens, longest first."""
    parts = []
    while (part := longest.get(token)) is not None:
        parts.append(part)
        token = part
    return parts
