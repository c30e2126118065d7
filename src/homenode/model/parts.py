"""Cutting a model into the parts of its workers: a run of layers for each stage, a share of every matrix for each rank.
Pure.

What cannot be cut is refused with the setting, the numbers and what would work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from homenode.errors import UserError
from homenode.model.expert_placement import ExpertPlacement, Experts, place_experts
from homenode.model.part import IndexRange, ModelPart, every_expert
from homenode.model.partition import Alignment, divide, divide_heads
from homenode.model.spec import ModelSpec, MoeSpec
from homenode.units import format_count

_Share = TypeVar("_Share")
_Heads = tuple[int, int, int]  # query heads of a layer, its KV heads, and their elements


@dataclass(frozen=True)
class PartitionSpec:
    """The way in which a model is to be cut.

    `layers`: of each stage; None: evenly, the first stages getting one more. `experts_whole`: each rank has whole
    experts, by `placement`, instead of a part of each. `accelerators`: numbers of workers, counted stage after stage,
    that the most used experts go to first.
    """

    stages: int = 1
    ranks: int = 1
    layers: tuple[int, ...] | None = None
    experts_whole: bool = False
    placement: ExpertPlacement = "spread"
    accelerators: Collection[int] = ()


def plan_parts(spec: ModelSpec, alignments: Mapping[str, Alignment], how: PartitionSpec) -> tuple[ModelPart, ...]:
    """The part of each worker, stage after stage.

    `alignments`: where the dimensions that a parameter table names may be cut (`weights.alignment`); one that no matrix
    of the model has is missing. UserError, naming tensor_parallel_size, pipeline_parallel_size, layer_split or
    enable_expert_parallel, for what cannot be.
    """
    stages = _stages(spec, how)
    shares = _RankShards.of(spec, alignments, how)
    return tuple(
        shares.part(spec, how, stages, stage, rank) for stage in range(how.stages) for rank in range(how.ranks)
    )


def read_layer_split(setting: str) -> tuple[int, ...] | None:
    """Return what `--layer-split` says: None for auto, else the layers of each stage. UserError when it
    says neither.
    """
    if setting == "auto":
        return None
    words = setting.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() and len(word.strip()) < 10 for word in words):
        raise UserError(
            f"--layer-split {setting}: give auto, or the layers of each stage joined by commas, such as 12,20",
            param="layer_split",
        )
    return tuple(int(word) for word in words)


def with_donors(spec: ModelSpec, layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers of each stage, stages that would part a layer from the one whose keys and values it reads, or whose
    choice of tokens it takes, beginning as many layers earlier as it takes. UserError where a stage would have none
    left.
    """
    cuts = list(accumulate(layers))[:-1]
    while parted := [(cut, donor) for cut in cuts if (donor := _parted_donor(spec, cut)) is not None]:
        cuts = [dict(parted).get(cut, cut) for cut in cuts]
    moved = tuple(end - first for first, end in pairwise((0, *cuts, spec.num_layers)))
    if min(moved) < 1:
        raise UserError(
            f"--pipeline-parallel-size {len(layers)}: layers of this model read keys and values of earlier ones and "
            f"stay with them in one stage, so that one of {len(layers)} would have no layer; give fewer stages",
            param="pipeline_parallel_size",
        )
    return moved


def _parted_donor(spec: ModelSpec, cut: int) -> int | None:
    """The first layer before `cut` whose keys and values a layer from `cut` on reads, or whose choice of tokens it
    takes; None where there is none.
    """
    needed = (of(layer) for layer in range(cut, spec.num_layers) for of in (spec.donor_of, spec.chooser_of))
    return min((layer for layer in needed if layer < cut), default=None)


def _stages(spec: ModelSpec, how: PartitionSpec) -> tuple[IndexRange, ...]:
    if how.layers is None:
        ranges = divide(spec.num_layers, how.stages)
        if ranges is None:
            raise UserError(
                f"--pipeline-parallel-size {how.stages}: the model has {format_count(spec.num_layers, 'layer')} and "
                f"each stage needs one; give {spec.num_layers} or less",
                param="pipeline_parallel_size",
            )
        return _ranges_of(with_donors(spec, tuple(stage.count for stage in ranges)))
    told = ",".join(map(str, how.layers))
    if len(how.layers) != how.stages:
        raise UserError(
            f"--layer-split {told} has {len(how.layers)} numbers, and --pipeline-parallel-size says "
            f"{format_count(how.stages, 'stage')}; give one for each stage",
            param="layer_split",
        )
    if sum(how.layers) != spec.num_layers or min(how.layers) < 1:
        raise UserError(
            f"--layer-split {told} adds up to {sum(how.layers)}; the model has "
            f"{format_count(spec.num_layers, 'layer')}, and each stage needs one or more",
            param="layer_split",
        )
    for stage in _ranges_of(how.layers):
        if (donor := _parted_donor(spec, stage.first)) is not None:
            raise UserError(
                f"--layer-split {told}: layers from {stage.first} on read keys and values of layer {donor}, which is "
                f"in an earlier stage; end that stage before layer {donor}",
                param="layer_split",
            )
    return _ranges_of(how.layers)


