"""maps and numa_maps, as machines with one and with many nodes write them: kinds of ranges, policies, where
pages are.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.host.bind.memory.memory_map import KINDS, Policy, join, kind_of, parse_maps, parse_numa_maps

# An inference worker on a machine with four nodes, bound to node 2 after it had started on node 0.
MAPS = """\
00400000-00452000 r-xp 00000000 08:02 173521                             /usr/bin/python3.11
00e03000-00e24000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f1000000000-7f1000200000 rw-s 00000000 00:05 1234                       /dev/davinci_manager
7f2000000000-7f2000100000 rw-s 00000000 00:01 2048                       /memfd:table (deleted)
7f3000000000-7f3000800000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)
7f4000000000-7f4000001000 rw-p 00000000 00:00 0                          [anon:arena of node 1]
7f5000000000-7f5000004000 r--p 00000000 00:00 0                          [vvar]
7f6000000000-7f6000002000 rw-s 00000000 00:06 5                          /dev/nvidia-uvm
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""
NUMA_MAPS = """\
00400000 bind=static:2 file=/usr/bin/python3.11 mapped=82 mapmax=3 active=0 N0=80 N3=2 kernelpagesize_kB=4
00e03000 bind=static:2 heap anon=33 dirty=33 active=0 N0=30 N2=3 kernelpagesize_kB=4
7f0000000000 bind=static:2 anon=1024 dirty=1024 active=0 N0=1000 N1=8 N2=16 kernelpagesize_kB=4
7f1000000000 bind=static:2 file=/dev/davinci_manager
7f2000000000 bind=static:2 file=/memfd:table\\040(deleted) anon=1 dirty=256 active=0 N0=256 kernelpagesize_kB=4
7f3000000000 bind=static:2 file=/anon_hugepage\\040(deleted) huge anon=4 dirty=4 N0=4 kernelpagesize_kB=2048
7f4000000000 prefer (many):1,3 anon=1 dirty=1 N1=1 kernelpagesize_kB=4
7f5000000000 bind=static:2
7f6000000000 bind=static:2 file=/dev/nvidia-uvm
7ffc00000000 bind=static:2 stack anon=12 dirty=12 N2=12 kernelpagesize_kB=4
"""


def test_a_worker_on_four_nodes_is_read_range_by_range() -> None:
    memory = join(parse_maps(MAPS), parse_numa_maps(NUMA_MAPS))
    kinds = [part.kind for part in memory.ranges]
    assert kinds == [
        "file",
        "private",
        "private",
        "device",
        "shared",
        "private",
        "private",
        "kernel",
        "device",
        "private",
    ]
    assert memory.policy == Policy("bind", (2,))
    block = memory.ranges[2]
    assert (block.start, block.end, block.placement.pages) == (0x7F0000000000, 0x7F0000400000, {0: 1000, 1: 8, 2: 16})
    assert block.away((2,)) == 1008
    assert block.away((1, 2)) == 1000
    assert memory.ranges[5].placement.page_bytes == 2 << 20
    assert memory.ranges[6].placement.policy == Policy("prefer (many)", (1, 3))


def test_homes_are_bytes_of_private_memory_with_huge_pages_in_full() -> None:
    memory = join(parse_maps(MAPS), parse_numa_maps(NUMA_MAPS))
    assert memory.bytes_by_node() == {0: (30 + 1000) * 4096 + 4 * (2 << 20), 1: 9 * 4096, 2: (3 + 16 + 12) * 4096}


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ("default anon=1 N0=1", Policy("default")),
        ("local anon=1 N0=1", Policy("local")),
        ("bind:0-2,8 anon=1 N0=1", Policy("bind", (0, 1, 2, 8))),
        ("bind=static|balancing:252 N252=1", Policy("bind", (252,))),
        ("prefer=relative:1", Policy("prefer", (1,))),
        ("prefer (many):0-1 heap", Policy("prefer (many)", (0, 1))),
        ("interleave:0,8", Policy("interleave", (0, 8))),
        ("weighted interleave:0-1 stack anon=1 N1=1", Policy("weighted interleave", (0, 1))),
    ],
)
def test_every_policy_of_the_kernel_is_known(words: str, policy: Policy) -> None:
    assert parse_numa_maps(f"7f0000000000 {words} kernelpagesize_kB=64")[0x7F0000000000].policy == policy


