"""What npu-smi prints, as one product after another prints it, and what is made of it; then the same texts damaged."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.host.topology.accelerators.ascend import board_address, read_ascend
from homenode.host.topology.host import Accelerator, Accelerators, Node, PciDevice
from homenode.host.topology.source import CommandResult, RecordedSource
from tests.examples import examples

fuzz = settings(
    max_examples=examples(120), derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

A2_MAP = """
	NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
	0                              0                              0                              Ascend 910B2
	0                              1                              -                              Mcu
	1                              0                              1                              Ascend 910B2
	1                              1                              -                              Mcu
"""
A3_MAP = """
	NPU ID                         Chip ID                        Chip Logic ID                  Chip Phy-ID                    Chip Name
	4                              0                              0                              8                              Ascend910
	4                              1                              1                              9                              Ascend910
	4                              2                              -                              -                              Mcu
	5                              0                              2                              10                             Ascend910
	5                              1                              3                              11                             Ascend910
	5                              2                              -                              -                              Mcu
"""
DUO_MAP = """NPU ID          Chip ID         Chip Logic ID   Chip Name
32            0               0               Ascend 310P3
32            1               1               Ascend 310P3
32            2               -               Mcu
32768         0               2               Ascend 310P3
32768         1               3               Ascend 310P3
32768         2               -               Mcu
"""
A5_MAP = """NPU ID    Slot ID    Chip ID    Chip Phy-ID    Chip Name
0         3          0          0              Ascend950PR
1         4          0          1              Ascend950PR
1         4          1          -              Mcu
"""
A2_INFO = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B2               | OK            | 91.2        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3397 / 65536         |
+===========================+===============+====================================================+
| 1     910B2               | OK            | 90.7        40                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3397 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 71001         | python3                  | 3500                    |
| 0       0                 | 70100         | python3                  | 120                     |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
TOPO = """
\t   NPU0       NPU1       CPU Affinity
NPU0       X          HCCS       24-31
NPU1       HCCS       X          0-7,16-17

Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
"""
NODES = (
    *(Node(node, tuple(range(node * 8, node * 8 + 8)), 1 << 30, {}) for node in range(4)),
    Node(9, (), 1 << 30, {}),
)


def read(
    map_text: str | CommandResult,
    info: str | CommandResult = "",
    topo: str | CommandResult = "",
    devices: tuple[PciDevice, ...] = (),
) -> Accelerators:
    """The NPUs of a host whose npu-smi prints these texts."""
    texts = {"npu-smi info -m": map_text, "npu-smi info": info, "npu-smi info -t topo": topo}
    answers = {line: text if isinstance(text, CommandResult) else CommandResult(text) for line, text in texts.items()}
    return read_ascend(RecordedSource("aarch64", {}, answers), devices, NODES)


def codes(found: Accelerators) -> list[str]:
    return [error.code for error in found.errors]


def processes(rows: str, heading: str = "NPU     Chip") -> str:
    return (
        f"| {heading}      | Process id    | Process name             | Process memory(MB)      |\n+=====+=====+\n"
        f"{rows}\n"
    )


def test_no_tool_is_no_npu_and_nothing_to_say() -> None:
    assert read_ascend(RecordedSource("aarch64", {}), (), NODES) == Accelerators()


def test_a2_map_addresses_processes_and_affinity() -> None:
    found = read(A2_MAP, A2_INFO, TOPO)
    assert (found.device_type, found.errors, found.notes) == ("A2", (), ())
    first, second = found.chips
    assert first == Accelerator(
        "npu",
        0,
        "Ascend 910B2",
        "0000:c1:00.0",
        tuple(range(24, 32)),
        3,
        card=0,
        chip=0,
        physical=None,
        processes=(70100, 71001),
    )
    assert (second.id, second.address, second.processes) == (1, "0000:01:00.0", ())
    assert second.local_cpus == (*range(8), 16, 17)
    assert second.node == 0  # most of them


def test_a3_chips_by_card_and_physical_number() -> None:
    rows = (
        "| 4       1                 | 500           | python                   | 3 |\n| 5       0                "
        " | 501           | x | 3 |"
    )
    topo = (
        "	   Phy-ID8   Phy-ID9   Phy-ID10   Phy-ID11\nPhy-ID8    X   SIO  HCCS_SW  HCCS_SW\nPhy-ID9    SIO   X   "
        "HCCS_SW  HCCS_SW\n"
    )
    found = read(A3_MAP, processes(rows), topo)
    assert found.device_type == "A3"
    assert [(chip.id, chip.card, chip.chip, chip.physical) for chip in found.chips] == [
        (0, 4, 0, 8),
        (1, 4, 1, 9),
        (2, 5, 0, 10),
        (3, 5, 1, 11),
    ]
    assert [chip.processes for chip in found.chips] == [(), (500,), (501,), ()]
    assert all(chip.local_cpus == () for chip in found.chips)  # the table has no affinity: that is no error
    assert found.errors == ()


def test_a3_table_of_two_lines_for_each_chip() -> None:
    info = """| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 4     Ascend910           | OK            | 178.8       36                0    / 0             |
