"""The proof itself: memory placed on purpose is found where it was placed, by both witnesses, and what is moved away is
missed, to the page.
"""

from __future__ import annotations

import pytest

from tests.host.children import Child, child
from tests.lab.machine import BARE, WHOLE, several_nodes
from tests.lab.residency import PAGE, bytes_by_node, move, nodes_of, prove, range_at, ranges_of

pytestmark = several_nodes
SIZE, AWAY = 8 << 20, 2 << 20
SMALL = 1 << 20  # too small for a huge page, which would move as a whole
HOMES = [node.id for node in (*WHOLE, *BARE)]


def placed(running: Child, size: int = SIZE) -> dict[int, list[tuple[int, int]]]:
    """A block on every node that has memory, bound there before it is touched."""
    return {node: [(int(running.tell("placed", size, node)), size)] for node in HOMES}


def test_blocks_on_every_node_are_found_there() -> None:
    with child() as running:
        plan = placed(running)
        proof = prove(running.pid, plan)
        assert (proof.found, proof.absent, proof.ratio, proof.strays) == (
            {(node, node): SIZE for node in HOMES},
            0,
            1.0,
            {},
        )
        for node, ((address, _),) in plan.items():
            part = range_at(running.pid, address)
            assert (part.policy, part.bytes_on(node), part.present) == (f"bind:{node}", SIZE, SIZE)
        assert all(bytes_by_node(ranges_of(running.pid))[node] >= SIZE for node in HOMES)


@pytest.mark.parametrize("away", [PAGE, SMALL // 4])
def test_pages_that_were_moved_away_are_missed_by_both_witnesses(away: int) -> None:
    home, other = HOMES[0], HOMES[-1]
    with child() as running:
        plan = placed(running, SMALL)
        ((address, _),) = plan[home]
        before, held = bytes_by_node(ranges_of(running.pid)), range_at(running.pid, address).bytes_on(home)
        move(running.pid, (address + SMALL // 2, away), other)
        proof = prove(running.pid, plan)
        assert proof.strays == {(home, other): away}
        assert proof.ratio == pytest.approx(1 - away / (SMALL * len(HOMES)), abs=1e-9) and proof.ratio < 1
        part, after = range_at(running.pid, address), bytes_by_node(ranges_of(running.pid))
        assert (held - part.bytes_on(home), part.bytes_on(other)) == (away, away)
        assert after[other] - before[other] == away
        taken = after[home] - (before[home] - away)  # by the process itself meanwhile
        assert 0 <= taken <= 16 * PAGE
        move(running.pid, (address + SMALL // 2, away), home)
        assert prove(running.pid, plan).ratio == 1.0


def test_a_block_planned_for_another_node_is_no_success() -> None:
    first, last = HOMES[0], HOMES[-1]
    with child() as running:
        plan = placed(running)
        proof = prove(running.pid, {first: plan[last], last: plan[first]})
        assert (proof.ratio, proof.strays) == (0.0, {(first, last): SIZE, (last, first): SIZE})


def test_memory_that_nobody_touched_is_absent_and_not_at_home() -> None:
    with child() as running:
        behind = int(running.tell("huge", SIZE)) + SIZE  # its mapping is 4 MiB longer than what it touches
        proof = prove(running.pid, {HOMES[0]: [(behind, AWAY)]})
        assert (proof.absent, proof.found, proof.ratio) == (AWAY, {}, 0.0)


def test_parts_of_one_range_on_several_nodes_are_told_apart() -> None:
    """As rows of a matrix in one allocation would lie: numa_maps has one line for them, the pages know better."""
    first, last = HOMES[0], HOMES[-1]
    with child() as running:
        address = int(running.tell("huge", SIZE))
        half = SIZE // 2
        move(running.pid, (address, half), first)
        move(running.pid, (address + half, half), last)
        assert prove(running.pid, {first: [(address, half)], last: [(address + half, half)]}).ratio == 1.0
        assert nodes_of(running.pid, (address, SIZE)) == [first] * (half // PAGE) + [last] * (half // PAGE)
        part = range_at(running.pid, address)
        assert part.bytes_on(first) >= half and part.bytes_on(last) >= half
