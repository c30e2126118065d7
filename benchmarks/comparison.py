"""The comparison's record: every pair with its readings, and the medians made of those that count. Pure but for reading
and writing the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.workload import FORMATS, SHAPES, Rates, Workload

# Where CPUs of a pair may have been, by how long one waits for an answer from another: through a last-level cache that
# they share about 100 ns on the processors measured so far, from one such cache to another 400 and more.
ONE_CACHE, SEVERAL_CACHES, UNKNOWN = PLACES = ("on one cache", "on several caches", "")
_ONE_CACHE_NS = 250.0


@dataclass(frozen=True)
class Combination:
    """What a pair measures: a model, and what homenode is held against."""

    shape: str
    format: str
    engine: str
    variant: str

    @property
    def order(self) -> tuple[int, int, str, str]:
        """Smaller models first, then formats and engines as the table has them."""
        shape = SHAPES.index(self.shape) if self.shape in SHAPES else len(SHAPES)
        format = FORMATS.index(self.format) if self.format in FORMATS else len(FORMATS)
        return shape, format, self.engine, self.variant


@dataclass(frozen=True)
class Pair:
    """Both sides measured one after the other, in all cases or in some. `discarded`: why it does not count, or None.
    `readings`: of the machine, before, between and after."""

    combination: Combination
    ours: Rates
    theirs: Rates
    version: str
    discarded: str | None
    readings: list[dict[str, Any]]

    @property
    def place(self) -> str:
        """Which of PLACES: what memory gives them, and so what can be gained, differs; UNKNOWN of a single CPU."""
        longest = max((ns for reading in self.readings for ns in reading["round_trip_ns"]), default=None)
        return UNKNOWN if longest is None else ONE_CACHE if longest < _ONE_CACHE_NS else SEVERAL_CACHES


@dataclass
class Comparison:
    """Everything measured so far. `commands`: by engine, as typed; `skipped`: what could not be measured and why."""

    machine: dict[str, Any]
    versions: dict[str, str]
    workload: Workload
    commands: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "workload": self.workload.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Comparison:
        """The inverse of `to_json`."""
        pairs = [Pair(**{**pair, "combination": Combination(**pair["combination"])}) for pair in value["pairs"]]
        return cls(**{**value, "workload": Workload.from_json(value["workload"]), "pairs": pairs})

    def save(self, path: Path) -> None:
        """Replace the file by what is known now."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(_json_text(self.to_json()), encoding="utf-8")
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """From a file `save` wrote."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    def forget(self, combinations: Iterable[Combination]) -> None:
        """Drop the pairs of these, which are about to be measured anew, and why they could not be measured before."""
        anew = set(combinations)
        self.pairs = [pair for pair in self.pairs if pair.combination not in anew]
        reasons = tuple(
            begin
            for c in anew
            for begin in (f"{c.engine}, {c.shape} {c.format}: ", f"{c.shape} {c.format}, {c.engine}, {c.variant}: ")
        )
        self.skipped = [line for line in self.skipped if not line.startswith(reasons)]

    def measured_with(self, engine: str, version: str) -> None:
        """Name a version; pairs measured with others may stay, and then those are named as well."""
        known = self.versions.get(engine)
        if known is None or version not in known.split(", "):
            self.versions[engine] = f"{known}, {version}" if known else version

    def counted(self, combination: Combination, cases: Iterable[str] = ()) -> list[Pair]:
        """The pairs that count and have all of these cases."""
        wanted = set(cases)
        pairs = (pair for pair in self.pairs if pair.combination == combination and pair.discarded is None)
        return [pair for pair in pairs if wanted <= pair.theirs.keys()]

    @property
    def combinations(self) -> list[Combination]:
        """All that have a pair that counts, in the table's order."""
        return sorted({pair.combination for pair in self.pairs if pair.discarded is None}, key=lambda c: c.order)


@dataclass(frozen=True)
class Row:
    """One combination in figures, by case: the median rate of the other side, and the median of the pairs' ratios, ours
    to theirs."""

    combination: Combination
    theirs: Rates
    ratios: Rates


def row_of(combination: Combination, pairs: Sequence[Pair], cases: Iterable[str]) -> Row:
    """Of the pairs that count. A case that none of them has is left out."""
    theirs: Rates = {}
    ratios: Rates = {}
    for case in cases:
        if both := [
            (pair.ours[case], pair.theirs[case]) for pair in pairs if case in pair.ours and case in pair.theirs
        ]:
            theirs[case] = median(their for _, their in both)
            ratios[case] = median(our / their for our, their in both)
    return Row(combination, theirs, ratios)


def own_rates(pairs: Sequence[Pair], cases: Iterable[str]) -> Rates:
    """The median of our own side by case, over the pairs with whomever. A case that none of them has is left out."""
    found = {case: [pair.ours[case] for pair in pairs if case in pair.ours] for case in cases}
    return {case: median(rates) for case, rates in found.items() if rates}


def _json_text(value: dict[str, Any]) -> str:
    """Readable, and one line for each pair: a record that grows by lines is easy to look through."""
    pairs = ",\n".join("  " + json.dumps(pair) for pair in value["pairs"])
    rest = json.dumps({key: part for key, part in value.items() if key != "pairs"}, indent=1)
    return f'{rest[:-2]},\n "pairs": [\n{pairs}\n ]\n}}\n'