def _ranges_of(layers: Sequence[int]) -> tuple[IndexRange, ...]:
    return tuple(IndexRange(end - count, count) for count, end in zip(layers, accumulate(layers), strict=True))


@dataclass(frozen=True)
class _RankShards:
    """The share that each rank has of every layer."""

    heads: Mapping[_Heads, tuple[tuple[IndexRange, IndexRange], ...]]
    vocabulary: tuple[IndexRange, ...]
    intermediate: Mapping[int, tuple[IndexRange, ...]]  # by its length
    expert: tuple[IndexRange, ...]
    shared: tuple[IndexRange, ...]
    state: tuple[IndexRange, ...]

    @classmethod
    def of(cls, spec: ModelSpec, alignments: Mapping[str, Alignment], how: PartitionSpec) -> _RankShards:
        moe = spec.moe or MoeSpec(0, 0, 0, False)
        if how.experts_whole:
            check_experts(spec, how.ranks)

        def inner(name: str, count: int) -> tuple[IndexRange, ...]:
            if name not in alignments or (how.experts_whole and name == "expert_intermediate"):
                return (IndexRange(0, count),) * how.ranks
            what = f"{name.replace('_', ' ')} length of {count}"
            return _among(spec, how.ranks, what, alignments[name], lambda ranks: divide(count, ranks, alignments[name]))

        query = _head_alignment(spec, alignments)

        def heads(query_heads: int, kv_heads: int, head_dim: int) -> tuple[tuple[IndexRange, IndexRange], ...]:
            queries, keys = format_count(query_heads, "query head"), format_count(kv_heads, "KV head")
            what = f"{queries} of {format_count(head_dim, 'element')} with {keys}"
            return _among(
                spec,
                how.ranks,
                what,
                query,
                lambda ranks: divide_heads(query_heads, kv_heads, head_dim, ranks, query),
            )

        every = range(spec.num_layers)
        return cls(
            heads={kind: heads(*kind) for kind in _kinds_of_heads(spec)},
            vocabulary=_among(
                spec,
                how.ranks,
                f"vocabulary of {spec.vocab_size}",
                Alignment(),
                lambda ranks: divide(spec.vocab_size, ranks),
            ),
            intermediate={size: inner("intermediate", size) for size in map(spec.intermediate_of, every)},
            expert=inner("expert_intermediate", moe.intermediate_size),
            shared=inner("shared_intermediate", moe.shared_intermediate_size),
            state=_state_groups(spec, how.ranks, alignments),
        )

    def part(
        self, spec: ModelSpec, how: PartitionSpec, stages: Sequence[IndexRange], stage: int, rank: int
    ) -> ModelPart:
        layers = stages[stage]
        here = range(layers.first, layers.end)
        of_ranks = self.heads[
            max(_kinds_of_heads(spec), key=lambda kind: kind[0])
        ]  # of the layers with most query heads
        heads, kv_heads = of_ranks[rank]
        return ModelPart(
            layers=layers,
            stage=stage,
            stages=how.stages,
            rank=rank,
            ranks=how.ranks,
            heads=heads,
            kv_heads=kv_heads,
            intermediate=self.intermediate[spec.intermediate_of(0)][rank],
            vocabulary=self.vocabulary[rank],
            expert_intermediate=self.expert[rank],
            shared_intermediate=self.shared[rank],
            vocabulary_widths=tuple(piece.count for piece in self.vocabulary),
            experts=tuple(_experts(spec, how, layer, stage)[rank] for layer in here),
            head_counts=tuple(of_rank.count for of_rank, _ in of_ranks),
            state_groups=self.state[rank],
            state_counts=tuple(of_rank.count for of_rank in self.state),
            layer_heads=tuple(self.heads[_heads_of(spec, n)][rank] for n in here) if spec.layer_kv else (),
            layer_intermediate=(
                tuple(self.intermediate[spec.intermediate_of(n)][rank] for n in here) if spec.layer_intermediate else ()
            ),
        )


