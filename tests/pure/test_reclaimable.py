"""Page cache and slab can be had, on whichever list they are: by one rule for the machine, its nodes and its control
groups, over files as kernels write them.
"""

from __future__ import annotations

import pytest

from homenode.host.topology.cgroups import memory_groups, read_group_limits
from homenode.host.topology.facts import FactReader
from homenode.host.topology.memory import available_by_node, read_available
from homenode.host.topology.source import RecordedSource

MIB, GIB = 1 << 20, 1 << 30
ANON = 205 * MIB  # what programs hold, in each case
CACHED = 7 * GIB
LISTS = {  # the pages of files, by how often they were read, and slab
    "read once": {"inactive_file": CACHED},
    "read twice": {"active_file": CACHED},
    "both": {"active_file": CACHED - GIB, "inactive_file": GIB},
    "with names of files beside them": {"active_file": CACHED - GIB, "slab_reclaimable": GIB},
    "still to be written": {"inactive_file": CACHED, "file_dirty": GIB, "file_writeback": 16 * MIB},
}
VERSION_1 = {"file_dirty": "dirty", "file_writeback": "writeback"}
OF_MACHINE = {"active_file": "Active(file)", "inactive_file": "Inactive(file)", "slab_reclaimable": "SReclaimable"}


def reader(files: dict[str, str]) -> FactReader:
    return FactReader(RecordedSource("x86_64", files))


def version_2(lists: dict[str, int], limits: dict[str, int], folder: str = "/sys/fs/cgroup") -> dict[str, str]:
    stat = {"anon": ANON, "file": CACHED} | lists
    return {
        "/proc/self/cgroup": "0::/",
        f"{folder}/memory.max": "max",
        f"{folder}/memory.high": "max",
        f"{folder}/memory.current": str(ANON + CACHED),
        f"{folder}/memory.stat": "".join(f"{name} {size}\n" for name, size in stat.items()),
    } | {f"{folder}/{name}": str(size) for name, size in limits.items()}


def version_1(lists: dict[str, int], limit: int, own: bool) -> dict[str, str]:
    """`own`: whether the process's own group has the pages, else one below it, which its usage counts as well."""
    below = {f"total_{VERSION_1.get(name, name)}": size for name, size in lists.items() if name != "slab_reclaimable"}
    here = {name.removeprefix("total_"): size if own else 0 for name, size in below.items()}
    stat = {"rss": ANON} | here | {"hierarchical_memory_limit": 9223372036854771712, "total_rss": ANON} | below
    folder = "/sys/fs/cgroup/memory/box"
    return {
        "/proc/self/cgroup": "4:memory:/box",
        f"{folder}/memory.limit_in_bytes": str(limit),
        f"{folder}/memory.usage_in_bytes": str(ANON + CACHED),
        f"{folder}/memory.stat": "".join(f"{name} {size}\n" for name, size in stat.items()),
    }


@pytest.mark.parametrize("name", LISTS)
def test_version_2_gives_page_cache_back_from_either_list(name: str) -> None:
    seen = read_group_limits(reader(version_2(LISTS[name], {"memory.max": 8 * GIB})))
    assert (seen.memory_limit, seen.memory_room) == (8 * GIB, 8 * GIB - ANON)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", [name for name in LISTS if "slab_reclaimable" not in LISTS[name]])
def test_version_1_gives_page_cache_back_from_either_list(name: str, own: bool) -> None:
    seen = read_group_limits(reader(version_1(LISTS[name], 8 * GIB, own)))
    assert (seen.memory_limit, seen.memory_room) == (8 * GIB, 8 * GIB - ANON)


@pytest.mark.parametrize("name", LISTS)
def test_the_machine_and_its_nodes_count_by_the_same_rule(name: str) -> None:
    """Where the kernel does not tell MemAvailable, which is made of the same."""
    lists = {OF_MACHINE[each]: size for each, size in LISTS[name].items() if each in OF_MACHINE}
    lines = {"MemTotal": 64 * GIB, "MemFree": 8 * GIB - ANON - CACHED} | lists
    texts = [f"{each}: {size // 1024} kB\n" for each, size in lines.items()]
    seen = reader(
        {
            "/proc/meminfo": "".join(texts),
            "/sys/devices/system/node/online": "0",
            "/sys/devices/system/node/node0/meminfo": "".join(f"Node 0 {text}" for text in texts),
        }
    )
    assert read_available(seen) == 8 * GIB - ANON
    assert available_by_node(seen, [0]) == {0: 8 * GIB - ANON}


def test_memory_that_is_no_page_cache_is_taken() -> None:
    """Shared memory counts as `file` of a group and is on neither list; so do pages that are locked."""
    files = version_2({"shmem": CACHED, "unevictable": CACHED}, {"memory.max": 8 * GIB})
    assert read_group_limits(reader(files)).memory_room == 8 * GIB - ANON - CACHED


def test_a_limit_that_slows_down_counts_like_one_that_ends() -> None:
    lists = LISTS["read twice"]
    high = read_group_limits(reader(version_2(lists, {"memory.high": 6 * GIB, "memory.max": 8 * GIB})))
    assert (high.memory_limit, high.memory_room) == (6 * GIB, 6 * GIB - ANON)
    alone = read_group_limits(reader(version_2(lists, {"memory.high": 6 * GIB})))
    assert (alone.memory_limit, alone.memory_room) == (6 * GIB, 6 * GIB - ANON)
    assert read_group_limits(reader(version_2(lists, {}))).memory_room is None


def test_the_group_with_the_least_room_counts_not_the_one_with_the_least_limit() -> None:
    """A pod of two containers: this one's limit is lower, and the neighbour has taken most of the pod's."""
    above, own = "/sys/fs/cgroup/pod", "/sys/fs/cgroup/pod/one"
    files = version_2(LISTS["read twice"], {"memory.max": 8 * GIB}, own)
    files |= version_2(LISTS["both"] | {"anon": 9 * GIB}, {"memory.max": 10 * GIB}, above)
    files |= {f"{above}/memory.current": str(9 * GIB + CACHED), "/proc/self/cgroup": "0::/pod/one"}
    seen = read_group_limits(reader(files))
    assert (seen.memory_limit, seen.memory_room) == (8 * GIB, GIB)


def test_version_1_tells_of_a_limit_above_what_a_container_sees() -> None:
    files = version_1(LISTS["read twice"], 8 * GIB, own=True)
    stat = files["/sys/fs/cgroup/memory/box/memory.stat"]
    files["/sys/fs/cgroup/memory/box/memory.stat"] = stat.replace("9223372036854771712", str(4 * GIB))
    seen = read_group_limits(reader(files))
    assert (seen.memory_limit, seen.memory_room) == (4 * GIB, 4 * GIB - ANON)


@pytest.mark.parametrize(
    "stat",
    ["", "inactive_file", "inactive_file x\n", "inactive_file -5\nactive_file -9\n", f"inactive_file {'9' * 20}"],
)
def test_figures_that_are_none_leave_all_of_the_usage_taken(stat: str) -> None:
    files = version_2({}, {"memory.max": 8 * GIB}) | {"/sys/fs/cgroup/memory.stat": stat}
    assert read_group_limits(reader(files)).memory_room == 8 * GIB - ANON - CACHED


def test_more_page_cache_than_usage_takes_nothing() -> None:
    """The figures are read one after the other, and the kernel sums some of them late."""
    files = version_2({"active_file": 99 * GIB}, {"memory.max": 8 * GIB})
    assert [group.used for group in memory_groups(reader(files))] == [0]
    assert read_group_limits(reader(files)).memory_room == 8 * GIB
