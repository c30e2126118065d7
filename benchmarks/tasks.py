"""What is measured in one go: a combination's pairs, piece by piece of the workload, each between readings of the
machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import Combination, Pair
from benchmarks.contender import Peer, Side, Unavailable, gguf_of
from benchmarks.in_python import own_side
from benchmarks.machine import without_folders
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
            found[name] = [without_folders(line) for side in task.sides if side.name == name for line in side.shown()]
    return found


def measured(task: Task, wrap: Sequence[str], threads: int) -> list[Pair]:
    """Run the task: pairs of each piece, the last of which counts if any does. Raises Unavailable when a side fails or
    prints something else than expected."""
    pieces = [[piece.ours.to_json(), piece.theirs.to_json()] for piece in task.pieces]
    found = last_json([*wrap, sys.executable, "-m", "benchmarks.pair", json.dumps(pieces), str(threads)])
    try:
        return [
            _pair(task.combination, piece, one)
            for piece, tries in zip(task.pieces, found["tries"], strict=True)
            for one in tries
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise Unavailable(f"its output could not be read: {error!r}") from error


def _pair(combination: Combination, piece: Piece, found: dict[str, Any]) -> Pair:
    """Of a pair that does not count the reason says enough, so that its readings are not kept."""
    ours, theirs = piece.ours.read(found["outputs"][0]), piece.theirs.read(found["outputs"][1])
    readings = found["readings"] if found["discarded"] is None else []
    return Pair(combination, ours.rates, theirs.rates, theirs.version, found["discarded"], readings)
