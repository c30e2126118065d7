"""Words of a command line as our own flags: those of other programs become ours, or are told or refused. Pure."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from homenode.equivalents.equivalent import AlwaysSo, FollowingWords, Meaning, ModelName, NoEffect, NotOffered, Taken
from homenode.equivalents.table import KnownFlag, known_flags, written_as

_NUMBER = re.compile(r"-\.?\d")
_FALSE = ("false", "0", "off", "no", "disabled")
_LONGEST = 60  # characters of a value that are shown
_EACH_REQUEST = "each request says it"
# Our flags of some commands alone: what stands in for them where they are not.
_ELSEWHERE = {
    "--max-tokens": f"{_EACH_REQUEST} (max_tokens)",
    "--temperature": f"{_EACH_REQUEST} (temperature), else the model's generation_config.json",
    "--stop": f"{_EACH_REQUEST} (stop)",
    "--prompt": f"{_EACH_REQUEST} (prompt, messages)",
    "--system": f"{_EACH_REQUEST} (messages)",
    "--chat": "it is of one prompt: `homenode generate --chat`, `homenode chat`",
}


class OwnFlag(NamedTuple):
    """The traits of a flag of ours that matter: whether a value follows, and whether it may be given several times."""

    takes_value: bool
    several: bool = False


@dataclass
class Translation:
    """The result of translating the words. `given_as`: our flags by what was written for them. `told`: lines about what
    has no effect. `refused`: lines about what is not taken.
    """

    words: list[str] = field(default_factory=list)
    given_as: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass
class _Given:
    """A flag with its values, or a word that is none (`flag` empty)."""

    written: str
    flag: str
    values: list[str]
    known: KnownFlag | None = None


def translate(words: Sequence[str], own: Mapping[str, OwnFlag], *, takes_model: bool = True) -> Translation:
    """The words as a command with these flags of its own takes them; what it does not know either is left as it is.

    A flag of several values takes the words behind it. Where no other word names the model, the last of them does, if
    there are two.
    """
    given = _read(words, own)
    if takes_model and not any(_names_model(each) for each in given):
        _leave_model(given)
    made = _Translator(own)
    for each in given:
        made.add(each)
    return made.translation


def flag_values(words: Sequence[str], own: Mapping[str, OwnFlag]) -> list[tuple[str, str]]:
    """Our flags in translated words with their values, those of switches being true or false."""
    pairs = []
    for number, word in enumerate(words):
        if word in own and own[word].takes_value:
            pairs.append((word, words[number + 1]))
        elif word in own:
            off = word.startswith("--no-")
            pairs.append(("--" + word[5:] if off else word, "false" if off else "true"))
    return pairs


def words_of(flag: str, value: object) -> list[str]:
    """A flag and its value, as Python or TOML has it, as words of a command line."""
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag[2:]]
    if isinstance(value, list | tuple):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]


def _read(words: Sequence[str], own: Mapping[str, OwnFlag]) -> list[_Given]:
    left, found = deque(words), []
    while left:
        word = left.popleft()
        if word == "--":
            found.append(_Given(word, "--", [*left]))
            break
        if not _is_flag(word):
            found.append(_Given(word, "", [word]))
            continue
        written, sign, inner = word.partition("=")
        flag = written_as(written, own)
        known = known_flags().get(flag)
        if known is None and flag not in own:
            found.append(_Given(word, "?", []))
            continue
        if known is None or (flag in own and known.values is not FollowingWords.SEVERAL):
            count = FollowingWords.ONE if own[flag].takes_value else FollowingWords.NONE
        else:
            count = known.values
        joined = [inner] if sign else [written[2:]] if flag == "-O" != written else []
        found.append(_Given(written, flag, joined or _take(left, count), known))
    return found


def _take(left: deque[str], count: FollowingWords) -> list[str]:
    """The values of a flag: the first may look like a flag, as a negative number does."""
    taken = [left.popleft()] if left and count is not FollowingWords.NONE else []
    while taken and count is FollowingWords.SEVERAL and left and not _is_flag(left[0]):
        taken.append(left.popleft())
    return taken


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and _NUMBER.match(word) is None


def _names_model(given: _Given) -> bool:
    return not given.flag or (given.known is not None and isinstance(given.known.row.meaning, ModelName))


def _leave_model(given: list[_Given]) -> None:
    several = [
        each for each in given if each.known and each.known.values is FollowingWords.SEVERAL and len(each.values) > 1
    ]
    if several:
        model = several[-1].values.pop()
        given.append(_Given(model, "", [model]))


class _Translator:
    """Adds what was given to a translation, one after the other."""

    def __init__(self, own: Mapping[str, OwnFlag]) -> None:
        self.translation = Translation()
        self._own = own
        self._said: dict[str, tuple[str, str]] = {}  # by our flag: what was written, and the value
        self._models: tuple[tuple[str, str], ...] = ()  # each by what names it

    def add(self, given: _Given) -> None:
        """Add one flag with its values, or one word."""
        if given.flag == "":
            self._add_model(given.written, given.written)
        elif given.flag == "--":
            self.translation.words += ["--", *given.values]
        elif given.flag == "?":
            self.translation.words.append(given.written)
        elif given.known is None or (given.flag in self._own and not given.flag.startswith("--")):
            self._keep(given)  # a letter that a command has itself is its own
        elif given.known.values is not FollowingWords.NONE and not given.values:
            self.translation.refused.append(f"{given.written} needs a value")
        else:
            self._apply(given, given.known)

    def _apply(self, given: _Given, known: KnownFlag) -> None:
        value = ",".join(given.values) if known.values is FollowingWords.SEVERAL else "".join(given.values)
        off = known.values is FollowingWords.NONE and value.lower() in _FALSE and value != ""
        meaning: Meaning | None = known._replace(off=not known.off).meaning("") if off else known.meaning(value)
        shown = given.written if not value or off else f"{given.written} {_short(value)}"
        match meaning:
            case None:
                self._keep(given)
            case Taken():
                self._set(given.written, meaning, value, shown)
            case ModelName():
                self._add_model(value, given.written)
            case NoEffect(why):
                self.translation.told.append(f"{shown} is ignored: {why}")
            case NotOffered(instead):
                named = shown if value.lower() in known.row.values else given.written
                self.translation.refused.append(f"{named} is not taken: {instead}")
            case AlwaysSo():
                pass

    def _keep(self, given: _Given) -> None:
        self._say(given.flag, given.written, " ".join(given.values), renamed=False)
        self.translation.words += [given.flag, *given.values]

    def _set(self, written: str, taken: Taken, value: str, shown: str) -> None:
        flag, own = taken.flag, self._own.get(taken.flag)
        value = value if taken.value is None else taken.value
        if own is None:
            why = _ELSEWHERE.get(flag, f"it is {flag} of another command of homenode")
            self.translation.told.append(f"{shown} is ignored: {why}")
            return
        if taken.note:
            said = f"{flag} {value}" if own.takes_value else flag
            self.translation.told.append(f"{shown} is taken as {said}: {taken.note}")
        renamed = flag != written
        if renamed:
            self.translation.given_as[flag] = written
        self._say(flag, written, value, renamed)
        if own.takes_value:
            self.translation.words += [flag, value]
        elif value != "off":
            self.translation.words.append(flag)
        elif (opposite := "--no-" + flag[2:]) in self._own:
            self.translation.words.append(opposite)

    def _say(self, flag: str, written: str, value: str, renamed: bool) -> None:
        """Remember what a flag of ours was given; two names of it must not say two things."""
        before = self._said.setdefault(flag, (written, value))
        contradict = before[1] != value and (renamed or before[0] != written)
        if contradict and not (flag in self._own and self._own[flag].several):
            self.translation.refused.append(
                f"{written} and {before[0]} contradict each other: both are {flag}, and one says {_short(before[1])}, "
                f"the other {_short(value)}; leave one out"
            )

    def _add_model(self, model: str, written: str) -> None:
        """Put the model where ours stands. `written`: the flag that names it, or the model itself."""
        before, self._models = self._models, (*self._models, (written, model))
        if not before or all(flag == name for flag, name in self._models):
            self.translation.words.append(model)
        elif before[-1][1] != model:
            named = [name if flag == name else f"{name} ({flag})" for flag, name in self._models]
            self.translation.refused.append(f"MODEL is named twice: {' and '.join(named)}; give one")


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "..."
