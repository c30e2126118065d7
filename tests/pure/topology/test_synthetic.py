"""Hosts made up from one line: what is read of them is what the line says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Accelerator, Host
from homenode.testing.hosts.synthetic import looks_synthetic, synthetic
from tests.examples import examples


def host_of(line: str) -> Host:
    host = read_host(synthetic(line))
    assert [note.code for note in (*host.notes, *host.accelerators.notes)] == []
    assert host.accelerators.errors == ()
    return host


def cores_of(host: Host) -> list[str]:
    return [format_cpu_list(cpus) for cpus in host.cores.values()]


def node_cpus(host: Host) -> dict[int, str]:
    return {node.id: format_cpu_list(node.cpus) for node in host.nodes}


def test_the_counts_are_totals() -> None:
    host = host_of("2s/4n/64c/smt2")
    assert (len(host.cpus), len(host.cores), len(host.nodes)) == (128, 64, 4)
    assert node_cpus(host) == {0: "0-15,64-79", 1: "16-31,80-95", 2: "32-47,96-111", 3: "48-63,112-127"}
    assert {cpu.socket for cpu in host.cpus if cpu.node in (0, 1)} == {0}
    assert {cpu.socket for cpu in host.cpus if cpu.node in (2, 3)} == {1}
    assert [host.distance(0, there) for there in range(4)] == [10, 12, 32, 32]
    assert host.allowance.cpus == tuple(range(128)) and host.allowance.mask_origin == "none"
    assert host.numa_balancing is True and host.transparent_huge_pages == "madvise"


def test_defaults() -> None:
    host = host_of("6c")
    assert cores_of(host) == ["0", "1", "2", "3", "4", "5"]
    assert node_cpus(host) == {0: "0-5"} and host.nodes[0].memory == 16 << 30
    assert {cpu.l3 for cpu in host.cpus} == {0} and {cpu.cluster for cpu in host.cpus} == {None}
    assert host.machine == "x86_64" and not host.devices and not host.accelerators.chips


@pytest.mark.parametrize(
    "line", ["2s/4c/smt2/mem=1GiB", "2s 4c smt2 mem=1GiB", "mem=1GiB,2s,smt2,4c", " 4c / 2s /smt2,mem=1GiB "]
)
def test_parts_come_in_any_order_and_dress(line: str) -> None:
    assert read_host(synthetic(line)) == read_host(synthetic("2s/4c/smt2/mem=1GiB"))


@pytest.mark.parametrize(
    ("numbering", "cores", "nodes"),
    [
        ("split", ["0,4", "1,5", "2,6", "3,7"], {0: "0-1,4-5", 1: "2-3,6-7"}),
        ("paired", ["0-1", "2-3", "4-5", "6-7"], {0: "0-3", 1: "4-7"}),
        ("round", ["0,4", "1,5", "2,6", "3,7"], {0: "0,2,4,6", 1: "1,3,5,7"}),
    ],
)
def test_numbering(numbering: str, cores: list[str], nodes: dict[int, str]) -> None:
    host = host_of(f"2n/4c/smt2/numbering={numbering}")
    assert (cores_of(host), node_cpus(host)) == (cores, nodes)


def test_cores_that_do_not_divide_go_to_the_first_nodes() -> None:
    assert node_cpus(host_of("3n/8c")) == {0: "0-2", 1: "3-5", 2: "6-7"}


def test_several_sockets_on_one_node() -> None:
    host = host_of("4s/2n/8c")
    assert node_cpus(host) == {0: "0-3", 1: "4-7"}
    assert [cpu.socket for cpu in host.cpus] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [cpu.l3 for cpu in host.cpus] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_caches_and_clusters() -> None:
    host = host_of("2n/16c/l3=4/cluster=2/arm")
    assert host.machine == "aarch64"
    assert [cpu.l3 for cpu in host.cpus] == [0] * 4 + [4] * 4 + [8] * 4 + [12] * 4
    assert [cpu.cluster for cpu in host.cpus] == [cpu - cpu % 2 for cpu in range(16)]
    assert {cpu.l3 for cpu in host_of("4c/l3=0").cpus} == {None}


def test_no_numa() -> None:
    host = host_of("0n/2s/4c")
    assert host.nodes == () and {cpu.node for cpu in host.cpus} == {None}
    assert [cpu.socket for cpu in host.cpus] == [0, 0, 1, 1]


def test_memory_only_nodes_sparse_ids_and_bare_nodes() -> None:
    host = host_of("2n/4c/cpuless=2/memoryless=1/ids=8,0,250,3/mem=2GiB")
    assert node_cpus(host) == {0: "2-3", 3: "", 8: "0-1", 250: ""}
    assert {node.id: node.memory for node in host.nodes} == {0: 0, 3: 2 << 30, 8: 2 << 30, 250: 2 << 30}
    # The rows are positional over the ascending ids: 250 lies beside 8, and 3 beside 0.
    assert (host.distance(8, 250), host.distance(0, 3), host.distance(8, 3), host.distance(8, 0)) == (14, 14, 40, 12)


def test_cores_of_two_speeds() -> None:
    arm = host_of("big=2/little=3/arm")
    assert [cpu.capacity for cpu in arm.cpus] == [1024, 1024, 446, 446, 446]
    intel = host_of("big=2,little=3,smt2")
    assert cores_of(intel) == ["0,5", "1,6", "2", "3", "4"]
    assert [cpu.capacity for cpu in intel.cpus] == [1024, 1024, 716, 716, 716, 1024, 1024]


def test_offline_cpus() -> None:
    host = host_of("2n/4c/smt2/offline=1,4")
    assert host.offline == (1, 4)
    assert cores_of(host) == ["0", "2,6", "3,7", "5"]
    assert node_cpus(host) == {0: "0,5", 1: "2-3,6-7"}
    assert host.allowance.cpus == (0, 2, 3, 5, 6, 7)


def test_limits() -> None:
    mask = host_of("8c/allowed=2-3").allowance
    assert (mask.cpus, mask.mask_origin, mask.cpuset) == ((2, 3), "inherited", tuple(range(8)))
    group = host_of("2n/8c/cpuset=4-7/mems=1/quota=2.5").allowance
    assert (group.cpus, group.mask_origin, group.mems, group.cpu_quota) == ((4, 5, 6, 7), "cpuset", (1,), 2.5)


def chips_of(line: str) -> tuple[Accelerator, ...]:
    return host_of(line).accelerators.chips


def test_gpus() -> None:
    host = host_of("2s/8c/gpu=4")
    chips = host.accelerators.of_kind("cuda")
    assert [(chip.id, chip.node, format_cpu_list(chip.local_cpus)) for chip in chips] == [
        (0, 0, "0-3"),
        (1, 0, "0-3"),
        (2, 1, "4-7"),
        (3, 1, "4-7"),
    ]
    assert len({chip.uuid for chip in chips}) == 4
    assert [chip.address for chip in chips] == [device.address for device in host.devices]
    assert {host.interrupts[place].actions for place in range(4)} == {("nvidia",)}


def test_gpus_of_amd() -> None:
    host = host_of("2n/8c/gpu=2:amd")
    chips = host.accelerators.of_kind("rocm")
    assert host.accelerators.kind == "rocm"
    assert [(chip.id, chip.node, format_cpu_list(chip.local_cpus)) for chip in chips] == [(0, 0, "0-3"), (1, 1, "4-7")]
    assert [chip.address for chip in chips] == [device.address for device in host.devices]
    assert len({chip.uuid for chip in chips}) == 2


@pytest.mark.parametrize(
    ("family", "cards", "affinity"),
    [
        ("A2", [(0, 0), (1, 0), (2, 0), (3, 0)], ["0-7", "0-7", "8-15", "8-15"]),
        ("A3", [(0, 0), (0, 1), (1, 0), (1, 1)], ["", "", "", ""]),
        ("310P", [(1, 0), (1, 1), (32, 0), (32, 1)], ["0-7", "0-7", "8-15", "8-15"]),
        ("950", [(0, 0), (1, 0), (2, 0), (3, 0)], ["0-7", "0-7", "8-15", "8-15"]),
    ],
)
def test_npus(family: str, cards: list[tuple[int, int]], affinity: list[str]) -> None:
    host = host_of(f"2n/16c/arm/npu=4:{family}")
    chips = host.accelerators.of_kind("npu")
    assert host.accelerators.device_type == family
    assert [chip.id for chip in chips] == [0, 1, 2, 3]
    assert [(chip.card, chip.chip) for chip in chips] == cards
    assert [format_cpu_list(chip.local_cpus) for chip in chips] == affinity
    assert [chip.node for chip in chips] == [0, 0, 1, 1]
    assert {chip.processes for chip in chips} == {()}


def test_interrupts_of_an_npu() -> None:
    host = host_of("4c/arm/npu=1:A2")
    names = {one.irq: one.actions for one in host.interrupts}
    assert [names[irq] for irq in host.devices[0].irqs] == [("sq_send_trigger_irq",), ("cq_update_irq",)]


def test_the_largest_hosts() -> None:
    host = host_of("16s/16n/8192c/smt2")
    assert (len(host.cpus), len(host.nodes), len(host.cores)) == (16384, 16, 8192)
    assert len(synthetic("1s/1024n/1024c").names("/sys/devices/system/node")) == 1024 + 4


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "needs cores"),
        ("2s/4n", "needs cores"),
        ("0c", "needs cores"),
        ("0s/4c", "needs a socket"),
        ("4c/smt0", "needs a socket and a thread"),
        ("9q", "part '9q'"),
        ("4c/smt2x", "part 'smt2x'"),
        ("4c/colour=red", "part 'colour=red'"),
        ("4c/4c", "part '4c': it is given twice"),
        ("4c/mem=much", "part 'mem=much': wanted a size"),
        ("4c/mem=1000", "by whole KiB"),
        ("4c/mem=2000TiB", "mem= goes up to 1024 TiB"),
        ("4c/npu=8", "part 'npu=8': wanted a number and a family"),
        ("4c/npu=3:A3", "come in pairs"),
        ("4c/gpu=65", "at most 64 accelerators"),
        ("4c/gpu=-1", "part 'gpu=-1': wanted a number such as 8, or 8:amd"),
        ("4c/gpu=1:voodoo", "part 'gpu=1:voodoo'"),
        ("4c/numbering=odd", "part 'numbering=odd': wanted split or paired or round"),
        ("4c/quota=0", "part 'quota=0'"),
        ("4c/quota=nan", "part 'quota=nan'"),
        ("8193c/smt2", "at most 16384"),
        ("2000n/4000c", "at most 1024"),
        ("4n/2c", "too few"),
        ("3s/2n/9c", "do not divide"),
        ("2n/4c/ids=0", "ids= names 1 node, there are 2"),
        ("2n/4c/ids=0,0", "twice"),
        ("2n/4c/ids=0,1024", "goes up to 1023"),
        ("2n/4c/memoryless=2", "leaves no node with memory"),
        ("2n/4c/memoryless=3", "there are 2 nodes"),
        ("0n/4c/cpuless=1", "need nodes"),
        ("4c/offline=4", "does not have"),
        ("4c/offline=0-3", "one CPU must stay online"),
        ("4c/allowed=9", "allowed="),
        ("4c/allowed=", "allowed="),
        ("4c/offline=1/cpuset=1", "cpuset="),
        ("4c/mems=1", "mems="),
        ("4c/big=2", "already say"),
        ("9999999999c", "part '9999999999c'"),
    ],
)
def test_what_is_wrong_is_named(line: str, fault: str) -> None:
    with pytest.raises(UserError) as refused:
        synthetic(line)
    assert fault in refused.value.message
    assert refused.value.message.startswith("the host ")


def test_telling_a_line_from_a_file_name() -> None:
    assert all(
        looks_synthetic(line)
        for line in ("8c", "2s/4n/64c", "2s,4n,64c", " 0n/8c", "big=2/little=3", "smt2/4c", "2s/zebra")
    )
    assert not any(
        looks_synthetic(name)
        for name in ("", "host.json", "8core.json", "2s.json", "hosts/8c", "./8c", "/2s/4n", "arm", "gpu=8")
    )


shapes = st.fixed_dictionaries(
    {
        "s": st.integers(1, 4),
        "per_socket": st.integers(1, 3),
        "cores": st.integers(1, 5),
        "smt": st.sampled_from([1, 2, 4]),
    },
    optional={
        "numbering": st.sampled_from(["split", "paired", "round"]),
        "l3": st.integers(0, 4),
        "cluster": st.integers(1, 3),
        "gpu": st.integers(0, 5),
        "cpuless": st.integers(0, 2),
        "odd": st.integers(0, 3),
    },
)


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(shape=shapes, offline=st.sets(st.integers(0, 20), max_size=6))
def test_every_host_is_whole(shape: dict[str, object], offline: set[int]) -> None:
    sockets, per_socket, each, smt = (int(str(shape[name])) for name in ("s", "per_socket", "cores", "smt"))
    nodes = sockets * per_socket
    cores = nodes * each + int(str(shape.get("odd", 0)))
    off = sorted(cpu for cpu in offline if cpu < cores * smt - 1)
    words = [f"{name}={shape[name]}" for name in ("numbering", "l3", "cluster", "gpu", "cpuless") if name in shape]
    host = host_of(
        "/".join(
            [f"{sockets}s/{nodes}n/{cores}c/smt{smt}", *words, *([f"offline={format_cpu_list(off)}"] if off else [])]
        )
    )
    assert [cpu.id for cpu in host.cpus] == [cpu for cpu in range(cores * smt) if cpu not in off]
    assert sum(len(cpus) for cpus in host.cores.values()) == len(host.cpus)
    assert all(len(cpus) <= smt for cpus in host.cores.values()) and (off or len(host.cores) == cores)
    for cpus in host.cores.values():
        for kind in ("node", "socket", "l3", "cluster"):
            assert len({getattr(host.cpu_by_id[cpu], kind) for cpu in cpus}) == 1
    assert sorted(cpu for node in host.nodes for cpu in node.cpus) == [cpu.id for cpu in host.cpus]
    assert all(host.distance(a.id, b.id) == host.distance(b.id, a.id) for a in host.nodes for b in host.nodes)
    assert len(host.accelerators.chips) == shape.get("gpu", 0)


PIECES = [
    "2s",
    "4n",
    "8c",
    "smt2",
    "0n",
    "gpu=2",
    "npu=2:A2",
    "ids=0,8",
    "offline=1",
    "arm",
    "mem=1GiB",
    "=",
    ",",
    "/",
    "quota=1e9",
    "l3=99999",
    "big=1",
]


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(line=st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=6).map("/".join))
def test_any_text_is_a_host_or_refused(line: str) -> None:
    looks_synthetic(line)
    try:
        host = read_host(synthetic(line))
    except UserError:
        return
    assert host.cpus
