"""What is suggested for a word that is not known."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.spelling import closest, with_suggestion

COMMANDS = ("serve", "proxy", "generate", "chat", "models", "host", "plan", "simulate", "run", "bind", "verify")
OPTIONS = ("--port", "--host", "--pd-role", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--numa")


@pytest.mark.parametrize(
    ("word", "known", "suggested"),
    [
        ("srve", COMMANDS, ["serve"]),
        ("Serve", COMMANDS, ["serve"]),
        ("generte", COMMANDS, ["generate"]),
        ("gen", COMMANDS, ["generate"]),  # the beginning of a word
        ("model", COMMANDS, ["models"]),
        ("--prot", OPTIONS, ["--port"]),
        ("--max_model_len", OPTIONS, ["--max-model-len"]),
        ("--max-modle-len", OPTIONS, ["--max-model-len"]),
        ("--max-num", OPTIONS, ["--max-num-seqs", "--max-num-batched-tokens"]),
        ("--config-file", ("--config", "--port"), ["--config"]),  # a word behind it
        ("shrd", ("shard", "mirror", "local"), ["shard"]),
        ("xyz", COMMANDS, []),
        ("a", ("b", "c"), []),  # every letter would be another one
        ("", COMMANDS, []),
        ("--", OPTIONS, []),
        ("serve", (), []),
        ("s" * 1000, COMMANDS, []),
    ],
)
def test_the_nearest_known_words_are_suggested(word: str, known: tuple[str, ...], suggested: list[str]) -> None:
    assert closest(word, known) == suggested


WORDS = st.text(string.ascii_lowercase + "-", min_size=4, max_size=20).filter(lambda text: not text.startswith("-"))


@given(word=WORDS, others=st.lists(WORDS, max_size=8), data=st.data())
def test_of_one_mistake_the_word_is_found_or_others_are_as_near(
    word: str, others: list[str], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(word) - 2))
    kind = data.draw(st.sampled_from(("left out", "doubled", "another", "changed places")))
    typed = {
        "left out": word[:at] + word[at + 1 :],
        "doubled": word[:at] + word[at] + word[at:],
        "another": word[:at] + "x" + word[at + 1 :],
        "changed places": word[:at] + word[at + 1] + word[at] + word[at + 2 :],
    }[kind]
    found = closest(typed, [*others, word])
    assert found, "a word with one mistake is near enough"
    assert word in found or len(found) == 3 or typed in others or word in others or set(found) <= set(others)
    assert closest(typed, [word]) == [word]


def test_a_message_names_what_was_meant_only_where_a_word_is_near() -> None:
    assert with_suggestion("No such command 'srve'.", "srve", COMMANDS) == "No such command 'srve'. Did you mean serve?"
    assert with_suggestion("no such thing", "--prot", OPTIONS) == "no such thing. Did you mean --port?"
    assert with_suggestion("no such thing", "qqqq", COMMANDS) == "no such thing"
