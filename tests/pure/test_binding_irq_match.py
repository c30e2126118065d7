"""Which interrupts are a device's, by name and device: on what the kernel of an NPU host shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.host.bind.base.target import IrqRoute, target_of
from homenode.host.bind.interrupts.irq_match import match
from homenode.host.discovery.read import read_host
from homenode.host.plan.plan import WorkerBinding
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.host import Accelerator, Host
from homenode.host.topology.source import RecordedSource

NPU0, NPU1 = "0000:c1:00.0", "0000:c2:00.0"
SUBMIT_IRQ, COMPLETE_IRQ = KINDS["npu"].interrupts
QUEUES = [SUBMIT_IRQ, *[COMPLETE_IRQ] * 16, "trs-mbox-0-0"]


def host_of(devices: Mapping[str, Mapping[int, str]], *, without_handler: Sequence[int] = ()) -> Host:
    """`devices`: handler by interrupt, of every PCI function."""
    lines = ["            CPU0       CPU1"]
    files = {
        "/sys/devices/system/cpu/online": "0-1",
        "/proc/self/status": "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n",
    }
    for address, irqs in devices.items():
        folder = f"/sys/bus/pci/devices/{address}"
        files |= {f"{folder}/class": "0x120000", f"{folder}/vendor": "0x19e5", f"{folder}/numa_node": "-1"}
        for irq, action in irqs.items():
            files[f"{folder}/msi_irqs/{irq}"] = "msix"
            if irq not in without_handler:
                lines.append(f"{irq:>4}:{7:>11}{8:>11}   ITS-PCI-MSI-{address} {irq} Edge      {action}")
    return read_host(RecordedSource("aarch64", {**files, "/proc/interrupts": "\n".join(lines)}), accelerators=False)


def two_npus() -> Host:
    return host_of({NPU0: dict(enumerate(QUEUES, 2753)), NPU1: dict(enumerate(QUEUES, 2800))})


def test_an_npu_sends_submissions_to_one_cpu_and_all_sixteen_completions_to_the_next() -> None:
    worker = WorkerBinding(0, 1, tuple(range(144, 168)), {"irq": (144, 145), "main": tuple(range(146, 166))}, (), "")
    routed, steps = match(target_of(worker, Accelerator("npu", 1, "910B3", NPU1)).irqs, two_npus())
    assert not steps
    assert {one.irq: one.cpus for one in routed} == {2800: (144,)} | dict.fromkeys(range(2801, 2817), (145,))
    assert {one.action for one in routed} == {SUBMIT_IRQ, COMPLETE_IRQ}


def test_the_same_name_at_another_device_is_never_taken() -> None:
    host = two_npus()
    first, _ = match((IrqRoute(NPU0, COMPLETE_IRQ, (3,)),), host)
    second, _ = match((IrqRoute(NPU1, COMPLETE_IRQ, (3,)),), host)
    assert {one.irq for one in first} == set(range(2754, 2770))
    assert {one.irq for one in second} == set(range(2801, 2817))


def test_any_name_takes_every_interrupt_that_has_a_handler() -> None:
    host = host_of({NPU0: {90: "nvidia", 91: "nvidia", 92: "nvidia"}}, without_handler=[92])
    routed, _ = match((IrqRoute(NPU0.upper(), "", (4, 5)),), host)
    assert [one.irq for one in routed] == [90, 91]


def test_a_handler_that_shares_its_interrupt_is_found_behind_the_other() -> None:
    host = host_of({NPU0: {40: f"other, {SUBMIT_IRQ}_dev0"}})
    (one,), _ = match((IrqRoute(NPU0, SUBMIT_IRQ, (1,)),), host)
    assert (one.irq, one.action) == (40, f"{SUBMIT_IRQ}_dev0")


def test_a_route_without_interrupts_says_what_there_is() -> None:
    host = host_of({NPU0: {40: "trs-mbox-0-0", 41: "hdc"}, NPU1: {}})
    routed, steps = match(
        [IrqRoute(NPU0, SUBMIT_IRQ, (1,)), IrqRoute(NPU1, SUBMIT_IRQ, (1,)), IrqRoute("0000:ff:00.0", "", (1,))], host
    )
    assert not routed
    assert [step.outcome for step in steps] == ["skipped"] * 3
    assert steps[0].what == f"irq {SUBMIT_IRQ} of {NPU0}"
    assert "hdc, trs-mbox-0-0" in steps[0].detail
    assert "no interrupts in use" in steps[1].detail
    assert "no such PCI function" in steps[2].detail


def test_two_routes_for_one_interrupt_the_first_wins() -> None:
    routed, _ = match(
        [IrqRoute(NPU0, SUBMIT_IRQ, (1,)), IrqRoute(NPU0, "", (2,))], host_of({NPU0: {40: SUBMIT_IRQ, 41: "hdc"}})
    )
    assert {one.irq: one.cpus for one in routed} == {40: (1,), 41: (2,)}
