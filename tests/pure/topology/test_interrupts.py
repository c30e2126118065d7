"""/proc/interrupts: lines as many kernels write them, and lines no kernel writes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.host.topology.interrupts import parse_interrupts


def text_of(*lines: str, cpus: int = 2) -> str:
    """`lines` are (number, what follows the counters); the counters are put between in the kernel's widths."""
    header = "            " + "".join(f"CPU{cpu:<8}" for cpu in range(cpus))
    rows = []
    for line in lines:
        number, _, tail = line.partition(":")
        rows.append(f"{number:>4}:" + "".join(f" {cpu * 7:>10}" for cpu in range(cpus)) + tail)
    return "\n".join([header, *rows])


@pytest.mark.parametrize(
    ("tail", "chip", "actions"),
    [
        (" PCI-MSIX-0000:00:01.0   0-edge      virtio0-config", "PCI-MSIX-0000:00:01.0", ("virtio0-config",)),
        ("  IO-APIC   5-edge      ACPI:Ged", "IO-APIC", ("ACPI:Ged",)),
        ("  IO-APIC  18-fasteoi   ehci_hcd:usb1, i801_smbus", "IO-APIC", ("ehci_hcd:usb1", "i801_smbus")),
        ("     GICv3  27 Level     arch_timer", "GICv3", ("arch_timer",)),
        ("   ITS-MSI 123456 Edge      sq_send_trigger_irq", "ITS-MSI", ("sq_send_trigger_irq",)),
        ("   ITS-PCI-MSI-0000:c1:00.0   4 Edge      cq_update_irq", "ITS-PCI-MSI-0000:c1:00.0", ("cq_update_irq",)),
        ("  IR-PCI-MSI 524288-edge      nvme0q0", "IR-PCI-MSI", ("nvme0q0",)),
        ("  XIVE-IRQ  16 Edge      IPI-2", "XIVE-IRQ", ("IPI-2",)),
        (
            "  msi lib chip  3-edge      a name with spaces, another 7",
            "msi lib chip",
            ("a name with spaces", "another 7"),
        ),
        ("   IO-APIC-edge      timer", "IO-APIC-edge", ("timer",)),
        ("   PCI-MSI-edge      eth0-rx 0, eth0-tx 0", "PCI-MSI-edge", ("eth0-rx 0", "eth0-tx 0")),
        ("   XT-PIC   cascade", "XT-PIC", ("cascade",)),
        ("  GICv2  56 Level", "GICv2", ()),
        ("  PCI-MSI 65536-edge", "PCI-MSI", ()),
        (
            "  PCI-MSIX-0000:01:00.0   1-edge      mlx5_async1@pci:0000:01:00.0",
            "PCI-MSIX-0000:01:00.0",
            ("mlx5_async1@pci:0000:01:00.0",),
        ),
    ],
)
@pytest.mark.parametrize("cpus", [1, 2, 640])
def test_lines_of_many_kernels(tail: str, chip: str, actions: tuple[str, ...], cpus: int) -> None:
    (seen,) = parse_interrupts(text_of("2753:" + tail, cpus=cpus))
    assert (seen.irq, seen.chip, seen.actions) == (2753, chip, actions)


def test_only_numbered_lines_count() -> None:
    text = (
        text_of(" 9:   IO-APIC    9-fasteoi   acpi", "NMI:   Non-maskable interrupts")
        + "\nERR:          0\nMIS:          0"
    )
    assert [entry.irq for entry in parse_interrupts(text)] == [9]


def test_counters_of_other_widths_are_counted_as_words() -> None:
    text = (
        "  CPU0 CPU1\n 5: 1 2 GICv3 12 Level ttyS0\n 6: 12345678901 12345678902  GICv3 13 Level ttyS1\n 7: 1 "
        "GICv3 14 Level ttyS2"
    )
    assert [(entry.irq, entry.chip, entry.actions) for entry in parse_interrupts(text)] == [
        (5, "GICv3", ("ttyS0",)),
        (6, "GICv3", ("ttyS1",)),
    ]


def test_a_number_as_a_name_does_not_shift_the_columns() -> None:
    assert [entry.actions for entry in parse_interrupts("CPU0\n5: 0  IO-APIC 7-edge      12345678 x")] == [
        ("12345678 x",)
    ]


@given(st.text())
@settings(deadline=None, derandomize=True)
def test_any_text_is_read(text: str) -> None:
    assert all(0 <= entry.irq < 10**10 for entry in parse_interrupts(text))


@given(
    st.lists(
        st.sampled_from(
            ["CPU0", "CPU1", " ", "  ", "12:", "7", "\n", "GICv3", "Level", ", ", "4-edge", ":", "\0", "٣"]
        ),
        max_size=60,
    )
)
@settings(deadline=None, derandomize=True)
def test_any_words_in_any_order_are_read(words: list[str]) -> None:
    assert all(entry.chip.strip() for entry in parse_interrupts("".join(words)))


def test_thousands_of_interrupts_of_640_cpus_take_no_time() -> None:
    text = text_of(*(f"{irq}: ITS-MSI {irq} Edge      dev{irq}" for irq in range(1000)), cpus=640)
    start = time.process_time()
    assert len(list(parse_interrupts(text))) == 1000
    assert time.process_time() - start < 1.0  # some 30 ms; the bound only catches what grows with the square


def test_a_hostile_line_takes_no_time() -> None:
    text = "CPU0\n" + "1: 0 " + "a " * 100_000 + "\n2: 0 " + "a" * 200_000
    start = time.process_time()
    assert len(list(parse_interrupts(text))) == 2
    assert time.process_time() - start < 2.0
