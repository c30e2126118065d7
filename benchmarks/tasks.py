"""What is measured in one go: a combination's pairs, piece by piece of the workload, each between two readings of the machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import Combination, Pair
from benchmarks.contender import Peer, Side, Unavailable, gguf_of
from benchmarks.homenode_bench import own_side
from benchmarks.machine import moved_between, without_folders
from benchmarks.others import disturbed
from benchmarks.pair import last_json
from benchmarks.workload import Workload


@dataclass(frozen=True)
class Piece:
    """Some cases, and how both sides are run in them."""

    cases: tuple[str, ...]
    ours: Side
    theirs: Side


@dataclass(frozen=True)
class Task:
    """All pieces of one combination, or those of them that are still wanted."""

    combination: Combination
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.combination.shape} {self.combination.format}, {self.pieces[0].theirs.name}"

    @property
    def sides(self) -> list[Side]:
        """In the order they are run: A B A B."""
        return [side for piece in self.pieces for side in (piece.ours, piece.theirs)]


def planned(
    peers: Mapping[str, Peer], models: Path, shapes: Sequence[str], formats: Sequence[str], workload: Workload
) -> tuple[list[Task], list[str]]:
    """Every combination that can be measured, and a line for each that cannot."""
    tasks: list[Task] = []
    skipped = []
    for shape in shapes:
        for format in formats:
            for name, peer in peers.items():
                try:
                    tasks += _tasks(peer, shape, format, models, workload)
                except Unavailable as reason:
                    skipped.append(f"{name}, {shape} {format}: {reason}")
    return tasks, skipped


def _tasks(peer: Peer, shape: str, format: str, models: Path, workload: Workload) -> list[Task]:
    """One for each variant of the peer."""
    model = gguf_of(shape, format, models)
    found: dict[Combination, list[Piece]] = {}
    for part in workload.parts():
        for side in peer.sides(shape, format, models, part):
            combination = Combination(shape, format, side.engine, side.variant)
            found.setdefault(combination, []).append(Piece(part.cases, own_side(model, part), side))
    return [Task(combination, tuple(pieces)) for combination, pieces in found.items()]


def shown_commands(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """By engine and variant, the commands for one model, as typed."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        for name in {side.name for side in task.sides}:
            found[name] = [without_folders(command.shown()) for side in task.sides if side.name == name for command in side.commands]
    return found


def measured(task: Task, wrap: Sequence[str], threads: int) -> list[Pair]:
    """Run the task: a pair for each piece. Raises Unavailable when a side fails or prints something else than expected."""
    commands = [[command.to_json() for command in side.commands] for side in task.sides]
    found = last_json([*wrap, sys.executable, "-m", "benchmarks.pair", json.dumps(commands), str(threads)])
    try:
        return [
            _pair(task.combination, piece, *(found[name][2 * i : 2 * i + count] for name, count in _OF_A_PAIR))
            for i, piece in enumerate(task.pieces)
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise Unavailable(f"its output could not be read: {error!r}") from error


# What `benchmarks.pair` prints, and how many of each belong to a pair; the reading after a pair is the one before the next.
_OF_A_PAIR = (("outputs", 2), ("readings", 3), ("others", 2))


def _pair(combination: Combination, piece: Piece, outputs: list[list[str]], readings: list[dict[str, Any]], others: list[float]) -> Pair:
    """`readings`: before, between and after; those our own side took stand between the first two."""
    ours, theirs = piece.ours.read(outputs[0]), piece.theirs.read(outputs[1])
    shares = dict(zip(("homenode", combination.engine), others, strict=True))
    discarded = moved_between([readings[0], *ours.readings, *readings[1:]]) or disturbed(shares)
    return Pair(combination, ours.rates, theirs.rates, theirs.version, discarded, readings)
