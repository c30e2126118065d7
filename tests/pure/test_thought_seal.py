"""Thoughts that are sealed: opened by the same secret, and by nothing else."""

from __future__ import annotations

import base64

import pytest

from homenode.server.core.thought_seal import ThoughtSeal

THOUGHTS = "Hm, 猫? 🦊 שלום\n" * 40


@pytest.mark.parametrize("text", ["", "a", THOUGHTS, "half \ud83e of a pair"])
def test_what_is_sealed_is_opened(text: str) -> None:
    sealed = ThoughtSeal("secret").seal(text)
    assert ThoughtSeal("secret").open(sealed) == text
    assert ThoughtSeal("another").open(sealed) is None and ThoughtSeal().open(sealed) is None


def test_a_sealed_text_shows_nothing_and_never_comes_twice() -> None:
    seal = ThoughtSeal()
    sealed, again = seal.seal(THOUGHTS), seal.seal(THOUGHTS)
    assert sealed != again and seal.open(sealed) == seal.open(again) == THOUGHTS
    assert b"Hm" not in base64.urlsafe_b64decode(sealed) and sealed.isascii()


def test_a_changed_text_is_not_opened() -> None:
    seal = ThoughtSeal()
    body = bytearray(base64.urlsafe_b64decode(seal.seal("Hm, a cat?")))
    for place in range(len(body)):
        changed = bytearray(body)
        changed[place] ^= 1
        assert seal.open(base64.urlsafe_b64encode(changed).decode()) is None
    for length in range(len(body)):
        assert seal.open(base64.urlsafe_b64encode(body[:length]).decode()) is None


@pytest.mark.parametrize("given", ["", "AAAA", "no base64!", "ü", "=" * 99])
def test_what_was_never_sealed_is_not_opened(given: str) -> None:
    assert ThoughtSeal().open(given) is None
