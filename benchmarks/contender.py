"""An engine as this comparison sees it: commands to run, and a pure reading of what they print."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.workload import Rates, Workload


class Unavailable(Exception):
    """This engine or model cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and variables set for it alone."""

    argv: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"argv": list(self.argv), "variables": self.variables}

    def shown(self) -> str:
        """As one would type it."""
        return " ".join([*(f"{k}={v}" for k, v in self.variables.items()), *self.argv])


@dataclass(frozen=True)
class Measured:
    """What an engine's output says: its speed by case, and its own version as it tells it."""

    rates: Rates
    version: str


@dataclass(frozen=True)
class Side:
    """One way of running one model. `read` makes figures of the commands' outputs, in order; ValueError when they are
    not what was expected.

    With a `question` there is one command, a program that stays (see `standing`), and its output is the answer.
    """

    engine: str
    variant: str
    commands: tuple[Command, ...]
    read: Callable[[Sequence[str]], Measured]
    question: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As `benchmarks.pair` takes it."""
        return {"commands": [command.to_json() for command in self.commands], "question": self.question}

    def shown(self) -> list[str]:
        """As one would type it."""
        asked = "" if self.question is None else f" <<< '{json.dumps(self.question)}'"
        return [command.shown() + asked for command in self.commands]

    @property
    def name(self) -> str:
        """Engine and variant, as the table shows them."""
        return f"{self.engine}, {self.variant}" if self.variant else self.engine


class Peer(Protocol):
    """An engine to compare with."""

    def sides(self, shape: str, format: str, models: Path, workload: Workload) -> list[Side]:
        """Every way in which it runs a model of this shape at the precision of `format`. Raises Unavailable."""


def existing(path: Path) -> Path:
    """The path itself. Raises Unavailable when nothing is there."""
    if not path.exists():
        raise Unavailable(f"{path} does not exist")
    return path


def gguf_of(shape: str, format: str, models: Path) -> Path:
    """The GGUF file both sides read. Raises Unavailable when it is missing."""
    return existing(models / f"{shape}-{format}.gguf")
