"""Files of counts, of how often each expert of each layer was used, and what `--expert-placement` says with or without
one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from homenode.errors import UserError
from homenode.model.expert_placement import ExpertPlacement, ExpertUse
from homenode.model.formats.bounded_files import file_size, read_at
from homenode.model.part import every_expert
from homenode.model.spec import ModelSpec
from homenode.units import format_bytes, format_count

_MOST_BYTES = 64 << 20  # of a file of counts


def read_placement(setting: str, spec: ModelSpec) -> ExpertPlacement:
    """Return what `--expert-placement` says: spread, packed, or a JSON file with a list for each layer of a count for
    each expert. UserError for another.
    """
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
            f"{path} has counts of {format_count(len(counts), 'layer')}; the model has {spec.num_layers} (an empty "
            f"list where one has no experts)"
        )
    for layer, line in enumerate(counts):
        wanted = len(every_expert(spec, layer))
        if wanted and len(line) != wanted:
            raise UserError(
                f"{path} has {format_count(len(line), 'count')} for layer {layer}, which has "
                f"{format_count(wanted, 'expert')}"
            )
        if wanted and not all(0 <= count < float("inf") for count in line):
            raise UserError(f"{path} has a count below zero for layer {layer}")


def _unusable(why: str) -> UserError:
    return UserError(
        f"--expert-placement: {why}; give spread, packed, or a file of counts as --expert-counts makes it",
        param="expert_placement",
    )
