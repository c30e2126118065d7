"""NVIDIA and its tool's tables, as drivers print them and as people paste them; NVML by a stand-in module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.host.topology.accelerators.cells import Problems
from homenode.host.topology.accelerators.nvidia import read_nvidia
from homenode.host.topology.accelerators.nvidia_topo import NvidiaTopoRow, parse_topo
from homenode.host.topology.accelerators.read import read_accelerators
from homenode.host.topology.host import Accelerators, Node, PciDevice
from homenode.host.topology.source import CommandResult, LiveSource, RecordedSource, RecordingSource
from tests.examples import examples

fuzz = settings(
    max_examples=examples(150), derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

QUERY = "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader"
APPS = "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader"
LIST = """0, GPU-1aa0a5f2-0000-0000-0000-000000000001, 00000000:1B:00.0, NVIDIA H100 80GB HBM3
1, GPU-2bb0a5f2-0000-0000-0000-000000000002, 00000001:43:00.0, NVIDIA H100 80GB HBM3
"""
TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-3,16-19\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t4-7,20-23\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\n\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single "
    "PCIe bridge\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
NODES = (
    Node(0, (*range(4), *range(16, 20)), 1 << 30, {}),
    Node(1, (*range(4, 8), *range(20, 24)), 1 << 30, {}),
    Node(2, (), 1 << 36, {}),
    Node(10, (), 1 << 36, {}),
)


def gpu(address: str, node: int | None = None, cpus: tuple[int, ...] = (), kind: int = 0x030200) -> PciDevice:
    return PciDevice(address, 0x10DE, 0x2330, kind, node, cpus, ())


DEVICES = (gpu("0000:1b:00.0", 0, (0, 1, 2, 3)), gpu("0001:43:00.0", 1, (4, 5, 6, 7)))


def read(
    commands: dict[str, str | CommandResult],
    devices: tuple[PciDevice, ...] = DEVICES,
    files: dict[str, str] | None = None,
    **env: str,
) -> Accelerators:
    answers = {
        line: text if isinstance(text, CommandResult) else CommandResult(text) for line, text in commands.items()
    }
    return read_nvidia(RecordedSource("x86_64", files or {}, answers, env), devices, NODES)


def rows(text: str) -> dict[int, NvidiaTopoRow]:
    return parse_topo(text, Problems())


def test_a_host_without_nvidia_says_nothing() -> None:
    assert read({}, ()) == Accelerators()
    assert read({QUERY: CommandResult("No devices were found\n", 6, "failed")}, ()) == Accelerators()


@pytest.mark.parametrize("rc", [0, 9])
def test_a_tool_that_fails_is_told_also_where_no_gpu_is_seen(rc: int) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    found = read({QUERY: CommandResult(f"{words}\n", rc, "failed" if rc else "")}, ())
    assert not found.chips and [note.severity for note in found.notes] == ["warning"]
    assert words in found.notes[0].message and "nvidia-smi" in found.notes[0].text


def test_gpus_from_the_tool() -> None:
    apps = "GPU-2bb0a5f2-0000-0000-0000-000000000002, 991\nGPU-2bb0a5f2-0000-0000-0000-000000000002, 17\n"
    found = read({QUERY: LIST, APPS: apps, "nvidia-smi topo -m": TOPO})
    first, second = found.chips
    assert (first.kind, first.id, first.name, first.address) == ("cuda", 0, "NVIDIA H100 80GB HBM3", "0000:1b:00.0")
    assert (first.local_cpus, first.node, first.memory_node, first.processes) == (
        (0, 1, 2, 3, 16, 17, 18, 19),
        0,
        None,
        (),
    )
    assert (second.address, second.node, second.processes) == ("0001:43:00.0", 1, (17, 991))
    assert found.errors == () and found.notes == () and found.device_type is None


def test_locality_from_sysfs_when_the_tool_says_nothing() -> None:
    silent = TOPO.replace("0-3,16-19\t0", "\t").replace("4-7,20-23\t1", "N/A\tN/A")
    for topo in ("", silent, CommandResult("", 255, "failed")):
        found = read({QUERY: LIST, "nvidia-smi topo -m": topo})
        assert [(chip.local_cpus, chip.node) for chip in found.chips] == [((0, 1, 2, 3), 0), ((4, 5, 6, 7), 1)]


def test_node_of_the_cpus_when_nobody_names_one() -> None:
    devices = (gpu("0000:1b:00.0", None, (5, 6)), gpu("0001:43:00.0", 2, (0,)))  # a node without CPUs is nobody's place
    assert [chip.node for chip in read({QUERY: LIST}, devices).chips] == [1, 0]


def test_memory_of_the_gpu_as_a_node() -> None:
    topo = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV18\t0-3\t0\t\t2\nGPU1\tNV18\t X "
        "\t4-7\t1\t\t10\n"
    )
    assert [(chip.node, chip.memory_node) for chip in read({QUERY: LIST, "nvidia-smi topo -m": topo}).chips] == [
        (0, 2),
        (1, 10),
    ]


def test_several_nodes_in_one_cell_are_settled_by_sysfs() -> None:
    topo = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7,16-23\t0-1\nGPU1\tSYS\t X \t0-7,16-23\t0-1\n"
    found = read({QUERY: LIST, "nvidia-smi topo -m": topo})
    assert [chip.node for chip in found.chips] == [0, 1]
    assert all(len(chip.local_cpus) == 16 for chip in found.chips)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # aligned with spaces, by a terminal
        ((
            "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\nGPU0     X      PHB     0-11    "
            "0               N/A\nGPU1    PHB      X\n"
        ),
         {0: ((*range(12),), (0,), None), 1: ((), (), None)}),
        # an older driver: two columns, no node on this board
        ("        GPU0    CPU Affinity    NUMA Affinity\nGPU0     X      0-11            N/A\n",
            {0: ((*range(12),), (), None)}),
        # older still
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-1,4\n", {0: ((0, 1, 4), (), None)}),
        # in a container
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t\t\tN/A\n", {0: ((), (), None)}),
        ((
            "        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID\nGPU0     X                              "
            "        N/A\n"
        ), {0: ((), (), None)}),
        # pasted without the tab it begins with
        ("GPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tSYS\t8\t3\t\tN/A\n",
            {0: ((8,), (3,), None)}),
        ("nothing of the sort", {}),
    ],
)  # fmt: skip
def test_topology_tables(text: str, expected: dict[int, tuple[object, ...]]) -> None:
    assert {index: (row.cpus, row.nodes, row.memory_node) for index, row in rows(text).items()} == expected


def test_rows_of_the_list_that_cannot_be_read_are_noted() -> None:
    text = LIST + (
        "2, [Unknown Error], 00000000:1C:00.0, Odd, with, commas\n1, GPU-x, 00000000:1D:00.0, again\nwarning: "
        "infoROM is corrupted\n"
    )
    found = read({QUERY: text})
    assert [(chip.id, chip.uuid[:5]) for chip in found.chips] == [(0, "GPU-1"), (1, "GPU-2"), (2, "")]
    assert found.chips[2].name == "Odd, with, commas"
    assert [note.code for note in found.notes] == ["nvidia_smi_unparseable"] * 2 + ["cuda_device_order"]


def test_mixed_gpus_and_their_order() -> None:
    mixed = LIST.replace("NVIDIA H100 80GB HBM3", "NVIDIA L40S", 1)
    assert [note.code for note in read({QUERY: mixed}).notes] == ["cuda_device_order"]
    assert read({QUERY: mixed}, CUDA_DEVICE_ORDER="PCI_BUS_ID").notes == ()


def test_without_the_tool_devices_come_in_pci_order() -> None:
    devices = (
        gpu("10000:01:00.0"),
        gpu("0001:43:00.0", 1),
        gpu("0000:1b:00.0", 0),
        gpu("0000:05:00.0", kind=0x030000),
        gpu("0000:06:00.0", kind=0x040300),
    )
    found = read({}, devices)
    assert [(chip.id, chip.address, chip.node) for chip in found.chips] == [
        (0, "0000:1b:00.0", 0),
        (1, "0001:43:00.0", 1),
        (2, "10000:01:00.0", None),
    ]
    facts = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 24\nGPU UUID: \t GPU-00ff\nBus Location: \t 0000:05:00.0\n"
    files = {"/proc/driver/nvidia/version": "NVRM version", "/proc/driver/nvidia/gpus/0000:05:00.0/information": facts}
    found = read({}, devices, files)
    assert (found.chips[0].address, found.chips[0].name, found.chips[0].uuid) == (
        "0000:05:00.0",
        "NVIDIA L4",
        "GPU-00ff",
    )


@pytest.mark.parametrize(
    "answer", [CommandResult("", -9, "timeout"), CommandResult("Failed to initialize NVML", 9, "failed")]
)
def test_a_tool_that_hangs_or_fails_leaves_the_devices(answer: CommandResult) -> None:
    found = read({QUERY: answer})
    assert [chip.node for chip in found.chips] == [0, 1]
    assert [note.code for note in found.notes] == [f"tool_{answer.failure}"]


class Nvml(SimpleNamespace):
    """A stand-in for the module pynvml: two GPUs, the second with memory that is a node and with a CPU beyond the count
    of CPUs.
    """

    def __init__(self) -> None:
        super().__init__(closed=0, asked=[])

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=(b"00000000:1B:00.0", "00000001:43:00.0")[handle])

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA GH200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetNumaNodeId(self, handle: int) -> int:
        if handle == 0:
            raise RuntimeError("Not Supported")
        return 10

    def nvmlDeviceGetCpuAffinity(self, handle: int, words: int) -> list[int]:
        self.asked.append(words)
        return [0b1111 << 4, *[0] * (words - 2), 1]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=40 + handle)]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], LiveSource]:
    """A live source with an empty PATH, on which CPU 300 is possible."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/possible").write_text("0-7,300\n")
    return lambda: LiveSource(str(tmp_path), {})


