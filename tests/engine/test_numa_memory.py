"""From a place to the memory of its threads, and what is said when pages are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from homenode.compute.ops import KvGeometry
from homenode.compute.thread_memory import ThreadMemory
from homenode.engine.binding import EngineBinding
from homenode.engine.memory.node_capacity import KvCapacity, blocks_together, kv_capacity, kv_shares
from homenode.engine.memory.numa import away_from_home, matrix_policy_of, settle_pages, team_memory
from homenode.errors import CapacityError, HostError
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.memory.residency import PlannedRange, node_residencies
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.model.weights.node_placement import WeightNodes
from homenode.testing.hosts.synthetic import synthetic

GIB = 1 << 30
EIGHT_HEADS = KvGeometry.uniform(2, 8, 16, 64, "bf16")
Lines = dict[str, list[dict[str, int]] | None]


@pytest.fixture
def host() -> Host:
    return read_host(synthetic("2n 8c"))


def binding(policy: str | None, **changes: object) -> EngineBinding:
    known = EngineBinding((0, 1, 4, 5), numa=policy, thread_memory=(0, 0, 1, 1) if policy else ())
    return replace(known, **changes)  # type: ignore[arg-type]


def test_under_a_policy_threads_are_at_home_where_their_memory_is(host: Host) -> None:
    assert team_memory(binding("shard"), host) == ThreadMemory((0, 0, 1, 1), (0, 1), bound=True)
    assert team_memory(binding("interleave"), host) == ThreadMemory((0, 0, 1, 1), (0, 1), bound=True, interleaved=True)
    assert team_memory(binding("shard", thread_memory=(1, 1, 1, 1)), host) == ThreadMemory(
        (0, 0, 0, 0), (1,), bound=True
    )


def test_without_a_policy_memory_is_where_it_is_touched(host: Host) -> None:
    assert team_memory(binding(None), host) == ThreadMemory((0, 0, 1, 1), (0, 1), bound=False)
    assert team_memory(binding(None, memory_nodes=(1,)), host) == ThreadMemory((0, 0, 0, 0), (1,), bound=False)


@pytest.mark.parametrize(
    ("policy", "heads", "block_size", "changes", "wanted"),
    [
        ("shard", 1, 64, {}, 4),
        ("mirror", 1, 32, {}, 8),
        (None, 1, 128, {}, 2),
        ("shard", 1, 256, {}, 1),
        ("shard", 1, 512, {}, 1),
        ("shard", 1, 96, {}, 1),  # a chunk ends within a block
        ("shard", 2, 64, {}, 1),  # heads have nodes of their own
        ("interleave", 1, 64, {}, 1),
        ("shard", 1, 64, {"thread_memory": (1, 1, 1, 1)}, 1),
        ("shard", 1, 64, {"thread_memory": (0, 1, 0, 1)}, 1),
        (None, 1, 64, {"team": (-1, -1)}, 1),
    ],
)
def test_blocks_of_few_heads_are_handed_out_by_chunks_of_positions(
    host: Host, policy: str | None, heads: int, block_size: int, changes: dict[str, object], wanted: int
) -> None:
    geometry = KvGeometry.uniform(2, heads, 16, block_size, "bf16")
    assert blocks_together(binding(policy, **changes), host, geometry) == wanted


@pytest.mark.parametrize("changes", [{"team": (-1, -1)}, {"memory_nodes": (0, 1)}, {"team": (0, 99)}])
def test_what_is_not_known_is_not_claimed(host: Host, changes: dict[str, object]) -> None:
    assert team_memory(binding(None, **changes), host) is None


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [("shard", "shard"), ("mirror", "mirror"), ("interleave", "interleave"), ("local", "shard"), (None, "shard")],
)
def test_each_policy_spreads_matrices_its_way(policy: str | None, wanted: str) -> None:
    assert matrix_policy_of(binding(policy))("model.layers.0.mlp.up_proj.weight") == wanted


def test_chosen_tensors_are_mirrored_under_shard_only() -> None:
    patterns = ("*.embed_tokens.*", "lm_head*")
    policy = matrix_policy_of(binding("shard", mirror_tensors=patterns))
    assert [policy(name) for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")] == [
        "mirror",
        "mirror",
        "shard",
    ]
    assert matrix_policy_of(binding("local", mirror_tensors=patterns))("lm_head.weight") == "shard"


def seen(present: int, local: int) -> Lines:
    return {"weights": [{"node": 1, "present": present, "local": local}], "kv": None}


def test_pages_elsewhere_are_a_finding_and_under_strict_a_refusal(host: Host) -> None:
    assert away_from_home(seen(4096, 4096), binding("shard", strict=True), host) == ()
    (finding,) = away_from_home(seen(8 << 30, 6 << 30), binding("shard"), host)
    assert finding.code == "remote_pages"
    assert "8GiB of weights planned for NUMA node 1, 2GiB lie elsewhere" in finding.message
    with pytest.raises(HostError, match="--numa-strict: of 8GiB of weights"):
        away_from_home(seen(8 << 30, 6 << 30), binding("shard", strict=True), host)


class Placed(Syscalls):
    """A backend with one range planned for node 1, of which some pages lie on node 0; and the kernel that moves them,
    as many as fit.
    """

    def __init__(self, away: int, room: int) -> None:
        super().__init__()
        self.nodes, self.room = [0] * away + [1] * (16 - away), room

    def planned(self) -> dict[str, tuple[PlannedRange, ...]]:
        return {"weights": (PlannedRange(1 << 20, 16 * 4096, (1,)),), "kv": ()}

    def residency(self, most_pages: int | None = None) -> Lines:
        seen = node_residencies(self.planned()["weights"], self, most_pages)
        return {"weights": [asdict(line) for line in seen or ()], "kv": None}

    def move_pages(
        self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
    ) -> tuple[int, ...]:
        pages = [(address - (1 << 20)) // 4096 for address in addresses]
        for page, node in zip(pages, nodes or (), strict=False):
            if self.nodes[page] != node and self.room:
                self.nodes[page], self.room = node, self.room - 1
        return tuple(self.nodes[page] for page in pages)


def test_pages_that_the_kernel_put_elsewhere_are_brought_home(host: Host) -> None:
    backend = Placed(away=5, room=16)
    assert settle_pages(backend, binding("shard", strict=True), host, backend) == ()
    assert backend.nodes == [1] * 16


def test_what_does_not_fit_at_home_is_told_and_strictly_refused(host: Host) -> None:
    backend = Placed(away=5, room=2)
    (finding,) = settle_pages(backend, binding("shard"), host, backend)
    assert "64KiB of weights planned for NUMA node 1, 12KiB lie elsewhere" in finding.message
    with pytest.raises(HostError, match="--numa-strict"):
        settle_pages(backend, binding("shard", strict=True), host, backend)


def test_nothing_is_moved_where_no_node_was_chosen(host: Host) -> None:
    backend = Placed(away=5, room=16)
    assert settle_pages(backend, binding(None), host, backend)
    assert backend.nodes.count(0) == 5


def homes(weights: dict[int, int], room: dict[int, int | None]) -> WeightNodes:
    return WeightNodes("shard", "", (), weights, sum(weights.values()), 0, room)


@pytest.mark.parametrize(
    ("nodes", "heads", "wanted"),
    [
        ((0, 0, 1, 1), 8, {0: 0.5, 1: 0.5}),
        ((0, 0, 0, 1), 8, {0: 0.75, 1: 0.25}),
        ((0, 0, 1, 1), 5, {0: 0.4, 1: 0.6}),
        ((0, 0, 1, 1), 1, {0: 0.5, 1: 0.5}),  # pages in turn: there are more nodes than heads
        ((0, 0, 1, 1, 2), 5, {0: 0.4, 1: 0.4, 2: 0.2}),
    ],
)
def test_kv_memory_is_shared_as_the_native_core_does(
    nodes: tuple[int, ...], heads: int, wanted: dict[int, float]
) -> None:
    assert kv_shares(binding("shard", thread_memory=nodes), heads) == pytest.approx(wanted)


def test_interleaved_kv_memory_lies_on_all_nodes_alike() -> None:
    assert kv_shares(binding("interleave", thread_memory=(0, 0, 0, 1)), 1) == {0: 0.5, 1: 0.5}


def test_the_node_that_is_full_first_bounds_kv_memory() -> None:
    found = kv_capacity(homes({0: 4 * GIB, 1: 4 * GIB}, {0: 16 * GIB, 1: 6 * GIB}), binding("shard"), EIGHT_HEADS)
    assert found == KvCapacity(4 * GIB, 1, 2 * GIB, 0.5)
    assert (
        "node 1 has 2GiB left beside its weights, for 50% of the KV memory"
        in found.explain(CapacityError("too much")).message
    )
    assert kv_capacity(
        homes({0: GIB, 1: GIB}, {0: GIB // 2, 1: 6 * GIB}), binding("mirror"), EIGHT_HEADS
    ) == KvCapacity(0, 0, 0, 0.5)


@pytest.mark.parametrize(
    ("policy", "changes"),
    [("shard", {"thread_memory": (1, 1, 1, 1)}), ("replicate", {}), ("local", {"thread_memory": (0, 0)})],
)
def test_where_one_node_holds_everything_its_memory_is_counted_as_a_whole(
    policy: str, changes: dict[str, object]
) -> None:
    assert kv_capacity(homes({0: GIB, 1: GIB}, {0: GIB, 1: GIB}), binding(policy, **changes), EIGHT_HEADS) is None
    assert kv_capacity(None, binding(None), EIGHT_HEADS) is None
    assert kv_capacity(homes({0: GIB, 1: GIB}, {0: None, 1: None}), binding("shard"), EIGHT_HEADS) is None