def test_a_file_named_like_a_count_is_no_count() -> None:
    placement = parse_numa_maps("7f0000000000 default file=/tmp/N7=9 mapped=1 N0=1 kernelpagesize_kB=64")[
        0x7F0000000000
    ]
    assert placement.pages == {0: 1}
    assert placement.page_bytes == 65536


@pytest.mark.parametrize(
    ("permissions", "path", "kind"),
    [
        ("rw-p", "", "private"),
        ("rw-p", "[heap]", "private"),
        ("rw-p", "[stack]", "private"),
        ("rw-p", "/dev/zero", "private"),
        ("rw-s", "/dev/zero (deleted)", "shared"),
        ("rw-s", "/dev/shm/torch_1234", "shared"),
        ("rw-s", "/SYSV00000000 (deleted)", "shared"),
        ("rw-s", "/dev/dri/renderD128", "device"),
        ("rw-p", "/dev/kfd", "device"),
        ("rw-s", "anon_inode:[perf_event]", "device"),
        ("r--p", "/usr/lib/libc.so.6", "file"),
        ("r-xp", "[vdso]", "kernel"),
    ],
)
def test_kinds_of_ranges(permissions: str, path: str, kind: str) -> None:
    assert kind_of(permissions, path) == kind


def test_ranges_that_only_one_of_the_two_files_has_are_left_out() -> None:
    memory = join(parse_maps("1000-2000 rw-p 0 00:00 0\n"), parse_numa_maps("1000 default N0=1\n3000 default N1=5\n"))
    assert [part.start for part in memory.ranges] == [0x1000]


_WORDS = st.sampled_from(
    [
        "default",
        "bind:0",
        "bind=static:1-2",
        "prefer (many):0",
        "anon=3",
        "N0=4",
        "N1=99",
        "N=1",
        "N0=",
        "kernelpagesize_kB=0",
    ]
)


@given(
    st.one_of(st.text(max_size=200), st.lists(_WORDS, max_size=8).map(lambda words: "7f0000000000 " + " ".join(words)))
)
@settings(deadline=None, derandomize=True)
def test_numa_maps_of_any_kind_are_read_or_left(text: str) -> None:
    for placement in parse_numa_maps(text).values():
        assert placement.page_bytes > 0
        assert all(node >= 0 and count >= 0 for node, count in placement.pages.items())


@given(
    st.text(max_size=200),
    st.lists(st.tuples(st.integers(0, 2**64), st.integers(0, 2**64), st.text("rwxps-", max_size=5)), max_size=5),
)
@settings(deadline=None, derandomize=True)
def test_maps_of_any_kind_are_read_or_left(noise: str, lines: list[tuple[int, int, str]]) -> None:
    text = (
        noise
        + "\n"
        + "\n".join(f"{start:x}-{end:x} {permissions} 0 00:00 0 {noise}" for start, end, permissions in lines)
    )
    for start, (end, kind) in parse_maps(text).items():
        assert start < end
        assert kind in KINDS


@given(
    st.dictionaries(st.integers(0, 1023), st.integers(1, 2**40), max_size=6),
    st.sampled_from([4, 16, 64, 2048, 1 << 20]),
)
@settings(deadline=None, derandomize=True)
def test_pages_of_any_nodes_come_through(pages: dict[int, int], kilobytes: int) -> None:
    counts = " ".join(f"N{node}={count}" for node, count in pages.items())
    found = parse_numa_maps(f"7f0000000000 default anon=1 dirty=1 {counts} kernelpagesize_kB={kilobytes}")[
        0x7F0000000000
    ]
    assert found.pages == pages
    assert found.page_bytes == kilobytes * 1024
