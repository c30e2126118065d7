"""The part of a model that one worker holds and computes: a stage of its layers, and a tensor-parallel rank's share of
every matrix. Plain data.

A model cut into stages (pipeline parallel) gives each stage a run of layers; the first has the embedding table, the
last the output matrix. Ranks of one stage (tensor parallel; Shoeybi et al. 2019, Megatron-LM) have the same layers and
divide what is inside them: heads, the inner columns of MLPs, the vocabulary; or whole experts (expert parallel). The
lengths that a rank's matrices have are the `IndexRange`s here, so the names of a parameter table's shape ("query",
"kv", "intermediate"...) say how each matrix is cut: by rows, by columns, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.model.spec import ModelSpec


@dataclass(frozen=True)
class IndexRange:
    """Elements first .. first + count - 1 of a dimension; or of `runs` equal ones, count elements in all, each begins
    `apart` elements behind the one before.
    """

    first: int
    count: int
    runs: int = 1
    apart: int = 0

    @property
    def end(self) -> int:
        """The first element after it."""
        return self.first + self.count // self.runs + (self.runs - 1) * self.apart

    @property
    def pieces(self) -> tuple[IndexRange, ...]:
        """The runs, each by itself."""
        return tuple(IndexRange(self.first + n * self.apart, self.count // self.runs) for n in range(self.runs))


@dataclass(frozen=True)
class ModelPart:
    """The part that one worker has. All ranges are in elements of the whole model: layers, heads, columns, rows of the
    vocabulary.

    `heads` query heads and the `kv_heads` they read; every rank has at least one of each, and within a rank all KV
    heads have equally many query heads. A KV head is with several ranks where there are more ranks than KV heads.
    `vocabulary`: rows of the embedding table and of the output matrix, and `vocabulary_widths` how many each rank of
    the stage has, in their order. `experts`: for each of the layers here the experts that are here, ascending, none
    where the layer has an ordinary MLP; the inner columns of each are cut (`expert_intermediate`) unless experts are
    divided as wholes. The router is with every rank. `layer_heads`: where layers have unlike heads, the query heads and
    KV heads of each layer here, in place of `heads` and `kv_heads`; `layer_intermediate`: likewise.
    """

    layers: IndexRange
    stage: int
    stages: int
    rank: int
    ranks: int
    heads: IndexRange
    kv_heads: IndexRange
    intermediate: IndexRange
    vocabulary: IndexRange
    expert_intermediate: IndexRange
    shared_intermediate: IndexRange
    vocabulary_widths: tuple[int, ...]
    experts: tuple[tuple[int, ...], ...] = ()
    head_counts: tuple[int, ...] = ()  # query heads of each rank of the stage, in their order
    state_groups: IndexRange = IndexRange(0, 1)  # of each layer's state: see `ModelSpec.state_groups`
    state_counts: tuple[int, ...] = ()  # how many of them each rank of the stage has, in their order
    layer_heads: tuple[tuple[IndexRange, IndexRange], ...] = ()
    layer_intermediate: tuple[IndexRange, ...] = ()

    @classmethod
    def whole(cls, spec: ModelSpec) -> ModelPart:
        """All of a model."""
        moe = spec.moe
        return cls(
            layers=IndexRange(0, spec.num_layers),
            stage=0,
            stages=1,
            rank=0,
            ranks=1,
            heads=IndexRange(0, spec.num_heads),
            kv_heads=IndexRange(0, spec.num_kv_heads),
            intermediate=IndexRange(0, spec.intermediate_size),
            vocabulary=IndexRange(0, spec.vocab_size),
            expert_intermediate=IndexRange(0, moe.intermediate_size if moe else 0),
            shared_intermediate=IndexRange(0, moe.shared_intermediate_size if moe else 0),
            vocabulary_widths=(spec.vocab_size,),
            experts=tuple(every_expert(spec, layer) for layer in range(spec.num_layers)),
            head_counts=(spec.num_heads,),
            state_groups=IndexRange(0, spec.state_groups),
            state_counts=(spec.state_groups,),
            layer_heads=tuple(
                (IndexRange(0, spec.query_heads_of(layer)), IndexRange(0, spec.heads_of(layer)[0]))
                for layer in range(len(spec.layer_kv))
            ),
            layer_intermediate=tuple(IndexRange(0, count) for count in spec.layer_intermediate),
        )

    def heads_in(self, layer: int) -> tuple[IndexRange, IndexRange]:
        """The query heads and the KV heads that are here of a layer of the model."""
        return self.layer_heads[layer - self.layers.first] if self.layer_heads else (self.heads, self.kv_heads)

    def intermediate_in(self, layer: int) -> IndexRange:
        """The inner columns that are here of the MLP of a layer of the model."""
        return self.layer_intermediate[layer - self.layers.first] if self.layer_intermediate else self.intermediate

    @property
    def is_whole(self) -> bool:
        """Return whether this is all of the model."""
        return self.stages == self.ranks == 1

    @property
    def name(self) -> str:
        """The part in words."""
        return f"stage {self.stage} of {self.stages}, rank {self.rank} of {self.ranks}"

    @property
    def adds_residual(self) -> bool:
        """Return whether, of the ranks that add up their shares this is the one that brings in what is whole: the
        residual, and a bias of the output.
        """
        return self.rank == 0

    @property
    def first_stage(self) -> bool:
        """Its rows come from the embedding table; otherwise from the stage before it."""
        return self.stage == 0

    @property
    def last_stage(self) -> bool:
        """Return whether it computes logits; otherwise it hands rows of the hidden state on."""
        return self.stage == self.stages - 1


def every_expert(spec: ModelSpec, layer: int) -> tuple[int, ...]:
    """The experts a layer has in all."""
    moe = spec.moe
    return () if moe is None or layer in moe.dense_layers else tuple(range(moe.num_experts))
