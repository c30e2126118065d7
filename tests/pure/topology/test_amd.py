"""AMD GPUs out of the compute driver's sysfs, or out of PCI alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.host.topology.accelerators.amd import read_amd
from homenode.host.topology.host import Accelerators, Node, PciDevice
from homenode.host.topology.source import RecordedSource
from tests.examples import examples

NODES = (Node(0, (0, 1), 1 << 30, {}), Node(8, (2, 3), 1 << 30, {}), Node(9, (), 1 << 30, {}))
KFD = "/sys/class/kfd/kfd"
CPU_NODE = "cpu_cores_count 32\nsimd_count 0\nlocation_id 0\ndomain 0\ndrm_render_minor 0"


def gpu_node(location: int, domain: int = 0, unique: int = 0) -> str:
    return (
        f"cpu_cores_count 0\nsimd_count 304\nlocation_id {location}\ndomain {domain}\ndrm_render_minor 128\n"
        f"unique_id {unique}"
    )


def device(address: str, node: int | None, cpus: tuple[int, ...], kind: int = 0x038000) -> PciDevice:
    return PciDevice(address, 0x1002, 0x74A1, kind, node, cpus, ())


def read(files: dict[str, str], devices: tuple[PciDevice, ...] = ()) -> Accelerators:
    return read_amd(RecordedSource("x86_64", files), devices, NODES)


def test_order_and_places_of_the_compute_driver() -> None:
    files = {
        f"{KFD}/topology/nodes/0/properties": CPU_NODE,
        f"{KFD}/topology/nodes/10/properties": gpu_node(0x0500),
        f"{KFD}/topology/nodes/2/properties": gpu_node(0xC1 << 8 | 3 << 3 | 1, 1, 0xAB),
        f"{KFD}/topology/nodes/2/name": "gfx942",
        f"{KFD}/topology/nodes/2/gpu_id": "51234",
        f"{KFD}/topology/nodes/3/name": "the properties of another container's GPU cannot be read",
        f"{KFD}/proc/77/vram_51234": "4096",
        f"{KFD}/proc/78/vram_51234": "0",
        f"{KFD}/proc/79/vram_1": "4096",
    }
    devices = (device("0000:05:00.0", 0, (0, 1)), device("0001:c1:03.1", 8, (2, 3)), device("0000:06:00.0", 0, (0, 1)))
    first, second = read(files, devices).chips
    assert (first.kind, first.id, first.address, first.name, first.uuid) == (
        "rocm",
        0,
        "0001:c1:03.1",
        "gfx942",
        "GPU-00000000000000ab",
    )
    assert (first.local_cpus, first.node, first.processes) == ((2, 3), 8, (77,))
    assert (second.id, second.address, second.node, second.uuid, second.processes) == (1, "0000:05:00.0", 0, "", ())


def test_pci_order_without_the_compute_driver() -> None:
    devices = (
        device("0000:c1:00.0", 9, (2,)),  # a node without CPUs is nobody's place: the CPUs tell
        device("0000:05:00.0", None, (), 0x120000),
        device("0000:06:00.0", 0, (0,), 0x030000),  # a desktop's graphics card
        device("0000:07:00.0", 0, (0,), 0x040300),  # its audio function
    )
    assert [(chip.id, chip.address, chip.node) for chip in read({}, devices).chips] == [
        (0, "0000:05:00.0", None),
        (1, "0000:c1:00.0", 8),
    ]


def test_no_amd_is_nothing() -> None:
    assert read({}) == Accelerators()
    assert read({f"{KFD}/topology/nodes/0/properties": CPU_NODE}) == Accelerators()


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(
    st.one_of(
        st.text(max_size=200),
        st.lists(
            st.sampled_from(
                [*gpu_node(7).splitlines(), "simd_count", "domain " + "9" * 20, "location_id -1", "simd_count ²"]
            )
        ).map("\n".join),
    )
)
def test_any_properties(text: str) -> None:
    chips = read(
        {
            f"{KFD}/topology/nodes/1/properties": text,
            f"{KFD}/topology/nodes/1/gpu_id": text,
            f"{KFD}/topology/nodes/x/name": text,
        }
    ).chips
    assert len(chips) <= 1 and all(chip.local_cpus == () and chip.node is None for chip in chips)
