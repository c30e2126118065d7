"""What the cost model says of policies, and which one is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.host.plan.numa.step_cost import EngineKind
from homenode.host.plan.numa.weight_cost import (
    MachineSpeed,
    ModelWork,
    NodeSpeed,
    choose_policy,
    load_of,
    predict,
)
from homenode.numa_policy import PLANNED_POLICIES
from tests.examples import examples

GIB = 1 << 30
# An engine that reaches everything and waits for nobody, so that figures can be told by hand.
IDEAL = EngineKind("ideal", reads=1, links=1, multiplies=1, alone=1, straggling=0, handover_us=0)


def machine(
    nodes: int = 2, read: float = 100, gops: float = 1e6, link: float = 40, barrier: float = 0, across: float = 0
) -> MachineSpeed:
    speeds = tuple(NodeSpeed(n, 8, read, gops) for n in range(nodes))
    return MachineSpeed(
        speeds, {(a, b): link for a in range(nodes) for b in range(nodes) if a != b}, barrier, across, "made up"
    )


def work(size: int = 10 * 10**9, flops: float = 2e9, layers: int = 32, kv: int = 0, exchanged: int = 0) -> ModelWork:
    return ModelWork(size, flops, kv, layers, exchanged)


def rate(policy: str, m: MachineSpeed, w: ModelWork, batch: int = 1, context: int = 0) -> float:
    return predict(m, w, policy, batch, context, IDEAL).decode_tok_s


# Figures told by hand.


def test_one_node_reads_all_and_two_read_half_each() -> None:
    assert rate("local", machine(), work()) == pytest.approx(10)
    assert rate("shard", machine(), work()) == pytest.approx(20)
    assert rate("mirror", machine(), work()) == pytest.approx(20)


def test_interleaved_pages_come_half_over_the_link() -> None:
    """Each node: 2.5 GB at 100 GB/s and 2.5 GB at 40 GB/s, one after the other."""
    assert rate("interleave", machine(), work()) == pytest.approx(1 / (0.025 + 0.0625))


def test_a_memory_serves_all_its_readers_with_its_own_bandwidth() -> None:
    from homenode.host.plan.numa.step_cost import StepWork, on_one, step_time

    fast_link = machine(link=1000)
    found = step_time(fast_link, on_one(fast_link.nodes, 0), StepWork(10e9, 0, 1, 1, 0, 0), IDEAL)
    assert found.total == pytest.approx(0.1), "two readers of one memory are no faster than one"


def test_where_multiplying_is_the_limit_placement_changes_nothing() -> None:
    slow = machine(gops=1)
    assert rate("shard", slow, work()) == pytest.approx(rate("interleave", slow, work())) == pytest.approx(1)


def test_unequal_nodes_share_the_rows_by_their_threads() -> None:
    uneven = MachineSpeed((NodeSpeed(0, 12, 120, 1e6), NodeSpeed(1, 4, 40, 1e6)), {(0, 1): 30, (1, 0): 30}, 0, 0)
    assert rate("shard", uneven, work()) == pytest.approx(16)
    lame = MachineSpeed((NodeSpeed(0, 12, 120, 1e6), NodeSpeed(1, 4, 10, 1e6)), {(0, 1): 30, (1, 0): 30}, 0, 0)
    assert rate("shard", lame, work()) == pytest.approx(4), "all wait for the node with the slow memory"


def test_barriers_count_by_layer_and_more_over_nodes() -> None:
    m = machine(barrier=1, across=10)
    assert 1 / rate("local", m, work()) == pytest.approx(0.1 + 32 * 5 * 1e-6)
    assert 1 / rate("shard", m, work()) == pytest.approx(0.05 + 32 * 5 * 10e-6)


def test_keys_and_values_are_read_too() -> None:
    assert 1 / rate("local", machine(), work(kv=10**5), batch=4, context=1000) == pytest.approx(
        0.1 / 4 + 4e8 / 100e9 / 4
    )


def test_activations_are_fetched_from_the_other_node() -> None:
    assert 1 / rate("shard", machine(), work(exchanged=10**6)) == pytest.approx(0.05 + 32 * 5e5 / 40e9)


def test_experts_are_read_once_for_the_tokens_that_choose_them() -> None:
    mixture = ModelWork(100, 0, 0, 1, 0, active_bytes=40, expert_share=0.25)
    assert mixture.read_bytes(1) == pytest.approx(20 + 20)
    assert mixture.read_bytes(2) == pytest.approx(20 + 80 * (1 - 0.75**2))
    assert work().read_bytes(7) == 10**10
    told_less = ModelWork(100, 0, 0, 1, 0, active_bytes=40)
    assert [told_less.read_bytes(t) for t in (1, 2)] == pytest.approx([40, 100 * (1 - 0.6**2)])


def test_of_a_long_context_chosen_tokens_are_read_and_of_the_others_what_the_choice_takes() -> None:
    sparse = ModelWork(100, 0, 10, 1, 0, chosen=8, scanned_bytes=3)
    assert [sparse.context_bytes(context) for context in (0, 8, 20)] == [0, 80, 8 * 10 + 12 * 3]
    assert load_of(sparse, 2, 2, 20).bytes == 100 + 2 * 116
    dense = work(kv=10**6)
    assert dense.context_bytes(20) == 20 * 10**6
    few = rate("shard", machine(), replace(dense, chosen=8), batch=1, context=10**6)
    assert few > 10 * rate("shard", machine(), dense, batch=1, context=10**6)


def test_replicas_share_the_sequences() -> None:
    assert rate("replicate", machine(), work(), batch=1) == pytest.approx(10), "one sequence is on one node"
    assert rate("replicate", machine(), work(), batch=2) == pytest.approx(20)
    assert predict(machine(), work(), "replicate", 2, 0).memory_bytes == 2 * 10**10


def test_memory_of_copies() -> None:
    sizes = {policy: predict(machine(3), work(kv=10), policy, 2, 5).memory_bytes for policy in PLANNED_POLICIES}
    assert sizes == {
        "shard": 10**10 + 100,
        "interleave": 10**10 + 100,
        "local": 10**10 + 100,
        "mirror": 3 * 10**10 + 100,
        "replicate": 3 * 10**10 + 100,
    }


def test_threads_without_memory_of_their_own_read_their_nearest() -> None:
    lent = MachineSpeed((NodeSpeed(0, 8, 100, 1e6), NodeSpeed(1, 8, 40, 1e6, memory_node=0)), {}, 0, 0)
    assert rate("shard", lent, work()) == pytest.approx(8), "5 GB at 40 GB/s"
    room: dict[int, int | None] = {0: 11 * 10**9}
    assert all(
        p.fits
        for p in choose_policy(lent, work(), room, 1, 0).predictions
        if p.policy in ("shard", "interleave", "local")
    )


def test_an_unknown_policy_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="wanted one of shard"):
        predict(machine(), work(), "scatter", 1, 0)


# Choosing.


def test_one_node_is_local() -> None:
    found = choose_policy(machine(1), work(), {0: 2**40}, 1, 512)
    assert (found.policy, found.nodes) == ("local", (0,)) and "one node" in found.why


def test_a_large_model_is_cut_over_the_nodes() -> None:
    found = choose_policy(machine(barrier=0.5, across=2), work(), {0: 64 * GIB, 1: 64 * GIB}, 1, 512)
    assert (found.policy, found.nodes) == ("shard", (0, 1)), found
    assert "tokens/s" in found.why and "local" in found.why and "made up" in found.why


def test_more_nodes_are_not_taken_when_that_is_slower() -> None:
    small = work(size=20 * 10**6, flops=4e7)
    found = choose_policy(machine(barrier=0.5, across=20), small, {0: GIB, 1: GIB}, 1, 512)
    assert (found.policy, found.nodes) == ("local", (0,)), found


def test_a_small_model_for_many_users_is_replicated() -> None:
    small = work(size=200 * 10**6, flops=4e8)
    found = choose_policy(machine(gops=500, barrier=0.5, across=20), small, {0: 8 * GIB, 1: 8 * GIB}, 16, 512)
    assert found.policy == "replicate", found


def test_copies_that_do_not_fit_are_not_chosen() -> None:
    small = work(size=200 * 10**6, flops=4e8)
    found = choose_policy(machine(gops=500, barrier=0.5, across=20), small, {0: 150 * 10**6, 1: 150 * 10**6}, 16, 0)
    assert found.policy in ("shard", "interleave") and {p.policy for p in found.predictions if p.fits} == {
        "shard",
        "interleave",
    }


def test_where_nothing_fits_the_smallest_is_named_and_said_not_to_fit() -> None:
    found = choose_policy(machine(), work(), {0: GIB, 1: GIB}, 1, 512)
    assert not any(p.fits for p in found.predictions)
    assert found.policy in ("shard", "interleave", "local") and "does not fit" in found.why


def test_unknown_room_is_taken_to_suffice() -> None:
    assert all(p.fits for p in choose_policy(machine(), work(), {0: None}, 1, 0).predictions)


@st.composite
def machines(draw: st.DrawFn) -> MachineSpeed:
    count = draw(st.integers(1, 5))
    reads = [draw(st.floats(5, 500)) for _ in range(count)]
    nodes = tuple(NodeSpeed(n, draw(st.integers(1, 64)), reads[n], draw(st.floats(10, 1e5))) for n in range(count))
    links = {(a, b): draw(st.floats(0.1, 1)) * reads[a] for a in range(count) for b in range(count) if a != b}
    barrier = draw(st.floats(0, 5))
    return MachineSpeed(nodes, links, barrier, barrier + draw(st.floats(0, 50)))


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(machines(), st.integers(10**6, 10**12), st.integers(1, 64), st.integers(0, 8192), st.integers(0, 10**12))
def test_what_is_chosen_is_sound(m: MachineSpeed, size: int, batch: int, context: int, free: int) -> None:
    w = ModelWork(size, size * 2.0, 10**4, 24, 10**5)
    found = choose_policy(m, w, {node.node: free for node in m.nodes}, batch, context)
    by_name = {p.policy: p for p in found.predictions}
    chosen, local = by_name[found.policy], by_name["local"]
    assert chosen.nodes == found.nodes
    if any(p.fits for p in found.predictions):
        assert chosen.fits
    if local.fits and len(found.nodes) > 1:
        assert chosen.decode_tok_s > local.decode_tok_s, "several nodes were taken although one is as fast"
    for p in found.predictions:
        assert p.decode_tok_s > 0 and p.prefill_tok_s > 0 and p.parts["total"] > 0


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(machines(), st.integers(10**6, 10**12), st.integers(1, 64))
def test_pages_at_home_are_never_slower_than_interleaved_ones(m: MachineSpeed, size: int, batch: int) -> None:
    even = MachineSpeed(
        tuple(NodeSpeed(n.node, 8, m.nodes[0].read_gb_s, 1e3) for n in m.nodes),
        m.remote_gb_s,
        m.barrier_us,
        m.barrier_across_us,
    )
    slow = {pair: min(speed, m.nodes[0].read_gb_s) for pair, speed in even.remote_gb_s.items()}
    even = MachineSpeed(even.nodes, slow, m.barrier_us, m.barrier_across_us)
    w = ModelWork(size, size * 2.0, 10**4, 24, 10**5)
    assert predict(even, w, "shard", batch, 100).decode_tok_s >= predict(
        even, w, "interleave", batch, 100
    ).decode_tok_s * (1 - 1e-9)
