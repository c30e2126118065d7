"""What the cost model of the NUMA policies is told about a model, and what becomes of its answer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.compute.ops import KvGeometry, LayerKv
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.node_teams import node_teams
from homenode.model.partition import Alignment
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.spec import BlockChoice, IndexerSpec, ModelSpec, MoeSpec, RopeSpec
from homenode.model.weights import numa_choice
from homenode.model.weights.layout import MatrixLayout, WeightLayout
from homenode.model.weights.numa_choice import cost_choice, measured_speeds, model_work
from tests.placement_hosts import host

GEOMETRY = KvGeometry.uniform(2, 2, 16, 64, "bf16")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for the cost model and the measured file, that keeps what it was asked."""
    kept = SimpleNamespace(asked=[])

    def choose_policy(*asked: Any) -> Decision:
        kept.asked.append(asked)
        return Decision("mirror", "because")

    monkeypatch.setattr(numa_choice, "choose_policy", choose_policy)
    monkeypatch.setattr(numa_choice, "machine_speed", lambda teams, host, measured: ("speed", len(teams), measured))
    monkeypatch.setattr(numa_choice, "load_measured", lambda path: f"read from {path}")
    return kept


def spec_of(**changes: Any) -> ModelSpec:
    figures: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "vocab_size": 1000, "max_position": 256, "norm_eps": 1e-5, "rope": RopeSpec(), "tie_word_embeddings": True,
    }  # fmt: skip
    return ModelSpec("llama", **{**figures, **changes})


def layout_of(**shapes: tuple[int, int]) -> WeightLayout:
    matrices = tuple(
        MatrixLayout(n.replace("__", "."), r, c, "BF16", "BF16", "", 2 * r * c, 2 * r * c)
        for n, (r, c) in shapes.items()
    )
    return WeightLayout(matrices, 100)


TABLE = {"model__embed_tokens__weight": (1000, 64)}


def test_a_table_that_is_the_output_matrix_is_multiplied_whole(model: SimpleNamespace) -> None:
    work = model_work(spec_of(), layout_of(**TABLE, q=(64, 64)), GEOMETRY)
    elements = 1000 * 64 + 64 * 64
    assert (work.weight_bytes, work.active_bytes, work.flops_per_token) == (
        2 * elements + 100,
        2 * elements + 100,
        2 * elements,
    )
    assert (work.layers, work.kv_bytes_per_token, work.expert_share) == (2, 2 * 2 * 2 * 16 * 2, None)


def test_of_a_table_of_its_own_a_token_reads_a_row(model: SimpleNamespace) -> None:
    work = model_work(spec_of(tie_word_embeddings=False), layout_of(**TABLE, lm_head__weight=(1000, 64)), GEOMETRY)
    assert work.flops_per_token == 2 * (64 + 1000 * 64)
    assert work.active_bytes == 2 * (64 + 1000 * 64) + 100


def test_where_indexers_choose_their_keys_and_layers_without_them_are_read_whole(model: SimpleNamespace) -> None:
    blocks = IndexerSpec(2, 24, 2048, (1, 2), False, BlockChoice(128, 16, 1))
    spec = spec_of(num_layers=3, indexer=blocks)
    kept = (*[LayerKv(2, 16, 16)] * 3, *[spec.index_kv(layer) for layer in (1, 2)])
    work = model_work(spec, layout_of(**TABLE), KvGeometry(kept, 64, "bf16"))
    assert (work.chosen, work.kv_bytes_per_token) == (2048, 2 * (3 * 64 + 2 * 24))
    assert work.scanned_bytes == 2 * (64 + 2 * 24)
    # without blocks, a layer takes the choice of the one before it
    shared = spec_of(num_layers=3, indexer=replace(blocks, layers=(0,), blocks=None))
    assert model_work(shared, layout_of(**TABLE), KvGeometry((*kept[:3], kept[3]), 64, "bf16")).scanned_bytes == 2 * 24


def test_of_experts_the_chosen_ones_count(model: SimpleNamespace) -> None:
    experts = {f"model__layers__0__mlp__experts__{e}__up_proj__weight": (32, 64) for e in range(8)}
    spec = spec_of(moe=MoeSpec(8, 2, 32, True))
    work = model_work(spec, layout_of(router=(8, 64), **experts), GEOMETRY)
    assert work.flops_per_token == 2 * (8 * 64 + 2 * 32 * 64)
    assert work.weight_bytes - work.active_bytes == 2 * 6 * 32 * 64
    assert work.expert_share == 0.25


def test_of_a_part_what_is_there_counts(model: SimpleNamespace) -> None:
    """Its layers, heads and inner columns; the first of several stages reads rows of a table that the last one
    multiplies with.
    """
    spec = spec_of()
    parts = plan_parts(spec, {"intermediate": Alignment(), "query": Alignment()}, PartitionSpec(stages=2, ranks=2))
    first, last = (
        model_work(
            spec, layout_of(model__embed_tokens__weight=(500, 64)), KvGeometry.uniform(1, 1, 16, 64, "bf16"), part
        )
        for part in (parts[0], parts[2])
    )
    assert (first.flops_per_token, last.flops_per_token) == (2 * 64, 2 * 500 * 64)
    assert first.layers == 1 and first.activation_bytes == 4 * (2 * 64 + 2 * 2 * 16 + 2 * 16 + 2 * 48)
    mixed = spec_of(moe=MoeSpec(8, 2, 32, True))
    experts = plan_parts(mixed, {"expert_intermediate": Alignment()}, PartitionSpec(ranks=2, experts_whole=True))
    assert model_work(mixed, layout_of(), GEOMETRY, experts[0]).activation_bytes == 4 * (
        2 * 64 + 2 * 2 * 16 + 2 * 16 + 2 * 32
    )


def test_the_model_is_asked_with_the_room_of_every_node_and_its_answer_kept(model: SimpleNamespace) -> None:
    on = host("2s/2n/8c")
    teams = node_teams(on, None, None, 1)
    chosen = cost_choice(on, spec_of(), layout_of(**TABLE), GEOMETRY, 3, 500)(teams)
    assert (chosen.policy, chosen.why) == ("mirror", "because")
    ((machine, work, room, batch, context),) = model.asked
    assert (machine, room, batch, context) == (("speed", 2, None), {0: 16 << 30, 1: 16 << 30}, 3, 500)
    assert work.layers == 2


def test_measured_speeds_are_read_and_handed_on(model: SimpleNamespace) -> None:
    on = host("2s/2n/8c")
    choose = cost_choice(on, spec_of(), layout_of(**TABLE), GEOMETRY, 1, 1, measured_speeds("speeds.json"))
    choose(node_teams(on, None, None, 1))
    assert model.asked[0][0] == ("speed", 2, "read from speeds.json")
    assert measured_speeds(None) is None
