"""The meaning here of a setting of another program: a setting of ours, what is always so, without effect, or not
offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class FollowingWords(Enum):
    """The number of words that follow a flag."""

    NONE = ""
    ONE = "="
    SEVERAL = "=..."


@dataclass(frozen=True)
class Taken:
    """Our `flag`, with the value that was given, or with `value`. A switch is on, unless `value` is "off".

    `note`: what is told besides, where ours is not quite the same.
    """

    flag: str
    value: str | None = None
    note: str = ""


@dataclass(frozen=True)
class ModelName:
    """The value is MODEL."""


@dataclass(frozen=True)
class AlwaysSo:
    """An equivalent with nothing to do: what the setting asks for is so in any case; nothing is told."""

    why: str


@dataclass(frozen=True)
class NoEffect:
    """An equivalent without effect: the setting is taken and told: it has nothing to act on here, because of `why`."""

    why: str


@dataclass(frozen=True)
class NotOffered:
    """An equivalent that there is none of: the setting is refused; `instead` says what to do."""

    instead: str


Meaning = Taken | ModelName | AlwaysSo | NoEffect | NotOffered


@dataclass(frozen=True)
class Equivalent:
    """Some flags of another program, and what they mean here.

    `names`: the flags, parted by blanks; `--name=` takes a value, `--name=...` several, and `--name` is a switch, of
    which `--no-name` is another. `values` has what single values mean, whose case does not count; `meaning` is that of
    all others: None where these are left to our own setting of the same name.
    """

    names: str
    meaning: Meaning | None = None
    values: Mapping[str, Meaning] = field(default_factory=dict)

    @property
    def flags(self) -> tuple[tuple[str, FollowingWords], ...]:
        """Each flag, and how many words follow it."""
        return tuple(_spelt(name) for name in self.names.split())

    def of(self, value: str) -> Meaning | None:
        """Return what it means with this value; None: it is our own setting, and the value is one of ours or wrong."""
        return self.values.get(value.strip().lower(), self.meaning)

    @property
    def switched_off(self) -> Meaning | None:
        """Return what `--no-name` of a switch means."""
        match self.meaning:
            case Taken(flag, value, note) if value in (None, "off"):
                return Taken(flag, "off" if value is None else None, note)
            case Taken():
                return AlwaysSo("it is off unless it is given")
            case NotOffered():
                return AlwaysSo("it is not offered here")
            case AlwaysSo(why):
                return NoEffect(why)
        return self.meaning


def _spelt(name: str) -> tuple[str, FollowingWords]:
    flag, sign, rest = name.partition("=")
    return flag, FollowingWords(sign + rest)
