"""Pages moved in bounded batches, and those that must not be touched left alone. Many nodes are simulated, ranges are
real where they can be.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from homenode.host.bind.base.syscalls import NOT_TRIED, Syscalls
from homenode.host.bind.memory.arrivals import settle_arrivals
from homenode.host.bind.memory.memory_map import MemoryMap, Placement, Policy, Range, read_memory_map
from homenode.host.bind.memory.pages import BATCH, Moves, bring_home, move_private_pages
from homenode.host.bind.memory.residency import PlannedRange
from tests.examples import examples
from tests.host.children import child, numa

PAGE = 4096
DEFAULT = Policy("default")


class SimulatedNodes(Syscalls):
    """A process's pages by address on a machine of many nodes. `stuck`: errno by address; `room`: pages that still fit,
    by node.
    """

    def __init__(
        self, pages: dict[int, int], stuck: dict[int, int] | None = None, room: dict[int, int] | None = None
    ) -> None:
        super().__init__()
        self.pages = pages
        self.stuck = stuck or {}
        self.room = room or {}
        self.asked: list[int] = []
        self.moving: list[int] = []
        self.touched: set[int] = set()

    def move_pages(
        self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
    ) -> tuple[int, ...]:
        if nodes is None:
            self.asked.append(len(addresses))
            return tuple(self.pages.get(address, -errno.ENOENT) for address in addresses)
        self.moving.append(len(addresses))
        self.touched.update(addresses)
        return tuple(self._move(address, node) for address, node in zip(addresses, nodes, strict=True))

    def _move(self, address: int, node: int) -> int:
        if address in self.stuck:
            return -self.stuck[address]
        if self.room.get(node, 1 << 40) <= 0:
            return -errno.ENOMEM
        self.room[node] = self.room.get(node, 1 << 40) - 1
        self.pages[address] = node
        return node


def block(
    start: int, nodes: Sequence[int], *, kind: str = "private", policy: Policy = DEFAULT, size: int = PAGE
) -> tuple[Range, dict[int, int]]:
    """A range whose pages lie on `nodes`, one after the other (-1: never touched)."""
    pages = {start + index * size: node for index, node in enumerate(nodes) if node >= 0}
    counts = {node: list(nodes).count(node) for node in set(nodes) if node >= 0}
    return Range(start, start + len(nodes) * size, kind, Placement(policy, counts, size)), pages


def move(
    blocks: Sequence[tuple[Range, dict[int, int]]],
    nodes: Sequence[int],
    calls: SimulatedNodes,
    **options: int | float,
) -> Moves:
    memory = MemoryMap(tuple(part for part, _ in blocks), DEFAULT)
    return move_private_pages(17, memory, nodes, calls, **options)  # type: ignore[arg-type]


def test_pages_elsewhere_move_in_bounded_batches_and_pages_at_home_are_not_touched() -> None:
    one = block(0x10000000, [0, 1, 2, -1] * 2000)
    calls = SimulatedNodes(one[1])
    moves = move([one], [2], calls)
    assert set(calls.pages.values()) == {2}
    assert moves.moved == moves.wanted == 4000 * PAGE
    assert not moves.stay and not moves.left and not moves.stopped
    assert max(calls.asked) == BATCH and max(calls.moving) <= BATCH
    assert calls.touched == {address for address in one[1] if (address - 0x10000000) // PAGE % 4 in (0, 1)}


def test_a_smaller_batch_is_kept_to() -> None:
    one = block(0x10000000, [0] * 100)
    calls = SimulatedNodes(one[1])
    move([one], [1], calls, batch=7)
    assert max(calls.moving) == 7 and sum(calls.moving) == 100


def test_a_batch_of_huge_pages_is_bounded_by_its_size() -> None:
    one, two = block(0x40000000, [0] * 100, size=2 << 20), block(0x4000000000, [0] * 3, size=1 << 30)
    calls = SimulatedNodes({**one[1], **two[1]})
    assert move([one, two], [1], calls).moved == (100 * 2 << 20) + (3 << 30)
    assert calls.moving == [32, 32, 32, 4, 1, 1, 1]


def test_nothing_is_called_when_all_is_at_home() -> None:
    one = block(0x10000000, [0] * 100)
    calls = SimulatedNodes(one[1])
    assert move([one], [0], calls) == Moves()
    assert not calls.asked and not calls.moving


def test_the_scan_of_a_large_range_ends_with_its_last_page_elsewhere() -> None:
    part, pages = block(0x10000000, [0, 0, 0])
    calls = SimulatedNodes(pages)
    vast = Range(part.start, part.start + (1 << 40), "private", part.placement)
    assert move([(vast, pages)], [1], calls).moved == 3 * PAGE
    assert len(calls.asked) == 1


class HugePages(SimulatedNodes):
    """Every aligned block of `size` bytes is one transparent huge page, which moves as a whole when one of its pages
    is moved (mm/migrate.c).

    `pinned`: blocks that do not move.
    """

    def __init__(self, pages: dict[int, int], size: int, pinned: frozenset[int] = frozenset()) -> None:
        super().__init__(pages)
        self.size = size
        self.pinned = pinned

    def _move(self, address: int, node: int) -> int:
        block = address // self.size
        if block in self.pinned:
            return -errno.EBUSY
        for one in range(block * self.size, (block + 1) * self.size, PAGE):
            if one in self.pages:
                self.pages[one] = node
        return node


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@example(offset=0, lengths=[1, 1, 1], huge=16, batch=512, homes=[0], pinned=frozenset())
@given(
    offset=st.integers(0, 600),
    lengths=st.lists(st.integers(1, 20) | st.integers(1, 1500), min_size=1, max_size=4),
    huge=st.sampled_from([1, 2, 16, 512]),
    batch=st.sampled_from([1, 7, 100, 511, 512, 1024]),
    homes=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    pinned=st.frozensets(st.integers(0, 20)),
)
def test_whatever_huge_pages_cross_what_moved_and_what_stayed_is_what_the_kernel_has(
    offset: int, lengths: list[int], huge: int, batch: int, homes: list[int], pinned: frozenset[int]
) -> None:
    """They cross batches, and the border of two mappings that were one when the huge page was made."""
    first = (0x7F0000000000 // PAGE) + offset
    node_of = {page: homes[(page // huge) % len(homes)] for page in range(first, first + sum(lengths))}
    blocks, start = [], first
    for length in lengths:
        blocks.append(block(start * PAGE, [node_of[page] for page in range(start, start + length)]))
        start += length
    held = frozenset(0x7F0000000000 // PAGE // huge + number for number in pinned)
    calls = HugePages({page * PAGE: node for page, node in node_of.items()}, huge * PAGE, held)
    moves = move(blocks, [1], calls, batch=batch)
    away = [page for page, node in node_of.items() if node != 1]
    left = sum(calls.pages[page * PAGE] != 1 for page in away)
    assert moves.wanted == len(away) * PAGE
    assert moves.moved + sum(moves.stay.values()) == moves.wanted
    untold = (len(away) - left) * PAGE - moves.moved
    # The rest of a range that is given up as pinned is not looked at again, and part of a huge page of the next range
    # may be there.
    assert 0 <= untold < huge * PAGE * len(lengths) if held else (left, untold) == (0, 0)


def test_huge_pages_in_a_mapping_that_begins_inside_one_are_counted_as_moved() -> None:
    """50 MiB from 1 MiB behind a multiple of 2 MiB on, as most mappings begin: 38 MiB were told."""
    one = block(0x7F0000000000 + (1 << 20), [0] * (50 << 8))
    calls = HugePages(one[1], 2 << 20)
    moves = move([one], [1], calls)
    assert (moves.moved, moves.wanted, moves.stay) == (50 << 20, 50 << 20, {})
    assert set(calls.pages.values()) == {1}


def test_pages_that_stay_are_counted_by_reason() -> None:
    one = block(0x10000000, [0] * 10)
    stuck = {0x10000000: errno.EBUSY, 0x10001000: errno.EBUSY, 0x10002000: errno.EACCES, 0x10003000: errno.EFAULT}
    calls = SimulatedNodes(one[1], stuck)
    moves = move([one], [1], calls)
    assert moves.moved == 6 * PAGE
    assert moves.stay == {"busy or pinned": 2 * PAGE, "shared with other processes": PAGE, "not ordinary memory": PAGE}


def test_shared_device_file_and_deliberately_placed_ranges_are_left_alone_and_counted() -> None:
    kinds = [
        block(0x10000000 * (2 + index), [0] * 4, kind=kind) for index, kind in enumerate(("shared", "device", "file"))
    ]
    placed = block(0x90000000, [3] * 5, policy=Policy("bind", (3,)))
    wide = block(0xA0000000, [0] * 2, policy=Policy("preferred", (1,)))
    own = block(0x10000000, [0] * 3)
    blocks = [own, *kinds, placed, wide]
    calls = SimulatedNodes({address: node for _, pages in blocks for address, node in pages.items()})
    moves = move(blocks, [1], calls)
    assert moves.left == {
        "in shared mappings": 4 * PAGE,
        "of devices": 4 * PAGE,
        "of files": 4 * PAGE,
        "placed by a policy of its own": 5 * PAGE,
    }
    assert calls.touched == {*own[1], *wide[1]}


def test_a_range_pinned_as_a_whole_is_given_up_and_the_next_one_moves() -> None:
    pinned, free = block(0x10000000, [0] * 50 * BATCH), block(0x90000000, [0] * 10)
    calls = SimulatedNodes({**pinned[1], **free[1]}, dict.fromkeys(pinned[1], errno.EBUSY))
    moves = move([pinned, free], [1], calls)
    assert moves.stay == {"busy or pinned": 50 * BATCH * PAGE}
    assert moves.moved == 10 * PAGE
    assert len(calls.moving) <= 6


def test_a_full_node_hands_over_to_the_next_and_the_last_one_ends_it() -> None:
    one, two = block(0x10000000, [0] * 3 * BATCH), block(0x90000000, [0] * 3 * BATCH)
    calls = SimulatedNodes({**one[1], **two[1]}, room={1: 1500, 2: 1000})
    moves = move([one, two], [1, 2], calls)
    places = list(calls.pages.values())
    assert (places.count(1), places.count(2)) == (1500, 1000)
    assert moves.moved == 2500 * PAGE
    assert moves.stay == {"no free memory on the node": (6 * BATCH - 2500) * PAGE}


def test_huge_pages_without_room_do_not_keep_small_ones_from_moving() -> None:
    huge, small = block(0x40000000, [0] * 4, size=2 << 20), block(0x10000000, [0] * 4)

    class NoHugePages(SimulatedNodes):
        def _move(self, address: int, node: int) -> int:
            return -errno.ENOMEM if address >= 0x40000000 else super()._move(address, node)

    calls = NoHugePages({**huge[1], **small[1]})
    moves = move([huge, small], [1], calls)
    assert moves.moved == 4 * PAGE
    assert moves.stay == {"no free memory on the node": 4 * (2 << 20)}


def test_pages_that_a_call_did_not_come_to_are_tried_again() -> None:
    one = block(0x10000000, [0] * 600)

    class Lazy(SimulatedNodes):
        def move_pages(
            self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
        ) -> tuple[int, ...]:
            if nodes is None:
                return super().move_pages(pid, addresses, nodes, flags)
            done = super().move_pages(pid, addresses[:250], nodes[:250], flags)
            return done + (NOT_TRIED,) * (len(addresses) - len(done))

    calls = Lazy(one[1])
    assert move([one], [1], calls).moved == 600 * PAGE
    assert calls.moving == [250, 250, 100]


def test_the_deadline_ends_it_between_two_batches() -> None:
    one = block(0x10000000, [0] * 10 * BATCH)
    calls = SimulatedNodes(one[1])
    moves = move([one], [1], calls, deadline_s=-1.0)
    assert moves.stopped == "out of time"
    assert not calls.moving


@pytest.mark.parametrize(
    ("code", "why"), [(errno.EPERM, "EPERM"), (errno.EACCES, "EACCES"), (errno.ESRCH, "the process has ended")]
)
def test_a_call_refused_as_a_whole_ends_it_with_the_reason(code: int, why: str) -> None:
    one, two = block(0x10000000, [0] * 10), block(0x90000000, [0] * 10)

    class Refusing(SimulatedNodes):
        def move_pages(
            self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
        ) -> tuple[int, ...]:
            self.asked.append(len(addresses))
            raise OSError(code, "move_pages")

    calls = Refusing({**one[1], **two[1]})
    moves = move([one, two], [1], calls)
    assert moves.stopped.startswith(why)
    assert len(calls.asked) == 1


def test_progress_rises_to_the_whole() -> None:
    one = block(0x10000000, [0] * 3000)
    told: list[tuple[int, int]] = []
    memory = MemoryMap((one[0],), DEFAULT)
    move_private_pages(17, memory, [1], SimulatedNodes(one[1]), progress=lambda done, whole: told.append((done, whole)))
    assert told[-1] == (3000 * PAGE, 3000 * PAGE)
    assert all(before[0] < after[0] for before, after in itertools.pairwise(told))


@numa
def test_on_this_machine_the_kernel_says_where_the_private_pages_of_a_child_are() -> None:
    with child() as running:
        address = int(running.tell("private", 1 << 20))
        pages = range(address, address + (1 << 20), PAGE)
        places = Syscalls().move_pages(running.pid, pages, None)
        memory = read_memory_map(running.pid)
        assert memory is not None
        part = next(part for part in memory.private() if part.start <= address < part.end)
        for node in set(places):
            assert part.placement.pages[node] >= places.count(node)
        assert set(places) <= set(memory.bytes_by_node())
        moves = move_private_pages(running.pid, memory, sorted(memory.bytes_by_node()), Syscalls())
        assert (moves.wanted, moves.moved, moves.stay, moves.stopped) == (0, 0, {}, "")


@numa
def test_shared_and_device_mappings_of_a_real_process_are_left_alone() -> None:
    with child() as running:
        own, table = int(running.tell("private", 1 << 20)), int(running.tell("memfd", 1 << 20))
        device = int(running.tell("device"))
        memory = read_memory_map(running.pid)
        assert memory is not None
        calls = Recorder()
        # A node that is not there: every page counts as elsewhere.
        moves = move_private_pages(running.pid, memory, [1023], calls)
        assert set(range(own, own + (1 << 20), PAGE)) <= calls.touched
        assert not set(range(table, table + (1 << 20), PAGE)) & calls.touched
        assert moves.left["in shared mappings"] >= 1 << 20
        if not device:
            pytest.skip("io_uring is not permitted here, so there is no memory of a driver to map")
        assert device not in calls.touched
        assert moves.left["of devices"] >= PAGE


class Recorder(Syscalls):
    """Asks the real kernel, moves nothing and keeps the addresses it was to move."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: set[int] = set()

    def move_pages(
        self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
    ) -> tuple[int, ...]:
        if nodes is None:
            return super().move_pages(pid, addresses, None, flags)
        self.touched.update(addresses)
        return tuple(nodes)


