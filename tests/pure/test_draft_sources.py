"""What tokens are drafted from: repetitions of a text and of earlier answers, and how often they were right."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.speculation.acceptance import LOOKUPS, SOURCES, Acceptance, OwnAcceptance, Source, place_of
from homenode.engine.speculation.past_answers import PastAnswers
from homenode.engine.speculation.sequence_drafts import SequenceDrafts
from homenode.engine.speculation.text_index import SEPARATOR, Repetition, TextIndex

_TEXTS = st.lists(st.integers(0, 3) | st.integers(0, 50), min_size=1, max_size=120)


def _right(prompt: Sequence[int], answer: Sequence[int], most: int, least: int = 2) -> tuple[int, int]:
    """(tokens drafted, tokens right) of an answer that is known."""
    text, whole = list(prompt), [*prompt, *answer]
    index = TextIndex(text)
    repetition = Repetition(index)
    drafted = right = 0
    while len(text) < len(whole):
        index.read_on(len(text))
        guessed = repetition.following(most) if repetition.follow(text, least) else []
        there = whole[len(text) :]
        good = next((n for n, token in enumerate(guessed) if n >= len(there) or token != there[n]), len(guessed))
        drafted, right = drafted + len(guessed), right + good
        text += there[: good + 1]
    return drafted, right


def _plain_right(prompt: Sequence[int], answer: Sequence[int], most: int) -> int:
    """Tokens right of a plain search for the last three tokens, else two, the latest place first."""
    whole, at, right = [*prompt, *answer], len(prompt), 0
    while at < len(whole):
        places = ((n, j) for n in (3, 2) for j in range(at - n - 1, -1, -1) if whole[j : j + n] == whole[at - n : at])
        n, j = next(places, (0, at))
        guessed = whole[j + n : min(j + n + most, at)] if n else []
        good = next((k for k, t in enumerate(guessed) if at + k >= len(whole) or t != whole[at + k]), len(guessed))
        right, at = right + good, at + good + 1
    return right


@given(_TEXTS, st.integers(1, 4), st.integers(1, 7))
def test_what_is_repeated_stood_before(text: list[int], least: int, pieces: int) -> None:
    """In however many pieces the text is read: a repetition of so many tokens is one, and goes on as it is said."""
    grown: list[int] = []
    index = TextIndex(grown, room=8)
    repetition = Repetition(index)
    for first in range(0, len(text), pieces):
        grown += text[first : first + pieces]
        while not index.read_on(3):
            pass
        if not repetition.follow(grown, least):
            continue
        at, length = repetition.at, repetition.length
        assert max(2, least) <= length or length == repetition.length >= least
        assert 0 < at < len(grown) or at == len(grown)
        assert grown[at - length : at] == grown[len(grown) - length :]
        guessed = repetition.following(5)
        assert guessed[: len(grown) - at] == grown[at : at + 5]


@pytest.mark.parametrize("every", [7, 17, 40])
def test_an_edited_copy_is_drafted(every: int) -> None:
    """Behind each change the copy goes on where it was, though the same pairs stand elsewhere as well."""
    rng = random.Random(every)
    text = [rng.randrange(12) for _ in range(300)]
    edited = [99 if place % every == every - 1 else token for place, token in enumerate(text)]
    _, right = _right(text, edited, 4)
    assert right >= _plain_right(text, edited, 4)
    assert right > 0.4 * len(edited)


@pytest.mark.parametrize("fields", [3, 6])
def test_fields_of_a_record_follow_each_other_as_in_the_one_before(fields: int) -> None:
    """Their values stand in another text, and between two fields stand the same three tokens each time."""
    rng = random.Random(fields)
    values = [[rng.randrange(1000, 9000) for _ in range(3)] for _ in range(4 * fields)]
    prompt = [token for value in rng.sample(values, len(values)) for token in (*value, rng.randrange(500, 900))]
    text, due, right = list(prompt), 0, 0
    repetition = Repetition(TextIndex(text))
    for number, value in enumerate(values):
        text += [1, 2, 3]
        repetition.index.read_on(len(text))
        if number > fields:
            due += 1
            right += repetition.follow(text, 2) and repetition.following(2) == [10 + number % fields, 4]
        for token in (10 + number % fields, 4, *value):
            text.append(token)
            repetition.index.read_on(len(text))
            repetition.follow(text, 2)
    assert right >= 0.6 * due, (right, due)


def test_words_of_a_page_are_drafted_as_often_as_by_a_plain_search() -> None:
    letters = [ord(letter) for letter in __doc__ + _right.__doc__ + " ".join(dir(random)) * 2]  # type: ignore[operator]
    half = len(letters) // 2
    assert _right(letters[:half], letters[half:], 4)[1] >= 0.95 * _plain_right(letters[:half], letters[half:], 4)


def test_a_text_that_goes_round_is_drafted_beyond_its_end() -> None:
    index = TextIndex(text := [1, 2, 3, 4] * 5)
    index.read_on(100)
    repetition = Repetition(index)
    assert repetition.follow(text, 2)
    assert repetition.following(10) == ([1, 2, 3, 4] * 3)[:10]


def test_an_index_has_bounded_memory_and_reads_in_bounded_pieces() -> None:
    index = TextIndex(list(range(200_000)), most=4096)
    assert index.capacity <= 8192 and index.read == 200_000 - 4096
    assert not index.read_on(1000) and index.read == 200_000 - 3096
    assert index.read_on(10_000)


def test_places_of_rows_are_never_drafted() -> None:
    index = TextIndex(text := [1, 2, 3, SEPARATOR, 5, 1, 2, 3])
    index.read_on(100)
    repetition = Repetition(index)
    assert repetition.follow(text, 2)
    assert repetition.following(4) == []


def test_answers_are_those_of_their_salt_and_bounded() -> None:
    answers = PastAnswers(most=400)
    answers.add("one", [1, 2, 3, *range(100, 160)], 3)
    assert answers.of("other") is None
    drafts = SequenceDrafts([7, 8, 110, 111, 112], Acceptance(), 2, answers.of("one"))
    assert drafts.drafted(3).tokens == [113, 114, 115]
    for number in range(50):
        answers.add(f"salt {number % 7}", list(range(number, number + 60)), 3)
        kept = [text for salt in range(7) if (text := answers.of(f"salt {salt}")) is not None]
        assert sum(len(text.tokens) for text in kept) <= 400
    assert answers.of("one") is None


def test_a_text_in_use_is_not_cut() -> None:
    """Whoever goes on in an indexed text finds it as it was, whatever was added elsewhere."""
    answers = PastAnswers(most=200)
    answers.add("s", list(range(90)), 0)
    index = answers.of("s")
    assert index is not None
    index.read_on(200)
    repetition = Repetition(index)
    assert repetition.follow([40, 41, 42], 3)
    for number in range(9):
        answers.add("s", list(range(1000 * number, 1000 * number + 80)), 0)
    assert repetition.following(3) == [43, 44, 45]


def test_places_grow_with_what_is_repeated() -> None:
    numbers = [place_of("prompt", number)[1] for number in range(5000)]
    assert numbers == sorted(numbers) and numbers[:5] == [0, 1, 2, 3, 4] and numbers[-1] <= 14


def test_acceptance_is_measured_for_all_and_for_each() -> None:
    of_all, rng = Acceptance(), random.Random(1)
    good, bad, new = OwnAcceptance(of_all), OwnAcceptance(of_all), OwnAcceptance(of_all)
    for _ in range(200):
        good.learn(("prompt", 3), rng.random() < 0.9)
        bad.learn(("prompt", 3), rng.random() < 0.1)
    assert good.share(("prompt", 3)) > 0.65 > new.share(("prompt", 3)) > 0.35 > bad.share(("prompt", 3))
    assert new.share(("answers", 3)) == Acceptance().share(("answers", 3))


@pytest.mark.parametrize("source", SOURCES)
def test_what_nobody_tries_is_forgotten_unless_it_is_measured_all_the_same(source: Source) -> None:
    of_all = Acceptance()
    for _ in range(100):
        of_all.learn((source, 2), accepted=False)
    assert of_all.share((source, 2)) < 0.1
    for _ in range(1000):
        of_all.fade((source, 2))
    assert (of_all.share((source, 2)) > 0.4) == (source not in LOOKUPS)


def test_what_followed_a_repetition_is_told_token_by_token() -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2]
    repetition = Repetition(TextIndex(text))
    repetition.index.read_on(100)
    assert repetition.follow(text, 2) and repetition.outcomes == []
    text += [3, 4]
    repetition.index.read_on(100)
    repetition.follow(text, 2)
    assert repetition.outcomes == [(2, True), (3, True)]
    text += [7, 8]
    repetition.index.read_on(100)
    assert not repetition.follow(text, 2)
    assert repetition.outcomes[2:] == [(4, False)]


def test_an_answer_that_grows_long_is_read_anew_with_larger_tables() -> None:
    rng = random.Random(8)
    text = [1, 2, 3]
    drafts = SequenceDrafts(text, Acceptance(), 2, None)
    first = drafts.capacity
    for _ in range(30):
        text += [rng.randrange(1000) for _ in range(400)]
        drafts.drafted(4)
    text += (repeated := text[5000:5020])
    for _ in range(9):
        found = drafts.drafted(4)
    assert found.tokens == text[5020:5024], repeated
    assert drafts.capacity > 2 * first
