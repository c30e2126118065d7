"""The record of served throughput, and its table. Pure but for reading and writing the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import moved_between
from homenode.bench.serving.served import Served


@dataclass(frozen=True)
class ServedCombination:
    """What is served, under how many clients, and by what else."""

    shape: str
    format: str
    clients: int
    engine: str
    variant: str

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.shape} {self.format}, {self.clients} clients, {self.engine}, {self.variant}"


@dataclass(frozen=True)
class ServedPair:
    """Both servers under the same load, one after the other; `discarded` and `readings` as in `comparison.Pair`."""

    combination: ServedCombination
    ours: Served
    theirs: Served
    discarded: str | None
    readings: list[dict[str, Any]]


@dataclass
class ServedComparison:
    """Everything measured. `load`: `prompt_tokens`, `gen_tokens` and `requests` of each client; `commands`: by server,
    as typed."""

    machine: dict[str, Any]
    versions: dict[str, str]
    load: dict[str, int]
    commands: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    pairs: list[ServedPair] = field(default_factory=list)

    @classmethod
    def load_file(cls, path: Path) -> ServedComparison:
        """From a file `save` wrote."""
        value = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**value, "pairs": [_pair_of(pair) for pair in value["pairs"]]})

    def save(self, path: Path) -> None:
        """Replace the file by what is known now."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)

    def forget(self, combinations: Iterable[ServedCombination]) -> None:
        """Let go of what was measured of these, to measure it again."""
        again = set(combinations)
        self.pairs = [pair for pair in self.pairs if pair.combination not in again]
        self.skipped = [line for line in self.skipped if not line.startswith(tuple(f"{c.name}:" for c in again))]

    def counted(self, combination: ServedCombination) -> list[ServedPair]:
        """The pairs that count."""
        return [pair for pair in self.pairs if pair.combination == combination and pair.discarded is None]


def _pair_of(value: dict[str, Any]) -> ServedPair:
    fields = {
        "combination": ServedCombination(**value["combination"]),
        "ours": Served(**value["ours"]),
        "theirs": Served(**value["theirs"]),
    }
    return ServedPair(**{**value, **fields})


@dataclass(frozen=True)
class _Figures:
    """What the table shows of one side: tokens a second, and medians in milliseconds."""

    tok_s: float
    ttft_ms: float
    token_ms: float

    @classmethod
    def of(cls, loads: Sequence[Served]) -> _Figures:
        """The medians over several loads."""
        return cls(
            median(load.output_tok_s for load in loads),
            1e3 * median(load.ttft_median_s for load in loads),
            1e3 * median(load.tpot_median_s for load in loads),
        )


def served_text(record: ServedComparison) -> str:
    """What is worse here, the table, and the load."""
    wanted = sorted(
        {pair.combination for pair in record.pairs}, key=lambda c: (c.shape, c.format, c.clients, c.variant)
    )
    groups = {c: pairs for c in wanted if (pairs := record.counted(c))}
    if not groups:
        return "Nothing has been measured yet.\n"
    lines = [
        _behind(groups),
        "| weights, clients | | tokens/s | median time to first token | median time of a token |",
        "|---|---|---|---|---|",
    ]
    for (shape, format, clients), combinations in groupby(groups, key=lambda c: (c.shape, c.format, c.clients)):
        of_group = list(combinations)
        ours = _Figures.of([pair.ours for c in of_group for pair in groups[c]])
        figures = f"**{ours.tok_s:.0f}** | **{ours.ttft_ms:.0f} ms** | **{ours.token_ms:.1f} ms** |"
        lines.append(f"| **{shape} {format}, {clients}** | homenode | {figures}")
        lines += [_row(c, groups[c]) for c in of_group]
    load = record.load
    counted = [pair for pairs in groups.values() for pair in pairs]
    moved = sum(moved_between(pair.readings) is not None for pair in counted)
    lines.append(
        f"\n{load['prompt_tokens']} random tokens in, {load['gen_tokens']} out, streamed; each client makes "
        f"{load['requests']} requests one after "
        "the other, the client program runs on the same CPUs. Tokens per second are those that came out, over the "
        "whole load, prompts included. "
        f"{len(counted)} pairs count; during {moved} of them the host moved the machine's CPUs. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(record.versions.items()))}."
    )
    return "\n".join([*lines, *(f"\nNot measured: {line}." for line in record.skipped)]) + "\n"


def _behind(groups: dict[ServedCombination, list[ServedPair]]) -> str:
    """Where the other server does better, in words."""
    lines = []
    for c, pairs in groups.items():
        ratios = {
            "tokens/s": median(p.ours.output_tok_s / p.theirs.output_tok_s for p in pairs),
            "time to first token": median(p.theirs.ttft_median_s / p.ours.ttft_median_s for p in pairs),
            "time of a token": median(p.theirs.tpot_median_s / p.ours.tpot_median_s for p in pairs),
        }
        if worse := [words for words, ratio in ratios.items() if ratio < 1.0]:
            lines.append(f"- {c.name}: {', '.join(worse)}")
    return "\n".join(["Behind:\n", *lines]) + "\n" if lines else "Behind: in none of the figures below.\n"


def _row(combination: ServedCombination, pairs: Sequence[ServedPair]) -> str:
    """Theirs, and ours as a multiple of it in tokens a second; times are plain."""
    theirs = _Figures.of([pair.theirs for pair in pairs])
    faster = median(pair.ours.output_tok_s / pair.theirs.output_tok_s for pair in pairs)
    figures = f"{faster:.2f}x ({theirs.tok_s:.0f}) | {theirs.ttft_ms:.0f} ms | {theirs.token_ms:.1f} ms |"
    return f"| | {combination.engine}, {combination.variant} | {figures}"