def planned(start: int, nodes: Sequence[int], home: tuple[int, ...]) -> tuple[PlannedRange, dict[int, int]]:
    part, pages = block(start, nodes)
    return PlannedRange(part.start, part.end - part.start, home), pages


def test_planned_pages_come_home_and_nothing_else_moves() -> None:
    ours, theirs = planned(0x10000000, [1, 0, -1, 1, 2], (1,)), planned(0x20000000, [0, 1, 2], (0, 1))
    calls = SimulatedNodes({**ours[1], **theirs[1]})
    moves = bring_home([ours[0], theirs[0]], calls)
    assert (moves.moved, moves.wanted, moves.stopped, moves.stay) == (3 * PAGE, 3 * PAGE, "", {})
    assert [calls.pages[address] for address in ours[1]] == [1] * 4
    assert [calls.pages[address] for address in theirs[1]] == [0, 1, 0]
    assert calls.touched == {0x10000000 + PAGE, 0x10000000 + 4 * PAGE, 0x20000000 + 2 * PAGE}


def test_what_has_no_room_at_home_stays_and_is_told() -> None:
    part, pages = planned(0x10000000, [0] * 3000, (1,))
    calls = SimulatedNodes(pages, room={1: 1000})
    moves = bring_home([part], calls)
    assert (moves.moved, moves.wanted) == (1000 * PAGE, 3000 * PAGE)
    assert moves.stay == {"no free memory on the node": 2000 * PAGE}