def test_nvml_fills_what_a_live_host_lacks(live: Callable[[], LiveSource], monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, second = read_nvidia(
        live(), (gpu("0000:1b:00.0"), gpu("0001:43:00.0", 0, (2, 3)), gpu("0002:00:00.0")), NODES
    ).chips
    assert (first.name, first.uuid, first.local_cpus, first.node, first.processes) == (
        "NVIDIA GH200",
        "GPU-0",
        (4, 5, 6, 7, 256),
        1,
        (40,),
    )
    assert (second.local_cpus, second.node, second.memory_node) == ((2, 3), 0, 10)  # sysfs was there first
    # Five words of 64 CPUs hold CPU 300; the GPU this container may not use is left out.
    assert nvml.asked == [5] and nvml.closed == 1


def test_nvml_is_not_asked_for_what_is_recorded(
    live: Callable[[], LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    recorded = read_nvidia(RecordingSource(live()), DEVICES, NODES)
    assert [chip.uuid for chip in recorded.chips] == ["", ""]


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(nvmlInit=Nvml().nvmlDeviceGetPciInfo)])
def test_nvml_absent_or_without_a_driver(
    module: object, live: Callable[[], LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)  # None: the import fails
    assert [chip.node for chip in read_nvidia(live(), DEVICES, NODES).chips] == [0, 1]


def test_all_vendors_together() -> None:
    source = RecordedSource("x86_64", {}, {QUERY: CommandResult(LIST), "npu-smi info -m": CommandResult("")})
    found = read_accelerators(source, DEVICES, NODES, (0, 1, 2, 3))
    assert found.kind == "cuda" and [error.code for error in found.errors] == ["npu_map_empty"]
    (note,) = found.notes
    assert note.code == "local_cpus_offline" and "cuda 1" in note.message and "cuda 0" not in note.message


pieces = st.lists(
    st.sampled_from(
        [
            *TOPO.splitlines(),
            *LIST.splitlines(),
            "\t",
            "N/A",
            "CPU Affinity",
            "GPU1",
            "9" * 5000,
            "0-65535,",
            "\x1b[4m",
            "\n",
        ]
    ),
    max_size=30,
)
anything = st.one_of(st.text(max_size=300), pieces.map("\n".join), pieces.map("\t".join), pieces.map("  ".join))


@fuzz
@given(anything, anything, anything)
def test_any_text_gives_gpus_and_notes_only(query: str, apps: str, topo: str) -> None:
    found = read({QUERY: query, APPS: apps, "nvidia-smi topo -m": topo})
    assert found.errors == () and len({chip.id for chip in found.chips}) == len(found.chips)
    assert all(note.code in ("nvidia_smi_unparseable", "cuda_device_order") and note.remedy for note in found.notes)
    assert all(0 <= cpu < 1 << 16 for chip in found.chips for cpu in chip.local_cpus)
    assert all(chip.node in (None, 0, 1) and chip.memory_node in (None, 0, 1, 2, 10) for chip in found.chips)


@fuzz
@given(st.data())
def test_damaged_tables(data: st.DataObject) -> None:
    at, size = data.draw(st.integers(0, len(TOPO))), data.draw(st.integers(0, 12))
    damaged = rows(TOPO[:at] + data.draw(st.text(max_size=6)) + TOPO[at + size :])
    assert set(damaged) <= set(range(100_000)) and len(damaged) <= 3
