"""Who keeps which experts of several engines, what each then has to take memory for, and where it is said that they
cannot.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homenode.compute.reference import ReferenceBackend
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.experts.group import ExpertGroupRank, expert_group_rank, expert_problem, not_in_common
from homenode.engine.experts.sizing import ExpertSharing, kept_of, missing_layout, own_layout
from homenode.engine.plan.stages.layer_capacity import weight_needs
from homenode.host.plan.numa.node_teams import NodeTeam
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import plan_model
from homenode.model.weights.node_placement import plan_weight_nodes
from tests.checkpoints import make_folder
from tests.engine.engines import config_for


def one_of(count: int, number: int = 0, path: Path = Path("model"), **settings: Any) -> Any:
    config = config_for(path, enable_expert_parallel=True, **settings)
    return EngineAssignment(config, Replica(number, count, EngineBinding((number,))))


ALL_CPU = [("cpu",)] * 2


def test_engines_of_cpu_workers_keep_experts_in_common() -> None:
    assert [expert_group_rank(one_of(2, number), ALL_CPU) for number in range(2)] == [
        ExpertGroupRank(0, 2),
        ExpertGroupRank(1, 2),
    ]
    assert expert_group_rank(one_of(2, tensor_parallel_size=2), [("cpu", "cpu")] * 2) == ExpertGroupRank(0, 2)
    alone = EngineAssignment(config_for(Path("model"), enable_expert_parallel=True))
    unasked = replace(one_of(2), config=config_for(Path("model")))
    for config in (alone, one_of(1), unasked):
        assert expert_group_rank(config, ALL_CPU) is None and not_in_common(config, ALL_CPU) == ()


@pytest.mark.parametrize(
    ("config", "devices", "why"),
    [
        (
            one_of(3, executor="ray"),
            [("cpu",)] * 3,
            "3 engines keeps all experts, as the workers of --executor ray may be on several hosts",
        ),
        (one_of(2, backend="reference"), ALL_CPU, "--backend reference"),
        (one_of(2), [("torch:cuda:0", "cpu"), ("cpu", "cpu")], "PyTorch computes on cuda:0"),
        (one_of(2, stage_devices="torch:cpu"), [("torch:cpu",)] * 2, "PyTorch computes on cpu"),
    ],
)
def test_where_they_cannot_it_is_said(config: Any, devices: Any, why: str) -> None:
    assert expert_group_rank(config, devices) is None
    [finding] = not_in_common(config, devices)
    assert finding.severity == "warning" and why in finding.text


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    dense, mixture = (open_checkpoint(make_folder(tmp_path / name, name)).spec for name in ("llama", "mixtral"))
    problem = expert_problem(one_of(2), dense)
    assert problem is not None and problem.param == "enable_expert_parallel" and "no experts" in problem.message
    # Some of eight keep none.
    assert expert_problem(one_of(2), mixture) is None and expert_problem(one_of(8), mixture) is None
    assert (
        expert_problem(one_of(1), dense) is None
        and expert_problem(EngineAssignment(config_for(tmp_path, enable_expert_parallel=True)), dense) is None
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[WeightLayout, ModelPart, Any]:
    checkpoint = open_checkpoint(
        make_folder(tmp_path_factory.mktemp("model") / "mixtral", "mixtral", num_hidden_layers=3)
    )
    return plan_model(checkpoint, ReferenceBackend()), ModelPart.whole(checkpoint.spec), checkpoint.spec


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_every_expert_is_kept_once_and_the_rest_by_all(
    model: tuple[WeightLayout, ModelPart, Any], members: int
) -> None:
    layout, part, _ = model
    seats = [ExpertSharing(ExpertGroupRank(member, members)) for member in range(members)]
    own = [{m.name for m in own_layout(layout, part, seat).matrices} for seat in seats]
    experts = {m.name for m in layout.matrices if ".experts." in m.name}
    assert len(experts) == 3 * 4 * 3 and set.union(*own) == {m.name for m in layout.matrices}
    assert all(sum(name in mine for mine in own) == (1 if name in experts else members) for name in set.union(*own))
    shares = [len(mine & experts) for mine in own]
    assert max(shares) - min(shares) <= 3 * (1 + members // 4)  # an expert more: its gate, up and down
    for layer in range(3):
        here = [sum(f"layers.{layer}." in name for name in mine & experts) for mine in own]
        assert max(here) <= 3 * -(-4 // members), "each layer's experts are spread over all"
    for seat, names in zip(seats, own, strict=True):
        kept = kept_of(layout, part, seat)
        assert kept.own + kept.common == layout.target_bytes and kept.resident == 0
        assert kept.common == sum(m.target_bytes for m in layout.matrices if m.name not in names)
        assert own_layout(layout, part, seat).float32 == layout.float32
    assert kept_of(layout, part, None).own == layout.target_bytes and kept_of(layout, part, None).common == 0


def test_what_is_there_already_is_not_taken_again(
    model: tuple[WeightLayout, ModelPart, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, part, _ = model
    monkeypatch.setattr("homenode.engine.experts.sizing.share_ready", lambda fd, member: (fd, member) == (77, 1))
    here, there = (ExpertSharing(ExpertGroupRank(1, 2), {0: fd}) for fd in (76, 77))
    dense = {m.name for m in layout.matrices if ".experts." not in m.name}
    assert {m.name for m in missing_layout(layout, part, there).matrices} == dense
    assert missing_layout(layout, part, here) == own_layout(layout, part, here)
    assert kept_of(layout, part, there, worker=1).resident == 0, "of another worker"
    kept = kept_of(layout, part, there)
    assert kept.own == kept_of(layout, part, here).own
    assert kept.own - kept.resident == missing_layout(layout, part, there).target_bytes


def test_nodes_of_engines_hold_their_shares(model: tuple[WeightLayout, ModelPart, Any]) -> None:
    layout, part, _ = model
    teams = [NodeTeam(node, node, (node,), 1 << 40) for node in range(3)]
    seats = [ExpertSharing(ExpertGroupRank(member, 3)) for member in range(3)]
    homes = plan_weight_nodes(layout, teams, "replicate", owners=seats[0].owners(layout, part))
    for node, seat in enumerate(seats):
        alone = plan_weight_nodes(own_layout(layout, part, seat), teams[node : node + 1], "local")
        assert homes.nodes[node] == alone.total == homes.on(node).total
    assert sum(homes.nodes.values()) < plan_weight_nodes(layout, teams, "replicate").total
    shard = plan_weight_nodes(layout, teams, "shard", owners=seats[0].owners(layout, part))
    assert shard == plan_weight_nodes(layout, teams, "shard"), "other policies have one copy as it is"


def test_layers_have_more_room(model: tuple[WeightLayout, ModelPart, Any]) -> None:
    layout, part, spec = model
    whole = weight_needs(spec, layout, 2, 1)
    less = weight_needs(spec, missing_layout(layout, part, ExpertSharing(ExpertGroupRank(0, 2))), 2, 1)
    experts = sum(m.target_bytes for m in layout.matrices if ".experts." in m.name)
    assert less.besides == whole.besides and whole.share - less.share == pytest.approx(experts / 2 / 3, abs=2)
