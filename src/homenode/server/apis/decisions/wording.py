"""The words in which a question is put to a model: what is asked, the labels, what they mean, and how to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.server.core.scores.decisions import LabelledQuestion

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGITS = tuple("0123456789")
YES, NO = "yes", "no"


def choice_question(
    asked: str | None, options: Sequence[str], meanings: Sequence[str | None], place: str
) -> LabelledQuestion:
    """One of several options, each with what it means, at most 26 of them; the labels are letters."""
    labels = LETTERS[: len(options)]
    lines = [f"{label}. {_with(option, told)}" for label, option, told in zip(labels, options, meanings, strict=True)]
    question = [f"Question: {asked or 'Which of the options fits best?'}", "Options:", *lines]
    return LabelledQuestion(
        "\n".join([*question, "Answer with the letter of one option and nothing else."]), labels, place
    )


def yes_or_no_question(
    asked: str | None, meanings: Mapping[str, str | None], place: str, labels: Sequence[str] = (YES, NO)
) -> LabelledQuestion:
    """A question that is answered by yes or no. `meanings`: by the label, when that is the answer."""
    told = [f"{label} means: {meanings[label]}" for label in (YES, NO) if meanings.get(label)]
    question = [f"Question: {asked or 'Is this true?'}", *told]
    return LabelledQuestion("\n".join([*question, f"Answer with {YES} or {NO} and nothing else."]), labels, place)


def level_question(
    asked: str | None, levels: Sequence[str], meanings: Sequence[str | None], place: str
) -> LabelledQuestion:
    """One of several levels in their order, at most ten of them; the labels are their numbers from 0 on."""
    labels = DIGITS[: len(levels)]
    lines = [f"{label}. {_with(level, told)}" for label, level, told in zip(labels, levels, meanings, strict=True)]
    question = [f"Question: {asked or 'Which level fits best?'}", "Levels:", *lines]
    return LabelledQuestion(
        "\n".join([*question, "Answer with the number of one level and nothing else."]), labels, place
    )


def _with(name: str, meaning: str | None) -> str:
    return f"{name}: {meaning}" if meaning else name
