"""The interrupts that the routes of a target mean: those of that very device, with a handler of that name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from homenode.host.bind.base.report import ActionResult, skipped
from homenode.host.bind.base.target import IrqRoute
from homenode.host.topology.host import Host
from homenode.units import format_count


@dataclass(frozen=True, slots=True)
class Routed:
    """One interrupt, whose handler is called `action`, of the PCI function at `address`; it is to go to `cpus`."""

    irq: int
    cpus: tuple[int, ...]
    action: str
    address: str

    @property
    def what(self) -> str:
        """Return what its step is called."""
        return f"irq {self.irq}"

    def __str__(self) -> str:
        return f"{self.action} of {self.address}"


def match(routes: Sequence[IrqRoute], host: Host) -> tuple[tuple[Routed, ...], tuple[ActionResult, ...]]:
    """The interrupts that the routes mean: of that very device, with a handler of that name. Steps say which routes
    have none."""
    found: dict[int, Routed] = {}
    steps = []
    for route in routes:
        own = list(_of_route(route, host))
        for one in own:
            found.setdefault(one.irq, one)
        if not own:
            steps.append(skipped(f"irq {route.action or 'any'} of {route.address}", _why_none(route, host)))
    return tuple(found.values()), tuple(steps)


def _of_route(route: IrqRoute, host: Host) -> Iterator[Routed]:
    irqs = _irqs_of(route.address, host)
    for interrupt in host.interrupts if irqs and route.cpus else ():
        action = next((action for action in interrupt.actions if action.startswith(route.action)), None)
        if interrupt.irq in irqs and action is not None:
            yield Routed(interrupt.irq, route.cpus, action, route.address)


def _irqs_of(address: str, host: Host) -> frozenset[int]:
    return frozenset(irq for device in host.devices if device.address == address.lower() for irq in device.irqs)


def _why_none(route: IrqRoute, host: Host) -> str:
    if not any(device.address == route.address.lower() for device in host.devices):
        return "there is no such PCI function in /sys/bus/pci/devices"
    irqs = _irqs_of(route.address, host)
    names = sorted({action for interrupt in host.interrupts if interrupt.irq in irqs for action in interrupt.actions})
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"none of its {format_count(len(irqs), 'interrupt')} has a handler of that name; they are called {listed}"
        if names
        else "it has no interrupts in use"
    )