def test_a_kernel_that_does_not_tell_is_not_asked_again() -> None:
    class Forbidden(SimulatedNodes):
        def move_pages(
            self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
        ) -> tuple[int, ...]:
            self.asked.append(len(addresses))
            raise OSError(errno.EPERM, "move_pages")

    parts = [planned(start, [0, 0], (1,))[0] for start in (0x10000000, 0x20000000)]
    calls = Forbidden({})
    assert bring_home(parts, calls).stopped.startswith("EPERM")
    assert len(calls.asked) == 1


def test_pages_that_come_later_are_asked_for_and_brought_home() -> None:
    part, pages = planned(0x40000000, [1] * 1024, (1,))
    calls = SimulatedNodes(pages)
    assert settle_arrivals([part], calls) == 0
    assert (sum(calls.asked), calls.touched) == (2, set())  # one for each huge page
    part, pages = planned(0x40000000, [0] * 1024, (1,))
    calls = SimulatedNodes(pages, room={1: 1000})
    assert settle_arrivals([part], calls) == 24 * PAGE
    assert len(calls.touched) >= 1000


def test_arrivals_are_left_alone_where_the_kernel_does_not_tell() -> None:
    class Forbidden(SimulatedNodes):
        def move_pages(
            self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
        ) -> tuple[int, ...]:
            raise OSError(errno.EPERM, "move_pages")

    assert settle_arrivals([planned(0x40000000, [0, 0], (1,))[0]], Forbidden({})) == 0
