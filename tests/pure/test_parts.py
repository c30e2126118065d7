"""Cutting models into parts: every element is somewhere, once or as often as said; blocks stay whole, shares are fair;
the impossible is refused by name.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.compute.ops import LayerKv
from homenode.errors import UserError
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import ARCHITECTURES, architecture_of
from homenode.model.expert_placement import ExpertUse, place_experts
from homenode.model.formats.expert_counts import read_placement
from homenode.model.part import IndexRange, ModelPart
from homenode.model.partition import Alignment, divide, divide_heads
from homenode.model.parts import PartitionSpec, plan_parts, read_layer_split, with_donors
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec
from homenode.model.weights.load import layers_kv
from tests.model.toys import OWN, toy_spec

STORIES = ModelSpec("llama", 64, 172, 5, 8, 4, 8, 512, 512, 1e-5, RopeSpec(), tie_word_embeddings=True)


# Those whose tensors need figures that `drawn_spec` does not give. Whatever is missing here fails in
# `test_a_drawn_spec_has_the_figures_of_its_tensors`, always, not only when it is drawn.
WITH_FIGURES = {
    *(name for name, each in ARCHITECTURES.items() if "latent_row" in {d for p in each.parameters for d in p.shape}),
    "deepseek_v4", "gemma3n", "mimo_v2_flash", "mpnet", "nemotron_h",
}  # fmt: skip
DRAWN = sorted(ARCHITECTURES.keys() - WITH_FIGURES)


def drawn_spec(
    architecture: str, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int, vocabulary: int,
    tied: bool, biased: bool, moe: MoeSpec | None,
) -> ModelSpec:  # fmt: skip
    has_output = any(parameter.key == "lm_head" for parameter in ARCHITECTURES[architecture].parameters)
    return ModelSpec(
        architecture, 16, intermediate, layers, heads, kv_heads, head_dim, vocabulary, 64, 1e-5, RopeSpec(),
        tie_word_embeddings=has_output and tied, attention_bias=biased, moe=moe,
        own=None if architecture == "gemma4" else OWN.get(architecture), dimensions={"positions": 64},
    )  # fmt: skip


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    architecture = draw(st.sampled_from(DRAWN))
    kv_heads, layers = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    moe = None
    if architecture in ("mixtral", "qwen2_moe", "qwen3_moe"):
        dense = draw(st.sets(st.integers(0, layers - 1))) if architecture != "mixtral" else ()
        shared = draw(st.integers(1, 4)) * 8 if architecture == "qwen2_moe" else 0
        moe = MoeSpec(draw(st.integers(1, 7)), 1, draw(st.integers(1, 5)) * 8, True, shared, tuple(sorted(dense)))
    return drawn_spec(
        architecture, draw(st.integers(1, 9)) * 8, layers, kv_heads * draw(st.integers(1, 4)), kv_heads,
        draw(st.sampled_from([4, 8])), draw(st.integers(1, 70)), draw(st.booleans()), draw(st.booleans()), moe,
    )  # fmt: skip


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("architecture", DRAWN)
def test_a_drawn_spec_has_the_figures_of_its_tensors(architecture: str, layers: int) -> None:
    spec = drawn_spec(architecture, 24, layers, 4, 2, 8, 40, False, True, None)
    parts = parts_of(spec, PartitionSpec(1, 2, None, False, "spread"))
    assert parts is not None
    tensors = architecture_of(architecture).parameters
    assert all(len(list(expected_tensors(tensors, spec, part))) > 0 for part in parts)


def grains_for(spec: ModelSpec, size: int) -> dict[str, Alignment]:
    names = {
        e.parameter.shape[1]
        for e in expected_tensors(architecture_of(spec.architecture).parameters, spec)
        if len(e.shape) == 2
    }
    return {name: Alignment(size) for name in names}


def parts_of(spec: ModelSpec, how: PartitionSpec, size: int = 1) -> tuple[ModelPart, ...] | None:
    try:
        return plan_parts(spec, grains_for(spec, size), how)
    except UserError as error:
        assert error.param in ("tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel")
        assert str(how.ranks) in error.message or str(how.stages) in error.message or "no experts" in error.message
        return None


@given(
    specs(),
    st.integers(1, 4),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(["spread", "packed"]),
    st.sampled_from([1, 4, 8]),
)
def test_every_element_is_with_as_many_ranks_as_said(
    spec: ModelSpec, stages: int, ranks: int, experts_whole: bool, placement: str, block: int
) -> None:
    parts = parts_of(spec, PartitionSpec(stages, ranks, None, experts_whole, placement), block)  # type: ignore[arg-type]
    if parts is None:
        return
    table = architecture_of(spec.architecture).parameters
    held = {e.name: np.zeros(e.shape, int) for e in expected_tensors(table, spec)}
    for part in parts:
        for tensor in expected_tensors(table, spec, part):
            held[tensor.name][tuple(slice(span.first, span.end) for span in tensor.cut)] += 1
            if len(tensor.cut) == 2 and tensor.cut[1].count < tensor.shape[1]:
                assert tensor.cut[1].first % block == 0 and tensor.cut[1].end % block in (0, tensor.shape[1] % block)
    kv_heads = Counter(kv for part in parts[:ranks] for kv in range(part.kv_heads.first, part.kv_heads.end))
    for expected in expected_tensors(table, spec):
        divided = set(expected.parameter.shape) & {
            "heads",
            "query",
            "query_and_gate",
            "vocabulary",
            "intermediate",
            "shared_intermediate",
            "expert_intermediate",
        }
        copies = 1 if divided else ranks
        if expected.parameter.key == "embed" and stages > 1 and spec.tie_word_embeddings:
            copies = 2
        if expected.parameter.shape[0] == "kv":
            wanted = np.repeat([kv_heads[kv] for kv in range(spec.num_kv_heads)], spec.head_dim)
            assert (wanted == held[expected.name].T).all()
        else:
            assert (held[expected.name] == copies).all(), expected.name


@given(specs(), st.integers(1, 9), st.sampled_from([1, 4, 8, 16]))
def test_every_rank_reads_the_kv_heads_of_its_query_heads(spec: ModelSpec, ranks: int, block: int) -> None:
    group = spec.num_heads // spec.num_kv_heads
    shares = divide_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, ranks, Alignment(block))
    if shares is None:
        assert block > 1 or ranks > spec.num_heads
        return
    assert [heads.first for heads, _ in shares] == [0, *(heads.end for heads, _ in shares[:-1])]
    assert shares[-1][0].end == spec.num_heads and all(heads.first * spec.head_dim % block == 0 for heads, _ in shares)
    for heads, kv in shares:
        assert heads.count >= 1 and heads.count % kv.count == 0
        each = heads.count // kv.count
        assert [h // group for h in range(heads.first, heads.end)] == [kv.first + i // each for i in range(heads.count)]
    if ranks <= spec.num_kv_heads:
        assert Counter(k for _, kv in shares for k in range(kv.first, kv.end)) == Counter(range(spec.num_kv_heads))


@given(st.integers(1, 100_000), st.integers(1, 40), st.sampled_from([1, 32, 256]), st.sampled_from([1, 32]))
def test_shares_are_fair(count: int, ranks: int, needed: int, wanted: int) -> None:
    spans = divide(count, ranks, Alignment(needed, wanted))
    if spans is None:
        assert -(-count // needed) < ranks
        return
    assert [span.first for span in spans] == [0, *(span.end for span in spans[:-1])] and spans[-1].end == count
    assert all(span.first % needed == 0 and span.count > 0 for span in spans)
    largest = max(span.count for span in spans)
    assert spans[0].count == largest and largest - count / ranks <= max(needed, 32)


def test_shares_have_the_values_of_the_whole_where_they_can() -> None:
    """Blocks that are made at load are cut as stored ones where there are enough of them; otherwise cutting them is
    better than not starting.
    """
    assert divide(96, 3, Alignment(1, 32)) == (IndexRange(0, 32), IndexRange(32, 32), IndexRange(64, 32))
    assert divide(172, 2, Alignment(1, 32)) == (IndexRange(0, 96), IndexRange(96, 76))
    assert divide(172, 7, Alignment(1, 32)) == divide(172, 7)
    assert divide_heads(8, 4, 8, 2, Alignment(1, 32)) == divide_heads(8, 4, 8, 2, Alignment(32))
    assert divide_heads(8, 4, 8, 3, Alignment(32)) is None
    assert divide_heads(8, 4, 8, 3, Alignment(1, 32)) == divide_heads(8, 4, 8, 3, Alignment())


@pytest.mark.parametrize(
    ("ranks", "heads", "kv_heads"),
    [
        (2, (4, 4), (2, 2)),
        (3, (4, 2, 2), (2, 1, 1)),
        (4, (2,) * 4, (1,) * 4),
        (5, (1, 1, 2, 2, 2), (1,) * 5),
        (8, (1,) * 8, (1,) * 8),
    ],
)
def test_uneven_heads(ranks: int, heads: tuple[int, ...], kv_heads: tuple[int, ...]) -> None:
    parts = plan_parts(STORIES, grains_for(STORIES, 1), PartitionSpec(ranks=ranks))
    assert tuple(p.heads.count for p in parts) == heads and tuple(p.kv_heads.count for p in parts) == kv_heads
    assert all(p.vocabulary_widths == tuple(q.vocabulary.count for q in parts) for p in parts)
    assert sum(parts[0].vocabulary_widths) == 512 and sum(p.intermediate.count for p in parts) == 172


def test_the_whole_is_one_part() -> None:
    for name in ARCHITECTURES:
        spec = toy_spec(name)
        whole = ModelPart.whole(spec)
        assert plan_parts(spec, grains_for(spec, 1), PartitionSpec()) == (whole,) and whole.is_whole
        table = architecture_of(name).parameters
        assert list(expected_tensors(table, spec, whole)) == list(expected_tensors(table, spec))


@pytest.mark.parametrize(
    ("how", "param", "words"),
    [
        (PartitionSpec(stages=6), "pipeline_parallel_size", ["--pipeline-parallel-size 6", "5 layers", "5 or less"]),
        (PartitionSpec(stages=2, layers=(1, 2, 2)), "layer_split", ["--layer-split 1,2,2", "3 numbers", "2 stages"]),
        (PartitionSpec(stages=2, layers=(1, 3)), "layer_split", ["adds up to 4", "5 layers"]),
        (PartitionSpec(stages=2, layers=(0, 5)), "layer_split", ["each stage needs one"]),
        (
            PartitionSpec(ranks=9),
            "tensor_parallel_size",
            ["--tensor-parallel-size 9", "8 query heads", "4 KV heads", "give 5 or 6 or 7 or 8"],
        ),
        (PartitionSpec(ranks=2, experts_whole=True), "enable_expert_parallel", ["no experts"]),
    ],
)
def test_the_impossible_is_refused_by_name(how: PartitionSpec, param: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        plan_parts(STORIES, grains_for(STORIES, 1), how)
    assert caught.value.param == param and all(word in caught.value.message for word in words), caught.value.message


def test_blocks_that_cannot_be_cut_are_named() -> None:
    with pytest.raises(UserError, match=r"8 query heads of 8 elements.*blocks of 32.*give 1 or 2") as caught:
        plan_parts(STORIES, {"query": Alignment(32), "intermediate": Alignment(4)}, PartitionSpec(ranks=3))
    assert caught.value.param == "tensor_parallel_size"
    with pytest.raises(UserError, match=r"intermediate length of 172.*blocks of 86.*give 1 or 2"):
        plan_parts(STORIES, {"query": Alignment(), "intermediate": Alignment(86)}, PartitionSpec(ranks=3))
    with pytest.raises(UserError, match=r"vocabulary of 3 cannot.*give 1 or 2 or 3"):
        plan_parts(replace(STORIES, vocab_size=3), {}, PartitionSpec(ranks=4))


def test_more_ranks_than_experts_are_refused() -> None:
    spec = toy_spec("mixtral")
    with pytest.raises(UserError, match=r"4 experts.*give 4 ranks or less") as caught:
        plan_parts(spec, grains_for(spec, 1), PartitionSpec(ranks=6, experts_whole=True))
    assert caught.value.param == "tensor_parallel_size"


def test_an_mlp_that_no_layer_has_is_not_cut() -> None:
    spec = replace(toy_spec("mixtral"), intermediate_size=1)
    assert all(
        p.intermediate == IndexRange(0, 1) for p in plan_parts(spec, grains_for(spec, 1), PartitionSpec(ranks=2))
    )


@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_every_expert_has_one_place(experts: int, ranks: int, data: st.DataObject) -> None:
    counts = tuple(data.draw(st.lists(st.integers(0, 1000).map(float), min_size=experts, max_size=experts)))
    accelerators = data.draw(st.sets(st.integers(0, ranks - 1)))
    for placement in ("spread", "packed", ExpertUse((counts,))):
        places = place_experts(range(experts), 0, ranks, placement, accelerators)  # type: ignore[arg-type]
        assert sorted(e for rank in places for e in rank) == list(range(experts)) and all(
            list(p) == sorted(p) for p in places
        )
        sizes = [len(rank) for rank in places]
        assert max(sizes) - min(sizes) <= 1
    there = [counts[e] for rank in accelerators for e in places[rank]]
    others = [counts[e] for rank in set(range(ranks)) - accelerators for e in places[rank]]
    assert not there or not others or min(there) >= max(others)


def test_ways_to_place_experts() -> None:
    counts = ExpertUse(((), (5.0, 1.0, 9.0, 8.0, 0.0)))
    assert place_experts(range(5), 1, 2, "spread") == ((0, 2, 4), (1, 3))
    assert place_experts(range(5), 1, 2, "packed") == ((0, 1), (2, 3, 4))
    assert place_experts(range(5), 1, 2, counts, {1}) == ((1, 4), (0, 2, 3))
    assert place_experts(range(5), 1, 2, counts) == ((1, 2, 4), (0, 3))


def test_accelerators_are_numbered_over_all_stages() -> None:
    spec = toy_spec("mixtral", num_layers=2)
    how = PartitionSpec(2, 2, None, True, ExpertUse(((1.0, 2.0, 3.0, 4.0),) * 2), accelerators=(0, 3))
    parts = plan_parts(spec, grains_for(spec, 1), how)
    assert [p.experts for p in parts] == [((2, 3),), ((0, 1),), ((0, 1),), ((2, 3),)]


def test_counts_come_from_a_file(tmp_path: Path) -> None:
    spec = toy_spec("qwen3_moe")  # its first layer has no experts
    path = tmp_path / "counts.json"
    path.write_text(json.dumps([[], [3] * 9]))
    assert read_placement(str(path), spec) == ExpertUse(((), (3.0,) * 9))
    assert read_placement("spread", spec) == "spread" and read_placement("packed", spec) == "packed"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "no JSON list"),
        ("[[1", "no JSON list"),
        ("[[]]", "counts of 1 layer; the model has 2"),
        ("[[], [1, 2]]", "2 counts for layer 1, which has 9"),
        ("[[], [0,0,0,0,0,0,0,0,-1]]", "below zero"),
        (None, "neither spread nor packed"),
    ],
)
def test_unusable_counts_are_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "counts.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        read_placement(str(path), toy_spec("qwen3_moe"))
    assert caught.value.param == "expert_placement"


def test_layer_splits_are_read() -> None:
    assert read_layer_split("auto") is None and read_layer_split("2,3") == (2, 3) and read_layer_split("5") == (5,)
    for wrong in ("", "2,", "a", "2;3", "-1,6", "1.5,2", "٣"):
        with pytest.raises(UserError, match="--layer-split") as caught:
            read_layer_split(wrong)
        assert caught.value.param == "layer_split"


def test_layers_of_stages() -> None:
    given = plan_parts(STORIES, {}, PartitionSpec(stages=2, layers=(2, 3)))
    even = plan_parts(STORIES, {}, PartitionSpec(stages=3))
    assert [p.layers for p in given] == [IndexRange(0, 2), IndexRange(2, 3)]
    assert [p.layers for p in even] == [IndexRange(0, 2), IndexRange(2, 2), IndexRange(4, 1)]
    assert [(p.first_stage, p.last_stage) for p in even] == [(True, False), (False, False), (False, True)]


# Two kinds of layers; layer 1 attends to nothing; the last two read what layers 4 and 5 keep.
UNLIKE = replace(
    STORIES,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    layer_kv=(LayerKv(2, 8, 8), None, LayerKv(2, 8, 8), LayerKv(1, 16, 16), LayerKv(2, 8, 8), LayerKv(1, 16, 16), 4, 5),
    layer_intermediate=(160,) * 6 + (320,) * 2,
)


def test_layers_of_unlike_heads_are_cut_each_by_its_own() -> None:
    grains = {name: Alignment() for name in ("query", "intermediate", "hidden")}
    parts = plan_parts(UNLIKE, grains, PartitionSpec(stages=2, ranks=2))
    assert [part.layers for part in parts] == [IndexRange(0, 4), IndexRange(0, 4), IndexRange(4, 4), IndexRange(4, 4)]
    assert parts[1].heads_in(0) == (IndexRange(2, 2), IndexRange(1, 1))
    assert parts[1].heads_in(3) == (IndexRange(2, 2), IndexRange(0, 1))  # its one KV head is on both ranks
    assert parts[3].intermediate_in(5) == IndexRange(80, 80) and parts[3].intermediate_in(6) == IndexRange(160, 160)
    assert layers_kv(UNLIKE, parts[0]) == (LayerKv(1, 8, 8), LayerKv(1, 8, 8), LayerKv(1, 16, 16))
    assert layers_kv(UNLIKE, parts[3]) == (LayerKv(1, 8, 8), LayerKv(1, 16, 16))
    assert UNLIKE.cache_layers(0, 8) == {0: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 3, 7: 4}
    assert UNLIKE.cache_layers(4, 8) == {4: 0, 5: 1, 6: 0, 7: 1}


def test_a_layer_stays_with_the_one_whose_keys_it_reads() -> None:
    assert with_donors(UNLIKE, (4, 4)) == (4, 4)
    assert with_donors(UNLIKE, (6, 2)) == (4, 4) == with_donors(UNLIKE, (5, 3))
    assert with_donors(STORIES, (2, 3)) == (2, 3)
    with pytest.raises(UserError, match="--pipeline-parallel-size 3: layers of this model read keys"):
        with_donors(UNLIKE, (5, 1, 2))
    with pytest.raises(UserError, match="--layer-split 6,2: layers from 6 on read keys and values of layer 4"):
        plan_parts(UNLIKE, {}, PartitionSpec(stages=2, layers=(6, 2)))
