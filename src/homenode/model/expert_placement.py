"""Which ranks have which experts of a mixture, where experts are divided as wholes: in turn, in runs, or by how often each is used."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from homenode.errors import UserError
from homenode.model.formats.reading import file_size, read_at
from homenode.model.part import every_expert
from homenode.model.spec import ModelSpec
from homenode.units import format_bytes, format_count

_MOST_BYTES = 64 << 20  # of a file of counts

Experts = tuple[tuple[int, ...], ...]  # of each rank, ascending


@dataclass(frozen=True)
class ExpertUse:
    """How often each expert of each layer was used: `counts[layer][expert]`; layers without experts may have anything."""

    counts: tuple[tuple[float, ...], ...]


ExpertPlacement = Literal["spread", "packed"] | ExpertUse


def place_experts(
    experts: Sequence[int], layer: int, ranks: int, placement: ExpertPlacement, accelerators: Collection[int] = ()
) -> Experts:
    """The experts of layer `layer` for each rank, as many for each as can be. `accelerators`: ranks that get the most used, by counts."""
    if isinstance(placement, ExpertUse):
        return _by_use({e: placement.counts[layer][e] for e in experts}, ranks, accelerators)
    if placement == "spread":
        return tuple(tuple(experts[rank::ranks]) for rank in range(ranks))
    cuts = [len(experts) * rank // ranks for rank in range(ranks + 1)]
    return tuple(tuple(experts[first:end]) for first, end in pairwise(cuts))


def _by_use(counts: dict[int, float], ranks: int, accelerators: Collection[int]) -> Experts:
    """The most used to accelerators; among ranks of a kind the next goes to the one with the least to do that has room."""
    order = sorted(range(ranks), key=lambda rank: rank not in accelerators)
    room = {rank: len(counts) // ranks + (place < len(counts) % ranks) for place, rank in enumerate(order)}
    load = dict.fromkeys(range(ranks), 0.0)
    has: list[list[int]] = [[] for _ in range(ranks)]
    for expert in sorted(counts, key=lambda e: (-counts[e], e)):
        free = [rank for rank in order if room[rank] > len(has[rank])]
        better = [rank for rank in free if rank in accelerators] or free
        rank = min(better, key=lambda r: (load[r], len(has[r]), r))
        has[rank].append(expert)
        load[rank] += counts[expert]
    return tuple(tuple(sorted(some)) for some in has)


def read_placement(setting: str, spec: ModelSpec) -> ExpertPlacement:
    """What `--expert-placement` says: spread, packed, or a JSON file with a list for each layer of a count for each expert. UserError for another."""
    if setting == "spread":
        return "spread"
    if setting == "packed":
        return "packed"
    path = Path(setting).expanduser()
    if not path.exists():
        raise _unusable(f"{setting} is neither spread nor packed, and no file of this name is there")
    try:
        return ExpertUse(read_counts(path, spec))
    except UserError as error:
        raise _unusable(error.message) from error


def read_counts(path: Path, spec: ModelSpec) -> tuple[tuple[float, ...], ...]:
    """The counts that a file has of this model's experts, layer by layer. UserError for a file that has none."""
    if (size := file_size(path)) > _MOST_BYTES:
        raise UserError(f"{path} has {format_bytes(size)}; at most {format_bytes(_MOST_BYTES)} of counts are read")
    try:
        counts = msgspec.json.decode(read_at(path, 0, size), type=tuple[tuple[float, ...], ...])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON list of lists of numbers: {error}") from error
    _check(path, counts, spec)
    return counts


def _check(path: Path, counts: tuple[tuple[float, ...], ...], spec: ModelSpec) -> None:
    if len(counts) != spec.num_layers:
        raise UserError(
            f"{path} has counts of {format_count(len(counts), 'layer')}; the model has {spec.num_layers} (an empty list where one has no experts)"
        )
    for layer, line in enumerate(counts):
        wanted = len(every_expert(spec, layer))
        if wanted and len(line) != wanted:
            raise UserError(
                f"{path} has {format_count(len(line), 'count')} for layer {layer}, which has {format_count(wanted, 'expert')}"
            )
        if wanted and not all(0 <= count < float("inf") for count in line):
            raise UserError(f"{path} has a count below zero for layer {layer}")


def _unusable(why: str) -> UserError:
    return UserError(
        f"--expert-placement: {why}; give spread, packed, or a file of counts as --expert-counts makes it",
        param="expert_placement",
    )
