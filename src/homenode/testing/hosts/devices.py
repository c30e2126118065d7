"""The accelerators of a made-up host: where each is plugged in and what it is called."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.testing.hosts.shape import Shape

_NVIDIA, _AMD, _HUAWEI = 0x10DE, 0x1002, 0x19E5
# 3D controller; processing accelerator (PCI Code and ID Assignment Specification)
_GRAPHICS, _ACCELERATOR = (0x030200, 0x120000)
_H100, _MI300X, _ASCEND = 0x2330, 0x74A1, 0xD802
_FIRST_IRQ = 1024
_CARDS_OF_310P = (1, 32, 96, 32768, 32800, 32832, 32896, 2944)  # NPU ids of this family follow the slot, not the count


@dataclass(frozen=True, slots=True)
class Device:
    """One chip. `place` counts those of its kind; `card` and `chip` are Ascend's NPU ID and Chip ID. `interrupts`:
    numbers with names."""

    kind: int
    vendor: int
    device: int
    place: int
    address: str
    node: int | None
    card: int
    chip: int
    interrupts: tuple[tuple[int, str], ...]


def devices_of(shape: Shape) -> tuple[Device, ...]:
    """All accelerators: GPUs first, in the order of their PCI addresses."""
    return (*gpus_of(shape), *npus_of(shape))


def gpus_of(shape: Shape) -> tuple[Device, ...]:
    """The GPUs, in the order their maker's tools count them."""
    count, maker = shape.gpus
    kind, vendor, device = (_ACCELERATOR, _AMD, _MI300X) if maker == "amd" else (_GRAPHICS, _NVIDIA, _H100)
    name = "amdgpu" if maker == "amd" else "nvidia"
    return tuple(
        Device(kind, vendor, device, place, f"0000:{place + 1:02x}:00.0", node, place, 0, ((_FIRST_IRQ + place, name),))
        for place, node in enumerate(_nodes(shape, count))
    )


def npus_of(shape: Shape) -> tuple[Device, ...]:
    """The Ascend chips, by logical id."""
    count, family = shape.npus
    chips_per_card = 2 if family in ("A3", "310P") else 1
    found = []
    for place, node in enumerate(_nodes(shape, count)):
        card, chip = divmod(place, chips_per_card)
        irq = _FIRST_IRQ + shape.gpus[0] + 2 * place
        number = _card_of_310p(card) if family == "310P" else card
        names = ((irq, "sq_send_trigger_irq"), (irq + 1, "cq_update_irq"))
        found.append(
            Device(_ACCELERATOR, _HUAWEI, _ASCEND, place, f"0000:{place + 0x80:02x}:00.0", node, number, chip, names)
        )
    return tuple(found)


def _nodes(shape: Shape, count: int) -> list[int | None]:
    """The node of each of `count` devices, spread over the nodes with CPUs in order."""
    nodes = shape.node_ids[: shape.cpu_node_count]
    return [nodes[place * len(nodes) // count] if nodes else None for place in range(count)]


def _card_of_310p(card: int) -> int:
    known = len(_CARDS_OF_310P)
    return _CARDS_OF_310P[card] if card < known else 40960 + 32 * (card - known)