| 0     8                   | 0000:9D:00.0  | 0           0    / 0          3397 / 65536         |
| 4     Ascend910           | OK            | -           36                0    / 0             |
| 1     9                   | 0000:9F:00.0  | 0           0    / 0          3397 / 65536         |
"""
    assert [chip.address for chip in read(A3_MAP, info).chips] == ["0000:9d:00.0", "0000:9f:00.0", None, None]


def test_310p_ids_are_npu_ids_and_two_chips_share_a_row_and_an_address() -> None:
    info = """| NPU     Name              | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device            | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
| 32768   310P3             | OK              | NA           52                0     / 0             |
| 0       2                 | 0000:02:00.0    | 0            1397 / 44280                            |
| 32768   310P3             | OK              | NA           51                0     / 0             |
| 1       3                 | 0000:02:00.0    | 0            1520 / 43693                            |
""" + processes("| 32768   1                 | 4242          | main                     | 90                      |")
    topo = (
        "           NPU32      NPU32768      CPU Affinity\nNPU32      X          PHB           0-7\nNPU32768   "
        "PHB        X             8-15\n"
    )
    found = read(DUO_MAP, info, topo)
    assert (found.device_type, found.errors) == ("310P", ())
    assert [(chip.id, chip.card, chip.chip, chip.node, chip.address) for chip in found.chips] == [
        (0, 32, 0, 0, None), (1, 32, 1, 0, None), (2, 32768, 0, 1, "0000:02:00.0"), (3, 32768, 1, 1, "0000:02:00.0")
    ]  # fmt: skip
    assert [chip.processes for chip in found.chips] == [(), (), (), (4242,)]


def test_950_has_no_logical_column_and_no_chip_in_its_process_table() -> None:
    rows = processes(
        "| 1                         | 88            | python3                  | 3                        |",
        "NPU ID  ",
    )
    topo = "        NPU0   NPU1   NIC0\nNPU0    X      UB     PHB\nNPU1    UB     X      PHB\nNIC0    PHB    PHB    X\n"
    found = read(A5_MAP, rows, topo)
    assert (found.device_type, found.errors) == ("950", ())
    assert [(chip.id, chip.card, chip.physical, chip.processes) for chip in found.chips] == [
        (0, 0, 0, ()),
        (1, 1, 1, (88,)),
    ]


def test_several_chips_without_numbers_of_their_own_are_one_device() -> None:
    text = A5_MAP.replace("-              Mcu", "2              Ascend950PR")
    found = read(
        text, processes("| 1                         | 88            | python3                  | 3 |", "NPU ID  ")
    )
    assert [(chip.id, chip.chip) for chip in found.chips] == [(0, 0), (1, 0)]
    assert codes(found) == ["npu_unmapped"]  # which of the two chips is running cannot be told
    found = read(text, processes("| 1       1                 | 88            | python3                  | 3 |"))
    assert codes(found) == [] and found.chips[1].processes == (88,)


def test_process_table_of_five_columns_and_unknown_process_ids() -> None:
    text = """| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |
