"""numactl's grammar: what it means, what is refused, and that nothing ever leaves the allowance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.resources.numactl import check_memory_nodes, left_out, parse_cpus, parse_nodes
from homenode.host.topology.host import PciDevice
from tests.examples import examples
from tests.placement_hosts import host

ONLINE = tuple(range(16))
ALLOWED = (2, 3, 4, 5, 8, 9, 12)

quick = settings(deadline=None, derandomize=True, max_examples=examples(300))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("2", (2,)),
        ("2,4,3", (2, 3, 4)),
        ("2-5", (2, 3, 4, 5)),
        ("0x2-0X5,0xc", (2, 3, 4, 5, 12)),
        ("4-9", (4, 5, 8, 9)),  # ends allowed, 6 and 7 between them are not: left out
        ("all", ALLOWED),
        ("2,all", ALLOWED),
        ("!2-5", (8, 9, 12)),  # numactl itself would answer with every other CPU of the machine
        ("+0", (2,)),
        ("+0-2,6", (2, 3, 4, 12)),
        ("!+0-2", (5, 8, 9, 12)),
        (" 2-3 ", (2, 3)),
        ("2,2,2-2", (2,)),
    ],
)
def test_what_a_cpu_list_means(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text, ALLOWED, ONLINE) == cpus


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "2,", ",2", "5-2", "2-", "-2", "2--3", "2-3:2", "2-9/2", "2 3", "all,2", "!", "+", "+!2", "!!2",
        "!all", "!+0-6", "+7", "+0-7", "1.5",
     "0x", "0xg", "010", "same", "none", "٢", "9" * 40, "2," * 30_000],
)  # fmt: skip
def test_what_is_no_cpu_list(text: str) -> None:
    with pytest.raises(PlacementError) as caught:
        parse_cpus(text, ALLOWED, ONLINE)
    assert caught.value.code == "bad_cpu_list"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "why"), [("0", "may not be used"), ("2-6", "may not be used"), ("16", "does not exist"), ("4095", "4095")]
)
def test_an_end_outside_the_allowance_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlacementError, match=why) as caught:
        parse_cpus(text, ALLOWED, ONLINE)
    assert (caught.value.code, caught.value.wanted) == ("cpus_not_allowed", "CPUs among 2-5,8-9,12")


def test_what_a_range_leaves_out_is_known() -> None:
    assert left_out("4-9,12", ALLOWED, ONLINE) == (6, 7)
    assert (
        left_out("2-5", ALLOWED, ONLINE) == left_out("!2-5", ALLOWED, ONLINE) == left_out("+0-4", ALLOWED, ONLINE) == ()
    )


@quick
@given(st.text(alphabet="0123456789-,!+xall ", max_size=12) | st.text(max_size=12), st.sets(st.integers(0, 40)))
def test_no_text_leaves_the_allowance(text: str, allowed: set[int]) -> None:
    try:
        cpus = parse_cpus(text, tuple(allowed), range(41))
    except PlacementError as error:
        assert error.code in {"bad_cpu_list", "cpus_not_allowed"} and error.remedy
    else:
        assert cpus and set(cpus) <= allowed and list(cpus) == sorted(set(cpus))


@quick
@given(st.sets(st.integers(0, 2000), min_size=1))
def test_a_written_list_reads_back(cpus: set[int]) -> None:
    assert parse_cpus(format_cpu_list(cpus), tuple(cpus), range(2001)) == tuple(sorted(cpus))


@quick
@given(st.sets(st.integers(0, 60), min_size=2), st.data())
def test_not_and_yes_are_all_together(allowed: set[int], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(allowed)), min_size=1, max_size=len(allowed) - 1))
    text = ",".join(map(str, chosen))
    assert set(parse_cpus("!" + text, tuple(allowed), range(61))) == allowed - chosen


SPARSE = host("2s/4n/16c/ids=0,1,8,9 mems=0-1,8")


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("0", (0,)),
        ("0,8", (0, 8)),
        ("0-8", (0, 1, 8)),
        ("all", (0, 1, 8)),
        ("!0", (1, 8)),
        ("+2", (8,)),
        ("!+0-1", (8,)),
    ],
)
def test_what_a_node_list_means(text: str, nodes: tuple[int, ...]) -> None:
    assert parse_nodes(text, SPARSE) == nodes


@pytest.mark.parametrize(
    ("text", "code"),
    [("2", "no_such_node"), ("0-5", "no_such_node"), ("9", "nodes_not_allowed"), ("8-9", "nodes_not_allowed"),
        ("", "bad_node_list"),
     ("1-0", "bad_node_list"), ("same", "bad_node_list"), ("!all", "bad_node_list"), ("netdev:eth0", "bad_node_list"),
     ("file:/a,b", "bad_node_list"), ("ip:10.0.0.1", "bad_node_list"), ("block:sda", "bad_node_list"),
     ("disk:sda", "bad_node_list"),
     ("pci:zz", "bad_node_list"), ("pci:0000:01:00.0", "bad_node_list")],
)  # fmt: skip
def test_what_is_no_node_list(text: str, code: str) -> None:
    with pytest.raises(PlacementError) as caught:
        parse_nodes(text, SPARSE)
    assert caught.value.code == code
    assert not text or text.split(":")[0] in str(caught.value)


def test_a_node_without_memory_is_told_as_such() -> None:
    """No limit of the process keeps it from that node's memory."""
    empty = host("2s/2n/4c/memoryless=1 mems=0")
    with pytest.raises(PlacementError, match="NUMA node 1 has no memory") as caught:
        check_memory_nodes(empty, (0, 1))
    assert caught.value.code == "node_without_memory" and "mems" not in str(caught.value)


def test_same_is_the_list_before() -> None:
    assert parse_nodes("same", SPARSE, previous=(8,)) == (8,)


@pytest.mark.parametrize("word", ["pci:0000:c1:00.0", "pci:c1:00", "0,pci:C1:00.0", "pci:0000:c1:00:0"])
def test_a_pci_device_names_its_node(word: str) -> None:
    device = PciDevice("0000:c1:00.0", 0x10DE, 0x2330, 0x030200, 8, (), ())
    assert parse_nodes(word, replace(SPARSE, devices=(device,)))[-1] == 8
    with pytest.raises(PlacementError, match="may not be taken"):
        parse_nodes(word, replace(SPARSE, devices=(replace(device, node=9),)))
    with pytest.raises(PlacementError, match="firmware does not say"):
        parse_nodes(word, replace(SPARSE, devices=(replace(device, node=None),)))


def test_a_kernel_without_numa_has_node_0() -> None:
    assert parse_nodes("0", host("0n/4c")) == (0,)
    with pytest.raises(PlacementError, match="no NUMA node 1"):
        parse_nodes("1", host("0n/4c"))


@quick
@given(st.text(alphabet="0189-,!+allpci:. ", max_size=14) | st.text(max_size=14))
def test_no_text_leaves_the_allowed_nodes(text: str) -> None:
    try:
        assert set(parse_nodes(text, SPARSE)) <= {0, 1, 8}
    except PlacementError as error:
        assert error.code in {"bad_node_list", "no_such_node", "nodes_not_allowed"} and error.remedy