def _head_alignment(spec: ModelSpec, alignments: Mapping[str, Alignment]) -> Alignment:
    """Return where the columns of query heads may be cut; those of another width per head count as so many
    whole heads.
    """
    found = alignments.get("query", Alignment())
    for name, width in spec.head_widths.items():
        each = alignments.get(name, Alignment())
        needed, wanted = (size // math.gcd(size, width) * spec.head_dim for size in (each.needed, each.wanted))
        if each != Alignment():
            found = Alignment(math.lcm(found.needed, needed), math.lcm(found.wanted, wanted))
    if spec.group_heads > 1:
        together = spec.group_heads * spec.head_dim
        for name, width in spec.group_widths.items():
            each = alignments.get(name, Alignment())
            needed, wanted = (size // math.gcd(size, width) * together for size in (each.needed, each.wanted))
            found = Alignment(math.lcm(found.needed, needed), math.lcm(found.wanted, wanted))
    return found


def _heads_of(spec: ModelSpec, layer: int) -> _Heads:
    return (spec.query_heads_of(layer), *spec.heads_of(layer))


def _kinds_of_heads(spec: ModelSpec) -> list[_Heads]:
    """Return those of the model's layers, each kind once."""
    return list(dict.fromkeys(_heads_of(spec, layer) for layer in range(spec.num_layers)))


def _state_groups(spec: ModelSpec, ranks: int, alignments: Mapping[str, Alignment]) -> tuple[IndexRange, ...]:
    """The groups of each state. Of a gated delta rule they are key heads, with their value heads, whose columns are
    aligned.
    """
    delta, mixer = spec.delta, spec.mixer
    if ranks == 1 or not spec.layer_states or spec.pooled is not None:  # what is to be pooled is with every rank
        return (IndexRange(0, spec.state_groups),) * ranks
    name, columns = ("delta_value", 1) if mixer is None else mixer.columns
    if delta is not None:
        columns = delta.value_size // delta.key_heads
    if delta is not None and delta.interleaved:  # a rank has a run of columns for each of a key head's value heads
        columns = delta.value_width
    alignment = alignments.get(name, Alignment())
    units = [size // math.gcd(size, columns) for size in alignment.tries()]
    if delta is not None and delta.interleaved:
        units = [unit for unit in units if delta.key_heads % unit == 0]  # so that all runs begin at such a place
    if mixer is not None:
        units = [math.lcm(unit, mixer.together) for unit in units] + units

    def cut(count: int) -> tuple[IndexRange, ...] | None:
        return next((found for unit in units if (found := divide(spec.state_groups, count, Alignment(unit)))), None)

    what = f"the state of {format_count(spec.state_groups, 'group')} of heads"
    return _among(spec, ranks, what, alignment, cut)


def _experts(spec: ModelSpec, how: PartitionSpec, layer: int, stage: int) -> Experts:
    experts = every_expert(spec, layer)
    if not how.experts_whole or not experts:
        return (experts,) * how.ranks
    first = stage * how.ranks
    return place_experts(experts, layer, how.ranks, how.placement, {worker - first for worker in how.accelerators})


def check_experts(spec: ModelSpec, ranks: int) -> None:
    """UserError, naming the setting, where the experts of the model cannot be divided as wholes among so many ranks."""
    if spec.moe is None:
        raise UserError(
            f"--enable-expert-parallel: a {spec.architecture} model has no experts to divide; leave it out",
            param="enable_expert_parallel",
        )
    if spec.moe.num_experts < ranks:
        raise UserError(
            f"--enable-expert-parallel with --tensor-parallel-size {ranks}: the model has "
            f"{format_count(spec.moe.num_experts, 'expert')} and each rank needs "
            f"one; give {format_count(spec.moe.num_experts, 'rank')} or less, or leave --enable-expert-parallel out",
            param="tensor_parallel_size",
        )


def _among(
    spec: ModelSpec, ranks: int, what: str, alignment: Alignment, cut: Callable[[int], tuple[_Share, ...] | None]
) -> tuple[_Share, ...]:
    """The shares of `what`; UserError with the numbers of ranks that would do where it cannot be cut."""
    shares = cut(ranks)
    if shares is not None:
        return shares
    can = [n for n in range(1, min(ranks, spec.num_heads + 1)) if cut(n) is not None]
    blocks = f", stored in blocks of {alignment.needed}," if alignment.needed > 1 else ""
    raise UserError(
        f"--tensor-parallel-size {ranks}: {what}{blocks} cannot be divided among {format_count(ranks, 'rank')}; give "
        f"{' or '.join(map(str, can[-4:]))}" + (", or make stages (--pipeline-parallel-size)" if ranks > 1 else ""),
        param="tensor_parallel_size",
    )
