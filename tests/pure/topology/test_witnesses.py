"""Facts that several files tell: which of them is believed where they disagree, and that the disagreement is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.host.discovery.read import read_host
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.host import Host
from homenode.host.topology.source import RecordedSource
from tests.examples import examples
from tests.recorded import recorded_host

CPU, NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"
WITNESSES = ("nodes", "topology", "switches")


def source(
    online: set[int], told: set[int], mask: set[int], possible: int, witnesses: set[str], **files: str
) -> RecordedSource:
    """A machine on which `online` is the truth and `told` what the file says; nodes have eight CPU numbers each."""
    texts = {
        f"{CPU}/online": format_cpu_list(told),
        f"{CPU}/present": f"0-{possible - 1}",
        "/proc/self/status": f"Cpus_allowed_list:\t{format_cpu_list(mask)}\nMems_allowed_list:\t0-7",
    }
    if "nodes" in witnesses:
        texts |= {
            f"{NODE}/node{node}/cpulist": format_cpu_list(cpu for cpu in online if cpu // 8 == node)
            for node in range((possible + 7) // 8)
        }
    if "topology" in witnesses:
        texts |= {f"{CPU}/cpu{cpu}/topology/core_cpus_list": str(cpu) for cpu in online}
    if "switches" in witnesses:
        texts |= {f"{CPU}/cpu{cpu}/online": str(int(cpu in online)) for cpu in range(1, possible)}
    return RecordedSource("x86_64", texts | {"/" + name.replace("__", "/"): text for name, text in files.items()})


def read(*words: set[int], possible: int, witnesses: set[str]) -> Host:
    return read_host(source(*words, possible=possible, witnesses=witnesses), accelerators=False)


def codes(host: Host) -> set[str]:
    return {note.code for note in host.notes}


@st.composite
def machines(draw: st.DrawFn) -> tuple[set[int], set[int], int]:
    """What is online, a mask that somebody has narrowed, and how many CPUs are possible."""
    possible = draw(st.integers(2, 40))
    online = draw(st.sets(st.integers(0, possible - 1), min_size=1)) | {0}
    return online, draw(st.sets(st.sampled_from(sorted(online)), min_size=1)), possible


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(machines(), st.sets(st.sampled_from(WITNESSES), min_size=1), st.integers(1, 40))
def test_a_renumbered_list_of_online_cpus_takes_none_from_the_mask(
    machine: tuple[set[int], set[int], int], witnesses: set[str], count: int
) -> None:
    """As lxcfs writes it: from 0 up to as many as the container has, or as its quota allows."""
    online, mask, possible = machine
    told = set(range(min(count, possible)))
    host = read(online, told, mask, possible=possible, witnesses=witnesses)
    assert set(host.allowance.cpus) == mask
    assert ("online_disagrees" in codes(host)) == (not mask <= told)
    if not mask <= told and "switches" in witnesses:
        assert {cpu.id for cpu in host.cpus} <= online


@settings(max_examples=examples(100), deadline=None, derandomize=True, database=None)
@given(machines(), st.sets(st.sampled_from(WITNESSES)))
def test_a_mask_of_everything_brings_no_cpu_online(
    machine: tuple[set[int], set[int], int], witnesses: set[str]
) -> None:
    """A process that nobody has bound has all possible CPUs in its mask, offline ones too."""
    online, _, possible = machine
    host = read(online, online, set(range(possible)), possible=possible, witnesses=witnesses)
    assert {cpu.id for cpu in host.cpus} == online == set(host.allowance.cpus)
    assert (host.allowance.mask_origin, codes(host) & {"online_disagrees"}) == ("none", set())


@pytest.mark.parametrize(
    ("told", "mask", "files", "online"),
    [
        ("0-3", "8-11", {}, "0-3,8-11"),  # a process runs somewhere
        ("0-3", "2-5", {}, "0-5"),  # somebody has narrowed it, and the kernel then takes online CPUs only
        ("0-3", "0-5", {}, "0-3"),  # it may be the mask of everything
        ("0-3", "0-5", {f"{CPU}/cpu5/topology/core_id": "5"}, "0-3,5"),
        ("0-3", "2-5", {f"{CPU}/cpu4/online": "0", f"{CPU}/cpu5/online": "1"}, "0-3,5"),
        ("0-3", "0-1,5", {f"{CPU}/cpu5/online": "0"}, "0-3"),  # it went offline after the mask was made
        ("0-3", "0-1,5", {f"{CPU}/cpu{cpu}/topology/core_id": "0" for cpu in range(4)}, "0-3"),
        ("0-3", "2-5", {f"{CPU}/cpu2/online": "0", f"{CPU}/cpu4/online": "1"}, "0-1,3-4"),
        ("0-1", "0-7", {f"{NODE}/node0/cpulist": "0-15", f"{CPU}/cpu0/topology/core_id": "0"}, "0-1"),  # old kernels
        ("0-3", "", {}, "0-3"),
    ],
)
def test_which_cpus_of_the_mask_are_online(told: str, mask: str, files: dict[str, str], online: str) -> None:
    status = f"Cpus_allowed_list:\t{mask}"
    host = read_host(RecordedSource("x86_64", {f"{CPU}/online": told, "/proc/self/status": status, **files}))
    assert format_cpu_list(cpu.id for cpu in host.cpus) == online
    assert host.allowance.cpus and set(host.allowance.cpus) <= set(host.cpu_by_id)
    assert ("online_disagrees" in codes(host)) == (online != told)


@pytest.mark.parametrize(
    ("told", "folders", "mems", "nodes", "allowed"),
    [
        ("0-1", (0, 1), "0-63", (0, 1), (0, 1)),
        ("0", (0, 1), "0-1", (0, 1), (0, 1)),  # only online nodes have folders
        ("0", (0,), "1", (0, 1), (1,)),  # some memory must be allowed
        ("0", (0,), "0-1", (0,), (0,)),  # all possible nodes
        ("", (0, 3), "3", (0, 3), (3,)),
        ("0-1", (), "1", (0, 1), (1,)),
    ],
)
def test_which_nodes_are_there(
    told: str, folders: tuple[int, ...], mems: str, nodes: tuple[int, ...], allowed: tuple[int, ...]
) -> None:
    files = {f"{NODE}/online": told} if told else {}
    files |= {f"{NODE}/node{node}/cpulist": str(node) for node in folders}
    status = f"Cpus_allowed_list:\t0-3\nMems_allowed_list:\t{mems}"
    host = read_host(RecordedSource("x86_64", {f"{CPU}/online": "0-3", "/proc/self/status": status, **files}))
    assert (tuple(host.node_by_id), host.allowance.mems) == (nodes, allowed)
    listed = format_cpu_list(nodes)
    assert ("node_online_disagrees" in codes(host)) == (bool(told) and told != listed)


def test_a_cpuset_that_lacks_cpus_of_the_mask_is_that_of_another_group() -> None:
    files = {
        "proc__self__cgroup": "0::/",
        "sys__fs__cgroup__cpuset.cpus.effective": "4-7",
        "proc__self__status": "Cpus_allowed_list: 0-1",
    }
    everything = set(range(8))
    host = read_host(source(everything, everything, {0, 1}, 8, {"topology"}, **files))
    assert (host.allowance.cpus, host.allowance.cpuset, host.allowance.mask_origin) == ((0, 1), None, "inherited")
    assert "cpuset_disagrees" in codes(host)
    files["sys__fs__cgroup__cpuset.cpus.effective"] = "0-3"
    host = read_host(source(everything, everything, {0, 1}, 8, {"topology"}, **files))
    assert (host.allowance.cpuset, codes(host)) == ((0, 1, 2, 3), {"no_distances"} & codes(host))


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(st.data())
def test_no_core_spans_nodes(data: st.DataObject) -> None:
    """Whatever is called siblings: all CPUs of a core are on its node, everybody reads the same, and it is told."""
    count = data.draw(st.integers(2, 16))
    node_of = [data.draw(st.integers(0, 2)) for _ in range(count)]
    core_of = [data.draw(st.integers(0, count // 2)) for _ in range(count)]
    siblings = {cpu: [other for other in range(count) if core_of[other] == core_of[cpu]] for cpu in range(count)}
    files = {f"{CPU}/online": f"0-{count - 1}", "/proc/self/status": f"Cpus_allowed_list:\t0-{count - 1}"}
    files |= {f"{NODE}/node{n}/cpulist": format_cpu_list(c for c in range(count) if node_of[c] == n) for n in range(3)}
    files |= {f"{CPU}/cpu{cpu}/topology/core_cpus_list": format_cpu_list(siblings[cpu]) for cpu in range(count)}
    recorded = RecordedSource("aarch64", files)
    host = read_host(recorded)
    # Those of its siblings that are on its node.
    wanted = {tuple(c for c in siblings[cpu] if node_of[c] == node_of[cpu]) for cpu in range(count)}
    assert set(host.cores.values()) == wanted
    assert host.allowance.physical_cpus == Allowance.of_process(recorded).physical_cpus
    spanning = any(node_of[other] != node_of[cpu] for cpu in range(count) for other in siblings[cpu])
    assert ("siblings_across_nodes" in codes(host)) == spanning


def test_a_cpu_without_a_node_stays_with_its_siblings() -> None:
    files = {f"{CPU}/online": "0-3", f"{NODE}/node0/cpulist": "2", f"{NODE}/node1/cpulist": "3"}
    files |= {f"{CPU}/cpu{cpu}/topology/core_cpus_list": "0-2" for cpu in range(3)}
    host = read_host(RecordedSource("aarch64", files))
    assert sorted(host.cores.values()) == [(0, 1, 2), (3,)] and "siblings_across_nodes" not in codes(host)


def test_the_recorded_containers_and_guests() -> None:
    renumbered = recorded_host("lxcfs-64cpu-renumbered")
    assert (renumbered.allowance.cpus, len(renumbered.cpus)) == ((8, 9, 10, 11), 64)
    assert codes(renumbered) == {"online_disagrees"}
    across = recorded_host("guest-4cpu-siblings-across-nodes")
    assert len(across.cores) == 4 and codes(across) == {"siblings_across_nodes"}


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("MemTotal: 9 kB\nMemAvailable: 5 kB\nMemFree: 1 kB", 5),
        ("MemTotal: 9 kB\nMemFree: 1 kB\nActive(file): 2 kB\nSReclaimable: 1 kB", 4),  # before Linux 3.14
        ("", 0),
    ],
)
def test_memory_that_can_be_had_where_the_kernel_does_not_add_it_up(text: str, room: int) -> None:
    files = {f"{CPU}/online": "0", "/proc/meminfo": text, "/proc/self/status": "Cpus_allowed_list:\t0"}
    assert Allowance.of_process(RecordedSource("x86_64", files)).memory_available == room * 1024
