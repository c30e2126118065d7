"""PCI functions read from small recorded trees."""

from __future__ import annotations

import pytest

from homenode.host.discovery.read import read_host
from homenode.host.topology.host import PciDevice
from homenode.host.topology.source import RecordedSource

PCI = "/sys/bus/pci/devices"
BASE = {
    "/sys/devices/system/cpu/online": "0-3",
    "/sys/devices/system/node/online": "0,2",
    "/sys/devices/system/node/node0/cpulist": "0-1",
    "/sys/devices/system/node/node2/cpulist": "2-3",
}


def device_of(files: dict[str, str], address: str = "0000:c1:00.0") -> PciDevice:
    source = RecordedSource("x86_64", BASE | {f"{PCI}/{address}/{name}": text for name, text in files.items()})
    (device,) = read_host(source, accelerators=False).devices
    return device


def test_an_accelerator() -> None:
    files = {
        "vendor": "0x19e5\n",
        "device": "0xd802",
        "class": "0x120000",
        "numa_node": "2",
        "local_cpulist": "2-3",
        "irq": "17",
    }
    files |= {f"msi_irqs/{irq}": "msix" for irq in (2754, 2753, 31)}
    assert device_of(files) == PciDevice("0000:c1:00.0", 0x19E5, 0xD802, 0x120000, 2, (2, 3), (31, 2753, 2754))


@pytest.mark.parametrize("node", ["-1", "7", "", "x"], ids=["not told", "not online", "empty", "junk"])
def test_a_node_that_is_none(node: str) -> None:
    assert device_of({"vendor": "0x8086", "numa_node": node}).node is None


def test_the_line_interrupt_counts_only_without_message_signalled_ones() -> None:
    assert device_of({"irq": "17"}).irqs == (17,)
    assert device_of({"irq": "0"}).irqs == ()
    assert device_of({"irq": "17", "msi_irqs/40": ""}).irqs == (40,)


def test_local_cpus_as_a_mask_and_cut_to_the_online_ones() -> None:
    assert device_of({"local_cpus": "00000000,0000000c"}).local_cpus == (2, 3)
    assert device_of({"local_cpulist": "2-9"}).local_cpus == (2, 3)


def test_addresses_are_lower_case_and_other_names_are_none() -> None:
    assert device_of({"vendor": "0x1"}, "10000:E1:00.7").address == "10000:e1:00.7"
    source = RecordedSource(
        "x86_64",
        BASE | {f"{PCI}/{name}/vendor": "0x1" for name in ("0000:00:00", "virtio0", "0000:00:00.9", "g000:00:00.0")},
    )
    assert read_host(source, accelerators=False).devices == ()