| 0       0                 | 632268        | python3.1          | 197                   | NA                      |
| 1       0                 | NA            |                    | 197                   | 77                      |
"""
    assert [chip.processes for chip in read(A2_MAP, text).chips] == [(632268,), (0,)]


def test_wide_fields_other_indentation_and_a_warning_before_the_header() -> None:
    wide = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n\n" + A2_MAP.replace("\t", "      ").replace(
        "Chip Name", "Chip Name   "
    )
    assert [chip.name for chip in read(wide).chips] == ["Ascend 910B2", "Ascend 910B2"]
    narrow = "NPU ID\tChip ID\tChip Logic ID\tChip Name\n0 0 0 Ascend 910B4\n0 1 - Mcu\n"
    assert [(chip.id, chip.name) for chip in read(narrow).chips] == [(0, "Ascend 910B4")]


def test_logical_ids_need_not_start_at_zero() -> None:
    text = "NPU ID  Chip ID  Chip Logic ID  Chip Name\n" + "".join(
        f"{npu}       0        {npu}              Ascend 910B3\n" for npu in (6, 4, 5, 7)
    )
    assert [chip.id for chip in read(text).chips] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("rows", "numbers", "expected"),
    [
        # NPU ID 4 and 5 are logical 0 and 1 in this container
        ("4 0 0\n5 0 1", (4, 5), {0: 4, 1: 5}),  # rows by NPU ID
        ("4 0 0\n5 0 1", (0, 1), {0: 0, 1: 1}),  # rows by logical number
        ("4 0 0\n5 0 1", range(8), {0: 4, 1: 5}),  # all rows of the host: the NPU ID comes first
        ("0 0 0\n0 1 1\n1 0 2\n1 1 3", (0, 1), {0: 0, 1: 0, 2: 1, 3: 1}),  # both chips of a card share its row
        ("0 0 0\n0 1 1\n1 0 2\n1 1 3", range(4), {0: 0, 1: 1, 2: 2, 3: 3}),  # a row for each chip
        ("1 0 0\n1 1 1\n2 0 2\n2 1 3", range(4), {0: 0, 1: 1, 2: 2, 3: 3}),  # likewise, though 1 and 2 are NPU IDs too
        ("9 0 0", (3,), {}),  # another container's device
    ],
)
def test_what_the_number_in_a_topology_row_counts(rows: str, numbers: range, expected: dict[int, int]) -> None:
    map_text = "NPU ID  Chip ID  Chip Logic ID  Chip Name\n" + "".join(
        f"{row}  Ascend 310P3\n" for row in rows.splitlines()
    )
    labels = [f"NPU{one}" for one in numbers]
    topo = (
        " ".join(labels)
        + "  CPU Affinity\n"
        + "".join(f"{one}\t{' '.join('X' * len(labels))}\t{one[3:]}\n" for one in labels)
    )
    assert {chip.id: chip.local_cpus[0] for chip in read(map_text, topo=topo).chips if chip.local_cpus} == expected


def test_physical_topology_rows_with_affinity() -> None:
    topo = "Phy-ID8 Phy-ID9 CPU Affinity\nPhy-ID8 X SIO 0-3\nPhy-ID9 SIO X 8, 10-11\n"
    assert [chip.local_cpus for chip in read(A3_MAP, topo=topo).chips] == [(0, 1, 2, 3), (8, 10, 11), (), ()]


def test_affinity_keeps_the_order_of_its_list() -> None:
    topo = "NPU0 NPU1 CPU Affinity\nNPU0 X HCCS 24-25,3,0-1\nNPU1 HCCS X 4\n"
    assert read(A2_MAP, topo=topo).chips[0].local_cpus == (24, 25, 3, 0, 1)


def test_node_comes_from_the_pci_function_where_there_is_no_affinity() -> None:
    devices = (
        PciDevice("0000:c1:00.0", 0x19E5, 0xD802, 0x120000, 2, (), ()),
        PciDevice("0000:01:00.0", 0x19E5, 0xD802, 0x120000, 9, (), ()),  # a node without CPUs is nobody's place
    )
    assert [chip.node for chip in read(A2_MAP, A2_INFO, "", devices).chips] == [2, None]


@pytest.mark.parametrize(
    ("text", "code", "seen"),
    [
        ("", "npu_map_empty", "nothing"),
        ("\n \n", "npu_map_empty", "nothing"),
        (A2_MAP.splitlines()[1], "npu_map_empty", "NPU ID"),
        (
            "dcmi model initialized failed, because the device is used. ret is -8020",
            "npu_map_unparseable",
            "dcmi model",
        ),
        ("Chip ID  Chip Logic ID  Chip Name\n0  0  Ascend 910B3", "npu_map_unparseable", "Chip ID"),
        ("NPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0", "npu_map_unparseable", "0  0"),
        ("NPU ID  Chip ID  Chip Logic ID  Chip Name\nx  0  0  Ascend 910B3", "npu_map_unparseable", "x  0"),
        (
            "NPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0  99999999999999999999  Ascend 910B3",
            "npu_map_unparseable",
            "9999",
        ),
        ("NPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0  \u0663  Ascend 910B3", "npu_map_unparseable", "\u0663"),
    ],
)
def test_maps_that_give_nothing(text: str, code: str, seen: str) -> None:
    found = read(text)
    assert (found.chips, codes(found)) == ((), [code])
    assert seen in found.errors[0].seen
    assert found.errors[0].remedy
    # The topology says in its place which NPUs there are, and a note that it does.
    other = read(text, A2_INFO, TOPO)
    assert ([(chip.id, chip.name) for chip in other.chips], other.errors) == ([(0, "910B2"), (1, "910B2")], ())
    assert [note.code for note in other.notes] == ["npu_map_replaced"]
    assert seen in other.notes[0].message or code == "npu_map_unparseable"


# What `npu-smi info -m` answers where it prints no map.
NO_MAP = (
    CommandResult("", 127, "missing"),
    CommandResult("Error parameter of -m\n", 1, "failed"),
    CommandResult("dcmi model initialized failed. ret is -8020\n"),
)
# Two chips to a card, of which the second of card 4 and the first of card 5 have a process.
A3_INFO = """
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 4     Ascend910           | OK            | 91.2        41                0    / 0             |
| 0     8                   | 0000:C1:00.0  | 0           0    / 0          3397 / 65536         |
| 4     Ascend910           | OK            | 91.2        41                0    / 0             |
| 1     9                   | 0000:C1:00.1  | 0           0    / 0          3397 / 65536         |
| 5     Ascend910           | OK            | 91.2        41                0    / 0             |
| 0     10                  | 0000:C2:00.0  | 0           0    / 0          3397 / 65536         |
| 5     Ascend910           | OK            | 91.2        41                0    / 0             |
| 1     11                  | 0000:C2:00.1  | 0           0    / 0          3397 / 65536         |
""" + processes("| 4 1 | 71 | python3 | 1 |\n| 5 0 | 72 | python3 | 1 |")


def topology(*labels: str) -> str:
    return f"\t{' '.join(labels)} CPU Affinity\n" + "".join(
        f"{row} {' '.join('X' if row == one else 'HCCS' for one in labels)} {at * 8}-{at * 8 + 7}\n"
        for at, row in enumerate(labels)
    )


@pytest.mark.parametrize("answer", NO_MAP)
@pytest.mark.parametrize(
    ("info", "topo", "wanted"),
    [
        # (logical, card, chip, physical, local CPUs, processes) of each chip
        (A2_INFO, TOPO, [(0, 0, 0, None, 24, 2), (1, 1, 0, None, 0, 0)]),
        (A2_INFO, "", [(0, 0, 0, None, None, 2)]),  # those on which something runs
        ("", TOPO, [(0, 0, 0, None, 24, 0), (1, 1, 0, None, 0, 0)]),
        (
            A3_INFO,
            topology("NPU0", "NPU1", "NPU2", "NPU3"),
            [(0, 4, 0, 8, 0, 0), (1, 4, 1, 9, 8, 1), (2, 5, 0, 10, 16, 1), (3, 5, 1, 11, 24, 0)],
        ),
        (
            A3_INFO,
            topology("Phy-ID8", "Phy-ID9", "Phy-ID10", "Phy-ID11"),
            [(8, 4, 0, 8, 0, 0), (9, 4, 1, 9, 8, 1), (10, 5, 0, 10, 16, 1), (11, 5, 1, 11, 24, 0)],
        ),
        (
            A3_INFO,
            topology("NPU4", "NPU5"),  # both chips of a card share its row
            [(0, 4, 0, 8, 0, 0), (1, 4, 1, 9, 0, 1), (2, 5, 0, 10, 8, 1), (3, 5, 1, 11, 8, 0)],
        ),
        (A3_INFO, "", [(1, 4, 1, 9, None, 1), (2, 5, 0, 10, None, 1)]),
        ("", "", []),
    ],
)
def test_without_a_map_npus_are_those_of_the_topology_else_those_that_run(
    answer: CommandResult, info: str, topo: str, wanted: list[tuple[int | None, ...]]
) -> None:
    found = read(answer, info, topo)
    seen = [
        (c.id, c.card, c.chip, c.physical, c.local_cpus[0] if c.local_cpus else None, len(c.processes))
        for c in found.chips
    ]
    assert seen == wanted
    assert ("npu_map_replaced" in {note.code for note in found.notes}) == bool(wanted)
    assert not wanted or found.errors == ()


TRANSLATED = {
    "Process id": "进程号", "Process name": "进程名", "Process memory(MB)": "进程内存(MB)", "Name ": "名称 ",
    "Health": "健康状态", "Bus-Id": "总线ID", "Phy-ID ": "物理ID ", "Chip ": "芯片 ", "CPU Affinity": "CPU亲和性",
}  # fmt: skip


@given(words=st.sets(st.sampled_from(sorted(TRANSLATED))))
@fuzz
def test_headers_in_another_language_change_nothing(words: set[str]) -> None:
    def translated(text: str) -> str:
        lines = text.splitlines(keepends=True)
        for word in words:
            lines = [line.replace(word, TRANSLATED[word]) for line in lines]
        return "".join(lines)

    for map_text, info, topo in ((A2_MAP, A2_INFO, TOPO), (A3_MAP, A3_INFO, topology("NPU0", "NPU1", "NPU2", "NPU3"))):
        assert read(map_text, translated(info), translated(topo)) == read(map_text, info, topo)


def test_a_bad_row_of_the_map_does_not_lose_the_others() -> None:
    found = read(A2_MAP + "2 0 0 Ascend 910B2\n3\n", A2_INFO, TOPO)
    assert codes(found) == ["npu_map_duplicate", "npu_map_unparseable"]
    assert [(chip.id, chip.card) for chip in found.chips] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("map_text", "rows", "heading"),
    [
        (A2_MAP, "| 7       0                 | 1             | a | 1 |", "NPU     Chip"),  # an NPU the map lacks
        (A2_MAP, "| 0       1                 | 1             | a | 1 |", "NPU     Chip"),  # a chip the map lacks
        (A2_MAP, "| ?       0                 | 1             | a | 1 |", "NPU     Chip"),
        (
            A3_MAP,
            "| 4                         | 1             | a | 1 |",
            "NPU ID",
        ),  # two chips, and the row names the card only
    ],
)
def test_processes_on_chips_that_cannot_be_told(map_text: str, rows: str, heading: str) -> None:
    found = read(map_text, processes(rows, heading), TOPO)
    assert codes(found) == ["npu_unmapped"]
    assert rows[2:4] in found.errors[0].seen
    assert found.chips and not any(chip.processes for chip in found.chips)


@pytest.mark.parametrize("cell", ["0-", "7-0", "abc", "0-7 8-9", "0-99999", "1,,2", "0-7" + ",0-65535" * 40])
def test_a_topology_row_without_the_promised_list(cell: str) -> None:
    found = read(A2_MAP, A2_INFO, f"NPU0 NPU1 CPU Affinity\nNPU0 X HCCS 8-15\nNPU1 HCCS X {cell}\n")
    assert codes(found) == ["topo_row_unparseable"]
    assert "NPU1 HCCS X" in found.errors[0].seen and len(found.errors[0].seen) <= 120
    assert [bool(chip.local_cpus) for chip in found.chips] == [True, False]


@pytest.mark.parametrize("cell", ["NA", "N/A", "-", ""])
def test_a_topology_cell_that_tells_nothing_is_no_fault_of_the_table(cell: str) -> None:
    found = read(A2_MAP, A2_INFO, f"NPU0 NPU1 CPU Affinity\nNPU0 X HCCS 8-15\nNPU1 HCCS X {cell}\n")
    assert found.errors == ()
    assert [chip.local_cpus for chip in found.chips] == [tuple(range(8, 16)), ()]


def test_a_blank_relation_does_not_move_the_affinity() -> None:
    found = read(A2_MAP, A2_INFO, "NPU0 NPU1 CPU Affinity\nNPU0 X      8-15\nNPU1 HCCS X 0-7\n")
    assert [chip.local_cpus for chip in found.chips] == [tuple(range(8, 16)), tuple(range(8))]


def test_affinity_that_the_tool_does_not_know_at_all_is_absent_rather_than_broken() -> None:
    found = read(A2_MAP, A2_INFO, "NPU0 NPU1 CPU Affinity\nNPU0 X HCCS NA\nNPU1 HCCS X NA\n")
    assert found.errors == () and not any(chip.local_cpus for chip in found.chips)


def test_two_unlike_rows_for_one_npu() -> None:
    assert codes(read(A2_MAP, "", "NPU0 NPU1 CPU Affinity\nNPU0 X HCCS 8-15\nNPU0 X HCCS 0-7\n")) == [
        "topo_row_unparseable"
    ]


@pytest.mark.parametrize(
    ("name", "column", "family"),
    [
        ("Ascend 910B3", "", "A2"), ("910B4-1", "", "A2"), ("Ascend910", "0", "A3"), ("Ascend910_9392", "", "A3"),
        ("Ascend 910C", "", "A3"),
        ("310P3", "", "310P"), ("Ascend 310P1", "", "310P"), ("Ascend950DT", "", "950"), ("Ascend910_9589", "", "950"),
        ("Ascend 310", "", None), ("Ascend910", "", None), ("Ascend 910A", "", None), ("", "", None),
    ],
)  # fmt: skip
def test_device_type_by_chip_name(name: str, column: str, family: str | None) -> None:
    physical = ("  Chip Phy-ID", f"  {column}") if column else ("", "")
    found = read(f"NPU ID  Chip ID  Chip Logic ID{physical[0]}  Chip Name\n0  0  0{physical[1]}  {name}\n")
    assert found.device_type == family
    assert [note.code for note in found.notes] == ([] if family else ["device_type_unknown"])


def test_tools_that_hang_or_fail() -> None:
    hung = CommandResult("", -9, "timeout")
    assert codes(read(hung, A2_INFO, TOPO)) == ["tool_timeout"]
    found = read(A2_MAP, hung, TOPO)
    assert codes(found) == ["tool_timeout"] and len(found.chips) == 2
    found = read(A2_MAP, CommandResult("out of memory", 3, "failed"), TOPO)
    assert codes(found) == ["tool_failed"] and "out of memory" in found.errors[0].seen and found.chips[0].local_cpus
    found = read(A2_MAP, A2_INFO, CommandResult("This device does not support querying topo.", 255, "failed"))
    assert (
        found.errors == ()
        and [note.code for note in found.notes] == ["tool_failed"]
        and "255" in found.notes[0].message
    )
    found = read(CommandResult("dcmi failed", 1, "failed"))
    assert codes(found) == ["npu_map_unparseable"] and [note.code for note in found.notes] == ["tool_failed"]
    for out, err in (("dcmi failed", ""), ("", "dcmi failed")):
        (error,) = read(CommandResult(out, 1, "failed", err)).errors
        assert error.seen == "exit code 1, dcmi failed"


def test_hostile_texts_in_messages_are_cut_and_escaped() -> None:
    (error,) = read("\x1b[31mfailed\x07" + "x" * 5000).errors
    assert "\x1b" not in str(error) and "\x07" not in str(error) and len(error.seen) < 160


def test_a_million_bad_rows_are_one_trouble() -> None:
    start = time.process_time()
    found = read(
        A2_MAP + "junk row of text\n" * 200_000,
        A2_INFO + "| ? ? | 1 | 1 |\n" * 100_000,
        TOPO + "NPU1 X X 1-\n" * 100_000,
    )
    assert 0 < len(found.errors) <= 100 and len(found.chips) == 2
    assert time.process_time() - start < 10


def test_board_address() -> None:
    board = "	NPU ID                         : 5\n	PCIe Bus Info                  : 0000:C1:00.0\n"
    chip = Accelerator("npu", 3, "Ascend910", card=5, chip=1)
    answers = {"npu-smi info -t board -i 5 -c 1": CommandResult(board)}
    assert board_address(RecordedSource("aarch64", {}, answers), chip) == "0000:c1:00.0"
    answers = {"npu-smi info -t board -i 5": CommandResult(board)}
    source = RecordedSource("aarch64", {}, answers)
    assert board_address(source, chip) is None  # that of the card is that of its first chip
    assert board_address(source, Accelerator("npu", 2, "Ascend910", card=5, chip=0)) == "0000:c1:00.0"
    assert board_address(RecordedSource("aarch64", {}), chip) is None
    hung = {
        "npu-smi info -t board -i 5 -c 0": CommandResult("", -9, "timeout"),
        "npu-smi info -t board -i 5": CommandResult(board),
    }
    assert (
        board_address(RecordedSource("aarch64", {}, hung), Accelerator("npu", 2, "Ascend910", card=5, chip=0)) is None
    )  # not asked again
    assert board_address(source, Accelerator("cuda", 0, "NVIDIA L4")) is None


lines = st.lists(st.sampled_from((A2_MAP + A3_MAP + DUO_MAP + A5_MAP + A2_INFO + TOPO).splitlines()), max_size=30)
words = st.lists(
    st.sampled_from(
        [
            "NPU",
            "NPU0",
            "Phy-ID1",
            "ID",
            "Chip",
            "CPU Affinity",
            "X",
            "-",
            "0-7",
            "|",
            "\t",
            "  ",
            "9" * 5000,
            "Mcu",
            "\n",
            "²",
        ]
    ),
    max_size=40,
)
anything = st.one_of(st.text(max_size=300), lines.map("\n".join), words.map(" ".join), words.map("".join))


@fuzz
@given(anything, anything, anything)
def test_any_text_gives_chips_and_coded_errors_only(map_text: str, info: str, topo: str) -> None:
    check(read(map_text, info, topo))


@fuzz
@given(st.data())
def test_damaged_texts_give_chips_and_coded_errors_only(data: st.DataObject) -> None:
    texts = []
    for text in (A3_MAP, A2_INFO, TOPO):
        at, size = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
        texts.append(text[:at] + data.draw(st.text(max_size=6)) + text[at + size :])
    check(read(*texts))


def check(found: Accelerators) -> None:
    """Whatever was read: ids are unique and sane, and every complaint has a code, a quotation and a remedy."""
    ids = [chip.id for chip in found.chips]
    assert len(set(ids)) == len(ids) and ids == sorted(ids)
    assert all(0 <= cpu < 1 << 16 for chip in found.chips for cpu in chip.local_cpus)
    known = {"npu_map_empty", "npu_map_unparseable", "npu_map_duplicate", "npu_unmapped", "topo_row_unparseable"}
    known.add("npu_info_unparseable")
    assert set(codes(found)) <= known
    assert all(error.seen and error.wanted and error.remedy and str(error).isprintable() for error in found.errors)
    assert found.chips or found.errors
